"""What an engine is: settings that condition a Gaussian process on data, and the fitted posterior that results.

An engine is a pair of classes, a `Method` (the settings, which users give to `gp.condition`) and a `FittedPosterior`
(the result). To add an engine, subclass both in a new package, and add the method to `ENGINES` in
`files/persistence.py` so that its maps can be loaded. An engine refuses what it cannot do with a ValueError that names
an engine that can; the base class does so for every optional method.
"""

import abc
import copy
import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri

from hipgp.model.arguments import as_float
from hipgp.model.data import Data, check_differentiable, check_inside
from hipgp.model.functionals import Functional
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.likelihood import Likelihood
from hipgp.model.likelihoods import Gaussian
from hipgp.model.packing import Arrays, Json, plain
from hipgp.model.trend import Trend
from hipgp.runtime.progress import Report, silent
from hipgp.scores import LeaveOut

if TYPE_CHECKING:
    import pandas as pd

StdMethod = Literal["auto", "vecchia", "samples", "exact"]


class Problem(NamedTuple):
    """A prior, data and a trend; `noise` is the standard deviation for observations that were given none."""

    kernel: Kernel
    grid: Grid
    data: Data
    noise: float | None
    trend: Trend


class StdOptions(NamedTuple):
    """How to compute standard deviations. An engine refuses options that it does not support."""

    method: StdMethod = "auto"
    samples: int = 64
    key: Any = 0
    columns: Any = None  # trend columns of the predicted functionals, if the user gave the trend as columns
    report: Report = silent


DEFAULT_STD = StdOptions()
EVIDENCE_PROBES = 16  # default number of random vectors in the stochastic estimate of the log evidence


def check_std(how: StdOptions, engine: str, methods: tuple[str, ...]) -> None:
    """Raise a ValueError if options ask an engine with deterministic standard deviations for something else."""
    if how.method not in methods:
        expected = " or ".join(f'"{name}"' for name in methods)
        raise ValueError(
            f"std: expected {expected} with the {engine} engine, got "
            f"{how.method!r}; use method=Batch() to choose how they are computed"
        )
    if how.samples != DEFAULT_STD.samples:
        raise ValueError(
            f"samples: expected none with the {engine} engine, whose standard deviations are not "
            f"sampled, got {how.samples}; leave it out, or use method=Batch()"
        )


class _Moments(NamedTuple):
    mean: Float[np.ndarray, " N"]
    std: Float[np.ndarray, " N"]
    std_error: Float[np.ndarray, " N"] | None = None


