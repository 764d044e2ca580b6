"""Compare kernels on the same data by log evidence, leave-one-out scores, run time and model weights."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hipgp.choices.kernel import penalised
from hipgp.engines import Estimate, Method
from hipgp.gp import GP
from hipgp.learning.parameters import Layout
from hipgp.model.data import Data, check_differentiable
from hipgp.model.grid import Grid
from hipgp.model.kernel_words import kernel_name
from hipgp.model.kernels import Kernel
from hipgp.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Candidate(NamedTuple):
    """One model, learned from the data and conditioned on them."""

    name: str
    gp: GP
    posterior: Posterior
    log_evidence: Estimate
    parameters: int  # how many were learned
    scores: dict[str, float]  # leave-one-out: rmse, crps, log_density, coverage
    seconds: float


class Comparison:
    """The compared models in order of decreasing weight; `best` is the GP of the first."""

    def __init__(self, candidates: list[Candidate], count: int):
        criterion = _criterion(candidates, count)
        order = np.argsort(-criterion, kind="stable")
        shares = np.exp(criterion[order] - np.max(criterion))
        self.candidates = [candidates[i] for i in order]
        self.weights: Float[np.ndarray, " K"] = shares / np.sum(shares)

    @property
    def best(self) -> GP:
        return self.candidates[0].gp

    def __len__(self) -> int:
        return len(self.candidates)

    def __repr__(self) -> str:
        head = "kernel", "log evidence", "parameters", "CRPS", "log density", "coverage", "seconds", "weight"
        rows: list[tuple[str, ...]] = [head]
        for one, weight in zip(self.candidates, self.weights, strict=True):
            evidence = f"{one.log_evidence.value:.1f} ± {one.log_evidence.error:.1f}"
            scores = (f"{one.scores[name]:.4g}" for name in ("crps", "log_density", "coverage"))
            rows.append(
                (one.name, evidence, str(one.parameters), *scores, f"{one.seconds:.1f}", f"{weight:.3f}")
            )
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def plot(self) -> "Figure":
        """Plot the log evidence relative to the best model, with its error, and the mean leave-one-out CRPS."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 1.2 + 0.4 * len(self)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        names, at = [one.name for one in self.candidates], np.arange(len(self))
        values = np.array([one.log_evidence.value for one in self.candidates])
        errors = [one.log_evidence.error for one in self.candidates]
        left.errorbar(values - np.max(values), at, xerr=errors, fmt="o", capsize=3)
        left.set_yticks(at, names)
        left.invert_yaxis()
        left.set_xlabel("log evidence, from the highest")
        right.plot([one.scores["crps"] for one in self.candidates], at, "o")
        right.set_xlabel("leave-one-out CRPS")
        return figure


def compare(
    data: Data,
    kernels: Sequence[Kernel | GP],
    grid: Grid | None = None,
    *,
    noise: float | None = None,
    trend: Any = None,
    method: Any = None,
    key: int = 0,
    progress: bool = True,
) -> Comparison:
    """Learn each kernel from the data, condition on the data, and rank the models.

    A kernel becomes GP(kernel, grid, noise, trend), whose parameters are learned; so are those of a GP that did not come
    from `learn`. The weights follow from the Bayesian information criterion: the log evidence at the learned parameters
    less half the logarithm of the number of observations for each parameter. A sum of kernels always fits at least as
    well as its parts; the penalty asks for an improvement beyond chance.
    """
    if not isinstance(data, Data):
        raise ValueError(f"data: expected something made by observe(...), got {type(data).__name__}")
    models = [_model(one, i, data, grid, noise, trend) for i, one in enumerate(kernels)]
    if not models:
        raise ValueError("kernels: expected at least one kernel or GP, got none")
    found = [_candidate(gp, data, method, key, progress) for gp in models]
    return Comparison(found, len(data))


def _model(one: Any, number: int, data: Data, grid: Grid | None, noise: float | None, trend: Any) -> GP:
    """Make a GP of a kernel, and check a kernel or GP against the data before any work starts."""
    if not isinstance(one, Kernel | GP):
        raise ValueError(
            f"kernels: expected kernels or GPs, got {type(one).__name__} as number {number}; write Matern32(), not Matern32"
        )
    gp = one if isinstance(one, GP) else GP(one, grid, noise, trend)
    try:
        gp.kernel.check_dimension(data.ndim)
        check_differentiable(gp.kernel.differentiable, data)
    except ValueError as error:
        raise ValueError(f"kernels: number {number}, {kernel_name(gp.kernel)}: {error}") from None
    return gp


def _candidate(gp: GP, data: Data, method: Method | None, key: int, progress: bool) -> Candidate:
    began = time.perf_counter()
    learned = gp if gp.learned is not None else gp.learn(data, key=key, progress=progress)
    post = learned.condition(data, method, progress=progress)
    evidence, scores = post.log_evidence(key=key), post.leave_out().scores()
    free = len(Layout.of(learned.kernel, not np.all(data.noise_known)).names())
    name = kernel_name(learned.kernel)
    return Candidate(name, learned, post, evidence, free, scores, time.perf_counter() - began)


def _criterion(candidates: list[Candidate], count: int) -> Float[np.ndarray, " K"]:
    values = np.array([one.log_evidence.value for one in candidates])
    return penalised(values, np.array([one.parameters for one in candidates]), count)
