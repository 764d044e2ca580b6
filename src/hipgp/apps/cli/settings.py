"""The settings of `hipgp fit`, by flags and by a TOML file, all checked before any work is done."""

import math
import pathlib
import tomllib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from hipgp.apps.cli.console import BadInput
from hipgp.apps.cli.kernels import kernel_of
from hipgp.model.kernels import Kernel

AUTO = "auto"  # the kernel that the data choose
TRENDS = ("none", "constant", "linear")
FORMULA = 'a formula such as "~ elevation + C(type)"'
ENGINES = ("batch", "variational")
OWN_STD = ("auto", "none")  # what an engine with one way to standard deviations can be told
LINKS = ("none", "exp", "softplus", "logistic")
# By name: the class, the link that suits it, and what its --exposure or --trials column is called there.
LIKELIHOODS = {
    "gaussian": ("Gaussian", "none", ""),
    "student-t": ("StudentT", "none", ""),
    "poisson": ("Poisson", "exp", "exposure"),
    "negative-binomial": ("NegativeBinomial", "exp", "exposure"),
    "binomial": ("Binomial", "logistic", "trials"),
    "bernoulli": ("Bernoulli", "logistic", ""),
    "gamma": ("Gamma", "exp", ""),
    "log-normal": ("LogNormal", "exp", ""),
    "beta": ("Beta", "logistic", ""),
}
LIMITED = ("gaussian", "student-t", "gamma", "log-normal")  # that a limit of detection can go with
STDS = ("auto", "vecchia", "samples", "exact", "none")


class Settings(NamedTuple):
    """All settings of `fit`, under the names of the flags and of the TOML file."""

    coordinates: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    lower: tuple[str, ...] = ()
    upper: tuple[str, ...] = ()
    value: str | None = None
    error: str | None = None
    noise: float | None = None
    link: str | None = None
    likelihood: str = "gaussian"
    exposure: str | None = None
    trials: str | None = None
    lower_limit: str | float | None = None
    upper_limit: str | float | None = None
    average: bool = False
    total: bool = False
    drop_nan: bool = False
    kernel: str = "Matern32"
    variance: float | None = None
    lengthscale: tuple[float, ...] = ()
    trend: str = "constant"
    spacing: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    engine: str = "batch"
    tolerance: float = 0.01
    name: str | None = None
    unit: str = ""
    axis_unit: str = ""
    std: str = "auto"
    samples: int = 0
    seed: int = 0


def settings(config: pathlib.Path | None, flags: dict[str, Any]) -> Settings:
    """The file's settings, overruled by the flags that were given; None, () and False mean that a flag was not given."""
    values: dict[str, Any] = {}
    if config is not None:
        try:
            values = tomllib.loads(config.read_text())
        except tomllib.TOMLDecodeError as error:
            raise BadInput(f"{config}: not valid TOML ({error})") from None
    unknown = [k for k in values if k not in Settings._fields]
    if unknown:
        raise BadInput(f"{config}: unknown setting {unknown[0]!r}; there are {', '.join(Settings._fields)}")
    values |= {k: v for k, v in flags.items() if v is not None and v != () and v is not False}
    found = Settings(**{name: CHECKS[name](name, value) for name, value in values.items()})
    if found.engine == "variational" and found.std not in OWN_STD:
        raise BadInput(
            f"std: expected {' or '.join(OWN_STD)} with --engine variational, which has one way to standard deviations, "
            f"got {found.std!r}; leave out --engine to choose how they are computed"
        )
    if found.engine == "variational" and "~" in found.trend:
        raise BadInput("trend: expected no formula with --engine variational; leave out --engine")
    if found.average and found.total:
        raise BadInput("total: expected one of --average and --total, got both")
    _check_likelihood(found)
    return found


def _check_likelihood(s: Settings) -> None:
    """Raise BadInput where link, likelihood and their columns do not go together."""
    scale = LIKELIHOODS[s.likelihood][2]
    for name in ("exposure", "trials"):
        if getattr(s, name) is not None and name != scale:
            fitting = " or ".join(k for k, v in LIKELIHOODS.items() if v[2] == name)
            raise BadInput(f"{name}: expected none with --likelihood {s.likelihood}; it goes with {fitting}")
    if scale == "trials" and s.trials is None:
        raise BadInput(
            "trials: expected a column of trials with --likelihood binomial, got none; give --trials NAME"
        )
    if limits_of(s) and s.likelihood not in LIMITED:
        raise BadInput(
            f"{limits_of(s)[0]}: expected none with --likelihood {s.likelihood}; limits go with {', '.join(LIMITED)}"
        )
    if not additive(s) and (s.noise is not None or s.error is not None):
        raise BadInput(
            f"noise: expected neither --noise nor --error with --likelihood {s.likelihood}, which says itself how values "
            "scatter; leave them out"
        )
    if s.engine == "variational" and (s.likelihood != "gaussian" or link_of(s) != "none" or limits_of(s)):
        raise BadInput(
            "engine: expected batch with a link or a likelihood, got variational; leave out --engine"
        )


