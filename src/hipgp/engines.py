"""What an engine is: settings that condition a Gaussian process on data, and the fitted posterior that results.

An engine is a pair of classes, a `Method` (the settings, which users give to `gp.condition`) and a `FittedPosterior`
(the result). To add an engine, subclass both in a new package, and add the method to `ENGINES` in
`files/persistence.py` so that its maps can be loaded. An engine refuses what it cannot do with a ValueError that names
an engine that can; the base class does so for every optional method.
"""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float, Int

from hipgp.linalg.rates import Rates
from hipgp.model.data import Data, check_differentiable, check_inside
from hipgp.model.functional import Functional
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.likelihood import Likelihood
from hipgp.model.likelihoods import Gaussian
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend
from hipgp.planning import Part
from hipgp.predictions import DEFAULT_STD, Prediction, SampleOptions, StdOptions
from hipgp.runtime.plain import Arrays, Json, plain
from hipgp.scores import LeaveOut

EVIDENCE_PROBES = 16  # default number of random vectors in the stochastic estimate of the log evidence


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
        return self.grid_mean() + scipy.special.ndtri(q) * self.grid_std()[0]

    @abc.abstractmethod
    def predict(self, functional: Functional, how: StdOptions = DEFAULT_STD) -> Prediction:
        """Mean and standard deviation of every functional."""

    @abc.abstractmethod
    def sample(self, how: SampleOptions, functional: Functional | None = None) -> np.ndarray:
        """Joint draws on the grid, (count, *grid.shape), or of functionals, (count, N)."""

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

    def updated(
        self, problem: Problem, kept: Int[np.ndarray, " n"], progress: bool = True
    ) -> "FittedPosterior":
        """The posterior of a problem whose first observations are those numbered `kept` of this one's; more may follow.

        An engine that iterates starts from what it knows of them.
        """
        return self.method.condition(problem, progress)

    def with_more(self, stream: Any, progress: bool = True) -> "FittedPosterior":
        """The posterior with the observations of a stream as well."""
        raise ValueError(
            "more: expected something made by observe(...), since this map keeps its observations, got a stream"
        )

    def scatter(self, likelihood: Likelihood | None) -> Likelihood:
        """The likelihood of new observations with what was learned filled in; that of the data for None."""
        return Gaussian() if likelihood is None else likelihood.completed({})

    def residuals(self) -> tuple[np.ndarray, np.ndarray] | None:
        """y minus the fitted mean, and the noise std of each observation, where the engine keeps them."""
        return None

    def trend_fit(self) -> tuple[Trend, Float[np.ndarray, " p"], Float[np.ndarray, "p p"]]:
        """The trend, its coefficients and their covariance."""
        raise ValueError(self._refusal("a trend", "Batch() or Exact()"))

    def covariance(self, functional: Functional) -> Float[np.ndarray, "T T"]:
        """The joint covariance of functionals."""
        raise ValueError(self._refusal("joint covariances", "Exact()"))

    def at_points(self, x: Float[np.ndarray, "N D"], std: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Mean and, where asked for, standard deviation at points that may lie beyond the grid."""
        raise ValueError(self._refusal("predictions beyond the grid", "Batch() or Exact()"))

    def predict_beyond(self, x: Float[np.ndarray, "N D"]) -> Prediction:
        """Mean and standard deviation at points that may lie beyond the grid."""
        return Prediction(*self.at_points(x, True))  # type: ignore[arg-type]

    def quick_points(self) -> tuple[int, int]:
        """At how many points `at_points` gives means, and standard deviations, in a few seconds; 0 where it does not."""
        return 0, 0

    def deviations(
        self, count: int, key: Any, tolerance: float, start: Float[np.ndarray, "S N"] | None = None
    ) -> tuple[Float[np.ndarray, "S M"], Float[np.ndarray, "S N"] | None]:
        """Draws on the grid less the mean, each within `tolerance` nats, and what the next call may start from.

        That is A^-1 times each draw's data; the same draws of a slightly different problem are then found sooner.
        """
        drawn = self.sample(SampleOptions(count, key)).reshape(count, -1)
        return np.asarray(drawn, float) - np.asarray(self.grid_mean(), float).ravel(), None

    def reference(self) -> Any:
        """Its mean and covariance as operators, for draws of another posterior that is near."""
        raise ValueError(self._refusal("draws of the true posterior", "Batch()"))

    def log_evidence_gradient(self, probes: int = EVIDENCE_PROBES, key: Any = 0) -> Gradient:
        """The gradient of the log evidence in the logarithms of the kernel's parameters and the noise."""
        raise ValueError(self._refusal("the gradient of the log evidence", "Batch() or Exact()"))

    def leave_out(self, groups: Any = None) -> LeaveOut:
        """Each observation predicted from the others outside its group; `groups` has a label for each, or is None."""
        raise ValueError(self._refusal("leave-out predictions", "Batch() or Exact()"))

    def _refusal(self, what: str, use: str) -> str:
        return f"method: expected an engine that gives {what}, got {type(self.method).__name__}; use method={use}"


class DataPosterior(FittedPosterior):
    """A posterior that keeps its data, and has coefficients of a trend."""

    data: Data
    trend: Trend
    beta: Float[np.ndarray, " p"]
    beta_covariance: Float[np.ndarray, "p p"]

    @property
    def problem(self) -> Problem:
        return Problem(self.kernel, self.grid, self.data, self.noise, self.trend)

    def conditioned_on(self) -> Problem:
        return self.problem

    def observations(self) -> Data:
        return self.data

    def trend_fit(self) -> tuple[Trend, Float[np.ndarray, " p"], Float[np.ndarray, "p p"]]:
        return self.trend, self.beta, self.beta_covariance


class Method(eqx.Module):
    """Settings of an engine, which condition a problem."""

    name: ClassVar[str]  # in diagnostics and files
    exact_evidence: ClassVar[bool] = False  # True: its log evidence is exact, and costs nothing more
    linear: ClassVar[bool] = True  # False: the engine takes links and likelihoods other than Gaussian noise

    @property
    def on_grid(self) -> bool:
        """Whether the engine computes on the grid, or only evaluates its map there."""
        return True

    @property
    def learns(self) -> bool:
        """Whether conditioning changes the kernel."""
        return False

    def on_mesh(self, mesh: Any, grid: Grid) -> "Method":
        """These settings for a fit that is cut over a mesh of devices, or a number of them."""
        raise ValueError(
            f"mesh: expected None with {type(self).__name__}, which computes on one device, got {_shown_mesh(mesh)}; use "
            "method=Batch(), without a link or a likelihood, or leave mesh out"
        )

    def check_memory(self, problem: Problem) -> None:
        """Raise a ValueError with the number of bytes where a fit does not fit into memory; `condition` calls it first."""
        return

    def parts(self, problem: Problem, rates: Rates) -> list[Part]:
        """The parts of a fit and of what may follow, with their memory and expected time; nothing large is computed."""
        raise ValueError(
            f"method: expected an engine that states beforehand what it takes, got {type(self).__name__}; use "
            "method=Batch()"
        )

    @abc.abstractmethod
    def condition(self, problem: Problem, progress: bool = True, checkpoint: Any = None) -> FittedPosterior:
        """The posterior of a problem. `checkpoint` names a file that a long fit may resume from."""

    def condition_finely(
        self, problem: Problem, progress: bool = True, checkpoint: Any = None, *begin: Any
    ) -> FittedPosterior:
        """The posterior of a problem, on a finer grid with the same corners where its own is too coarse, if the engine can tell."""
        return self.condition(problem, progress, checkpoint, *begin)

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


def _shown_mesh(mesh: Any) -> str:
    return f"{mesh} devices" if isinstance(mesh, int) else f"a {type(mesh).__name__}"


def as_key(key: Any) -> jax.Array:
    """A JAX random key from an int; a JAX key is returned as it is."""
    if isinstance(key, int | np.integer):
        return jax.random.key(int(key))
    return key
