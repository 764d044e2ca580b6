"""The options and the result of learning, in the unit of the data and in one in which no number overflows."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hipgp.learning.parameters import Layout
from hipgp.model import dates, scaling
from hipgp.model.frames import Frame
from hipgp.model.kernels import Kernel
from hipgp.model.problem import Problem
from hipgp.runtime.shown import as_html, as_text

SMALL = 0.5  # standard error of a logarithm up to which it is shown in percent of the parameter


class LearnOptions(NamedTuple):
    """The options of `GP.learn`."""

    start: str = "data"
    bounds: dict[str, tuple[float, float]] | None = None
    key: int = 0
    polish: bool | None = None
    progress: bool = True
    checkpoint: Any = None
    most: int | None = None  # observations whose likelihood is computed, at most


class Learned(NamedTuple):
    """The result of learning: parameters with their uncertainty, and the course of the optimisation.

    `log_covariance` is the covariance of the logarithms of `values`, from the Fisher information. A parameter that the
    data do not determine, or that lies on a bound, has infinite variance and zero covariances.
    """

    kernel: Kernel
    noise: float | None
    names: list[str]
    values: Float[np.ndarray, " p"]
    log_covariance: Float[np.ndarray, "p p"]
    undetermined: list[str]  # parameters on their bound: the data do not determine them
    objective: float  # negative log-likelihood per observation
    bounds: dict[str, Any]  # the bounds that the user gave
    trace: list[dict[str, Any]]
    seconds: float
    frame: Frame = Frame()  # the units of the data
    choice: str = ""  # why this kernel, where the data chose it

    @property
    def log_std(self) -> Float[np.ndarray, " p"]:
        """The standard error of each parameter's logarithm: 0.1 is about 10% of the parameter."""
        return np.sqrt(np.diag(self.log_covariance))

    @property
    def layout(self) -> Layout:
        """The layout of the parameters in `values`."""
        return Layout.of(self.kernel, "noise" in self.names)

    def shown(self) -> list[str]:
        """A text for each parameter, such as "noise 0.05 ± 4%"."""
        return [f"{name} {text}" for name, text in self.rows.items()]

    @property
    def rows(self) -> dict[str, str]:
        """The value and the error of each parameter as text, by name."""
        rows = zip(self.names, self.values, self.log_std, strict=True)
        return {name: f"{self._value(name, value)} {_error(std)}" for name, value, std in rows}

    @property
    def labelled_rows(self) -> dict[str, str]:
        """The rows under names such as "learned noise", for a table with other rows."""
        return {f"learned {name}": text for name, text in self.rows.items()}

    def _value(self, name: str, value: float) -> str:
        """The value of a parameter as text; lengthscales and periods have their unit."""
        parameter, _, axis = name.split(".")[-1].partition("[")
        if parameter not in ("lengthscale", "period") or not self.frame.axes:
            return f"{value:.4g}"
        units = self.frame.axes if not axis else (self.frame.axes[int(axis[:-1])],)
        return dates.length(value, units[0] if len(set(units)) == 1 else "")

    def _shown(self) -> tuple[str, dict[str, str]]:
        chosen = {"chosen": self.choice} if self.choice else {}
        return (
            f"learned in {self.seconds:.1f} s, {self.objective:.4g} nats an observation",
            chosen | self.rows,
        )

    def __repr__(self) -> str:
        return as_text(*self._shown())

    def _repr_html_(self) -> str:
        return as_html(*self._shown())


class WeightedKernels(NamedTuple):
    """Kernels, each with the noise that goes with it, and their probabilities.

    `log_likelihoods` are those that the weights come from, None where they come from a normal distribution.
    """

    kernels: list[Kernel]
    noises: list[float | None]
    weights: Float[np.ndarray, " K"]
    log_likelihoods: Float[np.ndarray, " K"] | None
    reason: str


def _error(std: float) -> str:
    """The standard error of a logarithm as text."""
    if not np.isfinite(std):
        return "(not determined)"
    return f"± {100 * std:.2g}%" if std <= SMALL else f"(to a factor of {np.exp(min(std, 100.0)):.3g})"


class ScaledTask(NamedTuple):
    """A problem and options of learning, y and all that goes with it divided by 2^unit."""

    problem: Problem
    how: LearnOptions
    unit: int


def scaled_task(problem: Problem, how: LearnOptions) -> ScaledTask:
    """The task in a unit in which no number overflows; `in_unit` takes what was learned back to the data's own."""
    kernel, _, data, noise, _ = problem
    scaling.check_learnable(data)
    start = kernel if how.start == "kernel" else None  # otherwise its variance is not used
    unit = scaling.exponent(start, data, noise)
    scaled, data, noise = scaling.scaled(start, data, noise, -unit)
    problem = problem._replace(kernel=kernel if scaled is None else scaled, data=data, noise=noise)
    return ScaledTask(problem, how._replace(bounds=scaling.scaled_bounds(how.bounds, -unit)), unit)


def in_unit(learned: Learned, power: int) -> Learned:
    """Convert a result learned from data divided by 2^power to the unit of the data themselves."""
    if power == 0:
        return learned
    kernel, noise = scaling.scaled_kernel(learned.kernel, power), scaling.scaled_noise(learned.noise, power)
    layout = learned.layout
    one = layout.pack(scaling.scaled_kernel(layout.template, 1), 2.0) - layout.pack(layout.template, 1.0)
    powers = np.rint(one / np.log(2)).astype(int) * power  # of each parameter
    shift = power * float(np.log(2))
    times = dict(zip(learned.names, powers.tolist(), strict=True))
    trace = [
        {k: float(np.ldexp(v, times[k])) if k in times else v for k, v in step.items()}
        | {"objective": step["objective"] + shift}
        for step in learned.trace
    ]
    return learned._replace(
        kernel=kernel, noise=noise, values=np.ldexp(learned.values, powers), objective=learned.objective + shift,
        bounds=scaling.scaled_bounds(learned.bounds, power) or {}, trace=trace,
    )  # fmt: skip
