"""The posterior as a mixture over kernels, where the data leave kernel and noise uncertain.

    p(f | y) = sum over k of weight_k p(f | y, kernel_k, noise_k)

The kernels and their weights are those of `learning/integration.py`. Every part is a posterior of the same engine, so all
that this needs is the engines' protocol: means are averaged, to the mean of the variances comes the variance of the
means, a draw comes from a part drawn by weight, and quantiles are those of the mixture, which is no normal distribution.
"""

import time
import warnings
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float

from hipgp.engines import Estimate, FittedPosterior, Method
from hipgp.learning.learned import WeightedKernels
from hipgp.linalg.rates import Rates
from hipgp.model.data import Data
from hipgp.model.functionals import Functional, Points
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import shortest_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.model.likelihood import Likelihood
from hipgp.model.packing import Arrays, Json, check_shapes, kernel_from_json, kernel_to_json
from hipgp.model.problem import Problem
from hipgp.planning import Part
from hipgp.predictions import (
    DEFAULT_STD,
    MixturePrediction,
    Prediction,
    SampleOptions,
    StdOptions,
    mixture_moments,
)
from hipgp.runtime import memory
from hipgp.runtime.callers import warn_caller
from hipgp.runtime.plain import plain
from hipgp.runtime.progress import Progress, silent
from hipgp.scores import LeaveOut

NO_RATES = Rates(*np.ones(len(Rates._fields)))  # bytes do not depend on them


class Averaged(Method):
    """An engine that conditions with several kernels: made by `GP.condition(data, hyperparameters="average")`."""

    name: ClassVar[str] = "averaged"
    method: Method
    over: WeightedKernels

    @property
    def on_grid(self) -> bool:
        return self.method.on_grid

    def check(self, kernel: Kernel, grid: Grid, functional: Functional) -> None:
        self.method.check(kernel, grid, functional)

    def points_per_axis(self, data: Data) -> int:
        return self.method.points_per_axis(data)

    def shortest(self, ndim: int) -> Kernel:
        """The kernel that needs the finest grid."""
        return min(self.over.kernels, key=lambda kernel: float(np.prod(shortest_lengthscale(kernel, ndim))))

    def check_memory(self, problem: Problem) -> None:
        """Raise DoesNotFit if one posterior does not fit into memory, or if those of all kernels together do not."""
        for one in self._problems(problem):
            self.method.check_memory(one)
        count = len(self.over.kernels)
        hardest = problem._replace(kernel=self.shortest(problem.grid.ndim))
        each = [part for part in self.method.parts(hardest, NO_RATES) if not part.optional]
        kept = sum(part.kept for part in each if part.name != "compilation")
        what = f"{count} posteriors, one for each kernel, of {memory.shown(kept)} each"
        memory.check("hyperparameters", what, count * kept, 'use hyperparameters="best"')

    def parts(self, problem: Problem, rates: Rates) -> list[Part]:
        """The parts of a posterior for each kernel, which are computed one after the other and are all kept."""
        each = [self.method.parts(one, rates) for one in self._problems(problem)]
        out: list[Part] = []
        for same in zip(*each, strict=True):
            first, kept = same[0], sum(part.kept for part in same)
            if first.name == "compilation":
                out.append(first)
                continue
            peak = max(part.bytes for part in same) + kept - first.kept
            seconds, work = sum(part.seconds for part in same), f"{first.work}; for {len(same)} kernels"
            out.append(first._replace(bytes=peak, kept=kept, seconds=seconds, work=work))
        return out

    def _problems(self, problem: Problem) -> list[Problem]:
        each = zip(self.over.kernels, self.over.noises, strict=True)
        return [problem._replace(kernel=kernel, noise=noise) for kernel, noise in each]

    def condition(
        self, problem: Problem, progress: bool = True, checkpoint: Any = None
    ) -> "AveragedPosterior":
        self.check_memory(problem)
        began, parts, count = time.perf_counter(), [], len(self.over.kernels)
        with Progress("conditioning", progress) as bar, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for one in self._problems(problem):
                parts.append(self.method.condition(one, progress=False))
                bar.done(len(parts), count)
        _warn_once(caught)
        weights, info = self._weights(problem, parts), {"seconds": time.perf_counter() - began}
        return self._posterior(problem, parts, weights, _diagnostics(parts, weights, self.over.reason) | info)

    def condition_finely(
        self, problem: Problem, progress: bool = True, checkpoint: Any = None, *begin: Any
    ) -> "AveragedPosterior":
        """On the grid that the kernel which needs the finest one is conditioned on, for all kernels."""
        size = lambda one: float(np.prod(shortest_lengthscale(one.kernel, problem.grid.ndim)))
        hardest = min(self._problems(problem), key=size)
        grid = self.method.condition_finely(hardest, progress=False).grid
        return self.condition(problem._replace(grid=grid), progress)

    def _weights(self, problem: Problem, parts: list[FittedPosterior]) -> Float[np.ndarray, " K"]:
        """The weights with the trend integrated over, by the engine's own log evidence where it states the model's exactly.

        A likelihood at the best coefficients beta, times the root of the determinant of their covariance, is the integral over
        them but for a factor that is the same for all kernels.
        """
        likelihoods, shift = self.over.log_likelihoods, np.zeros(len(parts))
        if problem.trend.kind is not None:
            shift = np.array([np.linalg.slogdet(part.trend_fit()[2])[1] / 2 for part in parts])
        if likelihoods is not None and self.method.exact_evidence:
            shift += np.array([part.log_evidence(0, None).value for part in parts]) - likelihoods
        shares = self.over.weights * np.exp(shift - np.max(shift))
        return shares / np.sum(shares)

    def _posterior(
        self, problem: Problem, parts: list[FittedPosterior], weights: np.ndarray, info: dict[str, Any]
    ) -> "AveragedPosterior":
        model_state = problem.kernel, problem.grid, problem.noise, self, info, parts[0].dtype
        return AveragedPosterior(*model_state, parts, weights)

    def settings(self) -> Json:
        kernels, noises, weights, likelihoods, reason = self.over
        return {
            "method": {"name": self.method.name, "settings": self.method.settings()},
            "kernels": [kernel_to_json(kernel) for kernel in kernels],
            "noises": noises,
            "weights": weights.tolist(),
            "log_likelihoods": None if likelihoods is None else likelihoods.tolist(),
            "reason": reason,
        }

    @classmethod
    def of_settings(cls, settings: Json) -> "Averaged":
        kernels = [kernel_from_json(kernel) for kernel in settings["kernels"]]
        logs = settings["log_likelihoods"]
        logs = None if logs is None else np.asarray(logs, float)
        weights = np.asarray(settings["weights"], float)
        over = WeightedKernels(kernels, settings["noises"], weights, logs, settings["reason"])
        return cls(settings["method"], over)

    def unpack(
        self, kernel: Kernel, grid: Grid, noise: float | None, arrays: Arrays, model: Json
    ) -> "AveragedPosterior":
        parts, shared = [], {name: array for name, array in arrays.items() if not name.startswith("part")}
        models = zip(self.over.kernels, self.over.noises, model["parts"], strict=True)
        for number, (its_kernel, its_noise, described) in enumerate(models):
            prefix = f"part{number}_"
            of_part = {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}
            parts.append(self.method.unpack(its_kernel, grid, its_noise, shared | of_part, described))
        check_shapes(arrays, {"weights": (len(parts),)})
        model_state = kernel, grid, noise, self, model["diagnostics"], parts[0].dtype
        return AveragedPosterior(*model_state, parts, arrays["weights"])