class Prediction(_Moments):
    """Mean and standard deviation of functionals of the field, without observation noise.

    `std_error` is the Monte Carlo error of `std` if it was estimated from samples, and None otherwise. `places` holds
    the coordinates of the functionals by column name; `to_frame` includes them.
    """

    places: Mapping[str, np.ndarray] = MappingProxyType({})

    def placed(self, places: Mapping[str, np.ndarray]) -> Self:
        """This prediction with the coordinates of its functionals."""
        found = copy.copy(self)
        found.places = places
        return found

    def to_frame(self) -> "pd.DataFrame":
        """A pandas DataFrame with a row for each functional: its coordinates, mean, std, and std_error where known."""
        import pandas as pd

        found = {name: values for name, values in self._asdict().items() if values is not None}
        return pd.DataFrame({**self.places, **found})

    def with_noise(self, noise: Any) -> "Prediction":
        """The prediction of new measurements, whose independent noise has the standard deviation `noise`."""
        added = as_float("noise", noise, ndim=(0, 1)).astype(float)
        if added.shape not in ((), np.shape(self.mean)) or np.any(added < 0):
            raise ValueError(
                f"noise: expected a standard deviation, or one for each of {len(self.mean)} values, none below 0, got "
                f"{noise!r}"
            )
        std = np.hypot(self.std, added)
        error = (
            None
            if self.std_error is None
            else self.std_error * self.std / np.maximum(std, np.finfo(float).tiny)
        )
        return Prediction(self.mean, std, error).placed(self.places)

    def __repr__(self) -> str:
        few = {name: np.array2string(np.asarray(a), precision=4, threshold=6, edgeitems=2, separator=", ")
               for name, a in self._asdict().items() if a is not None}  # fmt: skip
        return f"Prediction({', '.join(f'{name}={text}' for name, text in few.items())})"

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(max_rows=10)

    def quantile(self, q: Any) -> np.ndarray:
        """The quantiles of every functional at probability `q`, (N,), or at several, (len(q), N)."""
        share = _probability("q", q)
        at = share[:, None] if share.ndim else share
        return self.mean + ndtri(at) * self.std

    def interval(self, p: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the central interval that holds the value with probability `p`."""
        share = float(_probability("p", p))
        lower, upper = self.quantile([0.5 * (1 - share), 0.5 * (1 + share)])
        return lower, upper


def _probability(name: str, value: Any) -> np.ndarray:
    array = as_float(name, value, ndim=(0, 1)).astype(float)
    if np.any((array <= 0) | (array >= 1)):
        raise ValueError(f"{name}: expected probabilities between 0 and 1, got {value!r}")
    return array


class Estimate(NamedTuple):
    """A value and its Monte Carlo standard error."""

    value: float
    error: float


class Gradient(NamedTuple):
    """The derivative of the log evidence in the logarithm of each named parameter."""

    names: tuple[str, ...]
    values: Float[np.ndarray, " p"]


class Slope(NamedTuple):
    """The log evidence and its gradient, estimated from the same random probes."""

    evidence: Estimate
    gradient: Gradient


class FittedPosterior(eqx.Module):
    """The posterior of the field, as computed by one engine."""

    kernel: Kernel
    grid: Grid
    noise: float | None
    method: "Method"
    diagnostics: dict[str, Any] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)  # data type of the map and of samples: that of the data

    @abc.abstractmethod
    def grid_mean(self) -> Float[np.ndarray, "..."]:
        """The posterior mean at the grid points, in the grid's shape."""

    @abc.abstractmethod
    def grid_std(self, how: StdOptions = DEFAULT_STD) -> tuple[np.ndarray, np.ndarray | None]:
        """The standard deviation at the grid points, in the grid's shape, and its Monte Carlo error or None."""

    def grid_quantile(self, q: float) -> Float[np.ndarray, "..."]:
        """The value at each grid point that is not exceeded with probability q."""
        return self.grid_mean() + ndtri(q) * self.grid_std()[0]

    @abc.abstractmethod
    def predict(self, functional: Functional, how: StdOptions = DEFAULT_STD) -> Prediction:
        """Mean and standard deviation of every functional."""

    @abc.abstractmethod
    def sample(
        self,
        count: int,
        key: Any,
        functional: Functional | None = None,
        columns: Any = None,
        report: Report = silent,
    ) -> np.ndarray:
        """`count` joint draws on the grid, (count, *grid.shape), or of functionals, (count, N)."""

    @abc.abstractmethod
    def log_evidence(self, probes: int, key: Any) -> Estimate:
        """The log-probability of the data with the trend's coefficients at their best, or a lower bound of it."""

    @abc.abstractmethod
    def pack(self) -> tuple[Arrays, Json]:
        """The state that only this engine has, as arrays and JSON; `Method.unpack` reads it."""

    def observations(self) -> Data | None:
        """The data, where the engine keeps them."""
        return None

    def conditioned_on(self) -> Problem | None:
        """The problem that was solved, if the engine keeps it; conditioning again on another grid starts from it."""
        return None

    def user_numbers(self) -> Int[np.ndarray, " N"]:
        """The number that the user knows each observation of `conditioned_on` by."""
        return np.arange(len(self.observations() or ()))

    def again(
        self, problem: Problem, kept: Int[np.ndarray, " n"], progress: bool = True
    ) -> "FittedPosterior":
        """The posterior of a problem whose first observations are those numbered `kept` of this one's; more may follow.

        An engine that iterates starts from what it knows of them.
        """
        return self.method.condition(problem, progress)

    def scatter(self, likelihood: Likelihood | None) -> Likelihood:
        """The likelihood of new observations with what was learned filled in; that of the data for None."""
        return Gaussian() if likelihood is None else likelihood.completed({})

    def residuals(self) -> tuple[np.ndarray, np.ndarray] | None:
        """y minus the fitted mean, and the noise std of each observation, where the engine keeps them."""
        return None

    def at_points(self, x: Float[np.ndarray, "N D"], std: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Mean and, where asked for, standard deviation at points that may lie beyond the grid."""
        raise ValueError(self._refusal("predictions beyond the grid", "Batch() or Exact()"))

    def log_evidence_gradient(self, probes: int = EVIDENCE_PROBES, key: Any = 0) -> Gradient:
        """The gradient of the log evidence in the logarithms of the kernel's parameters and the noise."""
        raise ValueError(self._refusal("the gradient of the log evidence", "Batch() or Exact()"))

    def leave_out(self, groups: Any = None) -> LeaveOut:
        """Each observation predicted from the others outside its group; `groups` has a label for each, or is None."""
        raise ValueError(self._refusal("leave-out predictions", "Batch() or Exact()"))

    def _refusal(self, what: str, use: str) -> str:
        return f"method: expected an engine that gives {what}, got {type(self.method).__name__}; use method={use}"


class Method(eqx.Module):
    """Settings of an engine, which condition a problem."""

    name: ClassVar[str]  # in diagnostics and files
    on_grid: ClassVar[bool] = True  # False: the engine evaluates the map on the grid, and computes without it
    linear: ClassVar[bool] = True  # False: the engine takes links and likelihoods other than Gaussian noise

    @abc.abstractmethod
    def condition(self, problem: Problem, progress: bool = True, checkpoint: Any = None) -> FittedPosterior:
        """The posterior of a problem. `checkpoint` names a file that a long fit may resume from."""

    def refit(self, problem: Problem, tolerance: float) -> FittedPosterior:
        """The posterior of a problem that has been checked, to `tolerance` nats where the engine iterates."""
        return self.condition(problem, progress=False)

    @abc.abstractmethod
    def unpack(
        self, kernel: Kernel, grid: Grid, noise: float | None, arrays: Arrays, model: Json
    ) -> FittedPosterior:
        """The posterior that `FittedPosterior.pack` described; a ValueError where something does not fit."""

    def points_per_axis(self, data: Data) -> int:
        """The width of the stencil, in grid points per axis, from which the field at a node is interpolated.

        The default is wide enough to stand for interpolation from the whole grid.
        """
        return 8 if data.ndim <= 2 else 4

    def settings(self) -> Json:
        """The settings as JSON, from which `of_settings` makes the same method."""
        return {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def of_settings(cls, settings: Json) -> "Method":
        """The method that `settings` described."""
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()})

    def log_evidence_slope(self, problem: Problem, probes: int, key: Any) -> Slope:
        """The log evidence of a problem and its gradient, as learning needs them: without checks of the grid."""
        found = self.condition(problem, progress=False)
        return Slope(found.log_evidence(probes, key), found.log_evidence_gradient(probes, key))

    def check(self, kernel: Kernel, grid: Grid, functional: Functional) -> None:
        """Raise a ValueError where this engine cannot observe or predict `functional`."""
        check_inside(functional, grid)
        check_differentiable(kernel.differentiable, functional)


def as_key(key: Any) -> jax.Array:
    """A JAX random key from an int; a JAX key is returned as it is."""
    if isinstance(key, int | np.integer):
        return jax.random.key(int(key))
    return key