def additive(s: Settings) -> bool:
    """Whether values scatter by noise that is added."""
    return s.likelihood in ("gaussian", "student-t")


def link_of(s: Settings) -> str:
    """The link that is asked for, or suits the likelihood."""
    return LIKELIHOODS[s.likelihood][1] if s.link is None else s.link


def scale_of(s: Settings) -> str | None:
    """The column of exposures or trials."""
    return s.exposure or s.trials


def kernel_asked(s: Settings, ndim: int, units: tuple[str, ...]) -> Kernel | Literal["auto"]:
    """The kernel of the settings, or "auto" where the data are to choose it.

    Where the axes are in different units it has a lengthscale for each of them.
    """
    if s.kernel.strip().lower() != AUTO:
        lengths = s.lengthscale or ((1.0,) * ndim if len(set(units)) > 1 else ())
        kernel = kernel_of(s.kernel, lengths, 1.0 if s.variance is None else s.variance)
        kernel.check_dimension(ndim)
        return kernel
    if s.lengthscale or s.variance is not None:
        raise BadInput(
            "kernel: expected one by name with --lengthscale or --variance, got auto, which learns them; leave these out"
        )
    return "auto"


def limits_of(s: Settings) -> tuple[str, ...]:
    """The names of the limits of detection that were given."""
    return tuple(name for name in ("lower_limit", "upper_limit") if getattr(s, name) is not None)


def limit_columns(s: Settings) -> tuple[str, ...]:
    """The limits that are columns of the table, and not numbers."""
    return tuple(getattr(s, name) for name in limits_of(s) if isinstance(getattr(s, name), str))


def one_of(name: str, value: Any, options: Sequence[str]) -> str:
    """`value`, if it is one of the options."""
    if value not in options:
        raise BadInput(f"{name}: expected {', '.join(options[:-1])} or {options[-1]}, got {value!r}")
    return value


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{name}: expected a word in quotes, got {value!r}")
    return value


def _yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{name}: expected true or false, got {value!r}")
    return value


def _column_or_number(name: str, value: Any) -> str | float:
    """A number, or the name of a column of numbers."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(f"{name}: expected a number or the name of a column, got {value!r}")
    try:
        number = float(value)
    except ValueError:
        return str(value)
    if not math.isfinite(number):
        raise BadInput(f"{name}: expected a finite number or the name of a column, got {value!r}")
    return number


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise BadInput(f"{name}: expected a positive number, got {value!r}")
    return float(value)


def _whole(name: str, value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(f"{name}: expected a whole number from {least} on, got {value!r}")
    return value


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _kernel_name(name: str, value: Any) -> str:
    if _word(name, value).strip().lower() != AUTO:
        kernel_of(value)
    return value


def _trend(name: str, value: Any) -> str:
    return value if isinstance(value, str) and "~" in value else one_of(name, value, (*TRENDS, FORMULA))


_names = lambda name, value: tuple(_word(name, v) for v in _listed(value))
_sizes = lambda name, value: tuple(_positive(name, v) for v in _listed(value))

CHECKS: dict[str, Any] = {
    **dict.fromkeys(("coordinates", "start", "end", "lower", "upper"), _names),
    **dict.fromkeys(("exposure", "trials", "value", "error", "name", "unit", "axis_unit"), _word),
    **dict.fromkeys(("lower_limit", "upper_limit"), _column_or_number),
    **dict.fromkeys(("average", "total", "drop_nan"), _yes_or_no),
    **dict.fromkeys(("noise", "variance", "tolerance"), _positive),
    **dict.fromkeys(("lengthscale", "spacing"), _sizes),
    **dict.fromkeys(("samples", "seed"), _whole),
    "shape": lambda name, value: tuple(_whole(name, v, 2) for v in _listed(value)),
    "kernel": _kernel_name,
    "trend": _trend,
    "engine": lambda name, value: one_of(name, value, ENGINES),
    "link": lambda name, value: one_of(name, value, LINKS),
    "likelihood": lambda name, value: one_of(name, value, tuple(LIKELIHOODS)),
    "std": lambda name, value: one_of(name, value, STDS),
}  # fmt: skip