class AveragedPosterior(FittedPosterior):
    """A mixture of posteriors that differ in their kernels and noises; kernel and noise are those that were learned."""

    method: Averaged
    parts: list[FittedPosterior]
    weights: Float[np.ndarray, " K"]

    def grid_mean(self) -> Float[np.ndarray, "..."]:
        means = np.array([part.grid_mean() for part in self.parts], float)
        return np.tensordot(self.weights, means, 1).astype(self.dtype)

    def grid_std(self, how: StdOptions = DEFAULT_STD) -> tuple[np.ndarray, np.ndarray | None]:
        of_parts = []
        for part in self.parts:
            std, error = part.grid_std(how)
            of_parts.append(Prediction(np.asarray(part.grid_mean(), float), np.asarray(std, float), error))
        found = mixture_moments(self.weights, of_parts)
        error = None if found.std_error is None else found.std_error.astype(self.dtype)
        return found.std.astype(self.dtype), error

    def grid_quantile(self, q: float) -> Float[np.ndarray, "..."]:
        return self.predict(Points(self.grid.coordinates())).quantile(q).reshape(self.grid.shape)

    def scatter(self, likelihood: Likelihood | None) -> Likelihood:
        return self.parts[0].scatter(likelihood)

    def predict(self, functional: Functional, how: StdOptions = DEFAULT_STD) -> Prediction:
        parts = []
        for part in self.parts:
            parts.append(part.predict(functional, how._replace(report=silent)))
            how.report(len(parts), len(self.parts))
        return self._mixture(parts)

    def sample(self, how: SampleOptions, functional: Functional | None = None) -> np.ndarray:
        """Draws of parts that were drawn by weight, as evenly as can be, in random order."""
        count, key, columns, report = how
        of_part, of_order, *keys = jax.random.split(key, 2 + len(self.parts))
        at = (np.arange(count) + float(jax.random.uniform(of_part))) / count
        counts = np.bincount(np.searchsorted(np.cumsum(self.weights)[:-1], at), minlength=len(self.parts))
        drawn, done = [], 0
        for part, part_key, number in zip(self.parts, keys, counts, strict=True):
            if number:
                drawn.append(part.sample(SampleOptions(int(number), part_key, columns), functional))
                report(done := done + int(number), count)
        return np.concatenate(drawn)[np.asarray(jax.random.permutation(of_order, count))]

    def at_points(self, x: Float[np.ndarray, "N D"], std: bool) -> tuple[np.ndarray, np.ndarray | None]:
        found = self.predict_beyond(x)
        return found.mean, found.std if std else None

    def predict_beyond(self, x: Float[np.ndarray, "N D"]) -> Prediction:
        return self._mixture([part.predict_beyond(x) for part in self.parts])

    def quick_points(self) -> tuple[int, int]:
        means, deviations = self.parts[0].quick_points()
        return means // len(self.parts), deviations // len(self.parts)

    def log_evidence(self, probes: int, key: Any) -> Estimate:
        raise ValueError(self._refusal("the log evidence of one kernel", ""))

    def leave_out(self, groups: Any = None) -> LeaveOut:
        """The weights of the kernels stay as they are; means and standard deviations are those of the mixture."""
        found = [part.leave_out(groups) for part in self.parts]
        mixed = mixture_moments(self.weights, [Prediction(one.mean, one.std) for one in found])
        return found[0]._replace(
            mean=mixed.mean, std=mixed.std, std_error=max(one.std_error for one in found)
        )

    def observations(self) -> Data | None:
        return self.parts[0].observations()

    def updated(self, problem: Problem, kept: Any, progress: bool = True) -> FittedPosterior:
        raise ValueError(
            'hyperparameters: expected a posterior of one kernel to update, got one with hyperparameters="average"; condition '
            "anew on all data"
        )

    def conditioned_on(self) -> Problem | None:
        problem = self.parts[0].conditioned_on()
        return None if problem is None else problem._replace(kernel=self.kernel, noise=self.noise)

    def residuals(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The residuals of the averaged mean, and each observation's noise, averaged."""
        found = [part.residuals() for part in self.parts]
        known = [one for one in found if one is not None]
        if len(known) < len(found):
            return None
        away, std = (self.weights @ np.array(list(each)) for each in zip(*known, strict=True))
        return away, std

    def pack(self) -> tuple[Arrays, Json]:
        """The packed parts; an array that all of them share, such as the data, is stored once."""
        packed = [part.pack() for part in self.parts]
        first = packed[0][0]
        same = {
            name
            for name in first
            if all(name in arrays and np.array_equal(arrays[name], first[name]) for arrays, _ in packed)
        }
        arrays: Arrays = {name: first[name] for name in same} | {"weights": self.weights}
        for number, (of_part, _) in enumerate(packed):
            arrays |= {f"part{number}_{name}": array for name, array in of_part.items() if name not in same}
        parts = [
            described | {"diagnostics": plain(part.diagnostics)}
            for part, (_, described) in zip(self.parts, packed, strict=True)
        ]
        return arrays, {"parts": parts}

    def _mixture(self, parts: list[Prediction]) -> Prediction:
        return MixturePrediction.of(self.weights, parts, [part.noise for part in self.parts])

    def _refusal(self, what: str, use: str) -> str:
        return (
            f'hyperparameters: expected "best" for {what}, got a posterior averaged over {len(self.parts)} kernels; '
            'condition without hyperparameters="average"'
        )


def _diagnostics(parts: list[FittedPosterior], weights: np.ndarray, reason: str) -> dict[str, Any]:
    """The diagnostics of the part with the most weight, but of errors of the solve and the grid the largest of all parts."""
    info = dict(parts[int(np.argmax(weights))].diagnostics)
    for name in ("kl_nats", "iterations", "clipped_mass", "grid_mean_error", "grid_std_error"):
        if all(name in part.diagnostics for part in parts):
            info[name] = max(part.diagnostics[name] for part in parts)
    if "converged" in info:
        info["converged"] = all(part.diagnostics["converged"] for part in parts)
    return info | {"hyperparameters": reason, "weights_of_kernels": weights.tolist()}


def _warn_once(caught: list[warnings.WarningMessage]) -> None:
    """Show each warning once, however many parts raise it."""
    kinds: dict[type[Warning], Any] = {}
    for one in caught:
        kinds.setdefault(one.category, one.message)
    for category, message in kinds.items():
        warn_caller(str(message), category)
