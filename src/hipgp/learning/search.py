"""Learning of kernel and noise by the Vecchia likelihood (`learning/likelihood.py`), then by the exact bound.

The search has stages: many starts on few data (a single bad start may never find the lengthscale), the best of them on
more, then the best on all points (on some thousand lines or areas, whose likelihood is expensive). No stage needs a large
solve. The last steps maximise the log evidence of all data (`Method.log_evidence_slope` of the given engine), with the
information of the Vecchia likelihood; each is a solve with a few more right-hand sides. The data are first sorted by
place, so that the result does not depend on their order.
"""

import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from hipgp.engines import Estimate, Method, Slope
from hipgp.learning.learned import Learned, LearnOptions
from hipgp.learning.likelihood import Terms, evaluate, prepare
from hipgp.learning.parameters import Bounds, Evaluation, Layout, bounds
from hipgp.learning.periods import periods_to_try, with_first_period
from hipgp.learning.scoring import Model, Report, climb, descend, uncertainty
from hipgp.learning.starts import field_std, neutral, rebuilt, starting_values, std_about_trend
from hipgp.model.data import Data, Observations
from hipgp.model.kernel_scales import repeats
from hipgp.model.problem import Problem
from hipgp.runtime.checkpoints import fingerprint, read_arrays, write_arrays
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Progress
from hipgp.runtime.threads import one_blas_thread

End = tuple[np.ndarray, Evaluation]  # parameters, and the likelihood there

STAGES = (  # number of data, largest number of steps, number of results passed on to the next stage
    (2_048, 12, 4),
    (16_384, 20, 3),
    (122_880, 12, 2),
)
EXPENSIVE_STAGES = ((512, 12, 2), (4_096, 20, 2))  # if covariances are double sums over nodes
ENOUGH = 0.1, 0.05  # nats: least predicted decrease of a step, with further stages to come and without
DISTINCT = 5.0  # nats by which results of one stage differ that are both passed on
# Nats in all, or an observation, by which the Vecchia likelihood may misjudge a difference of results.
UNSURE = 1.0, 3e-4
FINE = 0.01  # of what it may misjudge: the least predicted decrease of a step of the last stage
DONE = 99  # stage number in the checkpoint of completed learning
DESCENTS = 4  # number of starts for the first descent, for each part of the kernel
LOOSE = 2.0  # standard error of a logarithm above which its parameter counts as not determined
PROBES = 8  # of the bound's gradient: its error is at most a third of the parameters' standard errors
JUDGES = 16  # probes of the log evidence where it only decides between results
POLISHED_UP_TO = 100_000  # observations plus grid points up to which steps on the exact bound pay
JUDGED_UP_TO = 500_000  # and up to which it is evaluated to choose between results


@one_blas_thread
@float64_available
def learn(problem: Problem, method: Method, how: LearnOptions) -> Learned:
    """Learn kernel and noise with their uncertainty; `how.start` is "data" (search) or "kernel" (start at its values)."""
    began = time.perf_counter()
    start, user_bounds, seed, polish, progress, checkpoint, most = how
    problem = in_fixed_order(problem)
    task = Task.of(problem, start, user_bounds or {}, seed)
    count, stages = len(problem.data), stages_of(problem.data, most)
    # a kernel that repeats asks for a grid in step with it
    usual = count + problem.grid.size <= POLISHED_UP_TO and not repeats(problem.kernel)
    exact = usual if polish is None else polish
    trace: list[dict[str, Any]] = []
    wanted = sorted((user_bounds or {}).items())
    digest = fingerprint(*problem, start, seed, wanted, stages, exact)
    save = lambda **arrays: (
        checkpoint is None or write_arrays(pathlib.Path(checkpoint), fingerprint=digest, **arrays)
    )
    saved = None if checkpoint is None else read_arrays(pathlib.Path(checkpoint), digest, "stage", "vectors")
    if saved is not None and int(saved["stage"]) == DONE:
        done = saved["vectors"][0], saved["covariance"], float(saved["value"])
        return _learned(task, *done, trace, began)
    with Progress("learning", progress) as bar:
        report = lambda stage, shown: _reporter(bar, trace, shown, stage, task.layout)
        ends, used = _through(task, stages, ENOUGH[0] if exact else ENOUGH[1], saved, save, report)
        (vector, here), slope = ends[0], None
        value = here.value
        up, shown = _slope(task, method), report(len(stages), "exact bound")
        judged = exact or (
            polish is None and count + problem.grid.size <= JUDGED_UP_TO and not repeats(problem.kernel)
        )
        if judged and len(ends) > 1:  # the Vecchia likelihood cannot tell which is better
            slopes = [up(v) for v, _ in ends] if exact else []
            evidence = [one.evidence for one in slopes] or [_evidence(task, method, v) for v, _ in ends]
            for (v, _), found in zip(ends, evidence, strict=True):
                shown(v, -found.value / count)
            best = int(np.argmax([found.value for found in evidence]))
            (vector, here), value = ends[best], -evidence[best].value / count
            slope = slopes[best] if exact else None
        if exact:
            model = Model(here.information)
            vector, value = climb(vector, up, model, task.box, count, shown, slope)
            used = count
    covariance = uncertainty(here.information, used, task.box.touching(vector))
    save(stage=DONE, vectors=vector[None], covariance=covariance, value=value)
    return _learned(task, vector, covariance, float(value), trace, began)


class Task(NamedTuple):
    """A learning problem: model, data, free parameters, and the scales that set starting values and bounds."""

    problem: Problem  # its kernel with periods to start from
    start: str
    seed: int
    layout: Layout
    columns: Float[np.ndarray, "N p"]
    data_std: float
    box: Bounds
    user: dict[str, Any]  # bounds that the user gave
    periods: list[list[float]]  # to start from, for each part of the kernel

    @staticmethod
    def of(problem: Problem, start: str, user: dict[str, Any], seed: int) -> "Task":
        kernel, grid, data, _, trend = problem
        columns = trend.of_data(data, grid)
        periods = periods_to_try(kernel, data, columns)
        kernel = rebuilt(kernel, map(with_first_period, kernel.parts, periods))
        layout = Layout.of(kernel, not np.all(data.noise_known))
        data_std = std_about_trend(data, columns)
        extent, spacing = np.asarray(grid.upper) - np.asarray(grid.lower), np.asarray(grid.spacing)
        box = bounds(layout, field_std(data, data_std), spacing, extent, user, data_std)
        problem = problem._replace(kernel=kernel)
        return Task(problem, start, seed, layout, columns, data_std, box, user, periods)

    def at(self, vector: np.ndarray) -> Problem:
        """The problem with the kernel and the noise of a vector."""
        kernel, found = self.layout.unpack(np.asarray(vector))
        return self.problem._replace(
            kernel=kernel, noise=self.problem.noise if found is None else float(found)
        )

    def terms(self, count: int, best: np.ndarray | None) -> Terms:
        """The likelihood of about `count` observations, with neighbours chosen by the `best` parameters so far."""
        kernel = self.problem.kernel
        unknown = neutral(kernel, self.extent) if self.start == "data" else kernel
        centre = unknown if best is None else self.layout.kernel(best)
        return prepare(centre, self.problem.data, self.columns, count, self.seed)

    def starts(self, terms: Terms) -> list[np.ndarray]:
        """The values given, or the starts of highest likelihood."""
        if self.start == "kernel":
            return [self.layout.pack(self.problem.kernel, self.problem.noise or 0.3 * self.data_std)]
        starts = starting_values(
            self.layout, np.asarray(self.problem.grid.spacing), self.extent, self.periods,
            field_std(self.problem.data, self.data_std), self.data_std, self.seed,
        )  # fmt: skip
        values = np.array([evaluate(self.box.clip(start), self.layout, terms).value for start in starts])
        ranked = np.argsort(np.round(np.nan_to_num(values, nan=np.inf), 9), kind="stable")
        return [starts[i] for i in ranked[: DESCENTS * len(self.layout.template.parts)]]

    @property
    def extent(self) -> Float[np.ndarray, " D"]:
        return np.asarray(self.problem.grid.upper) - np.asarray(self.problem.grid.lower)


def _through(
    task: Task,
    stages: list[tuple[int, int, int]],
    enough: float,
    saved: dict[str, np.ndarray] | None,
    save: Callable[..., Any],
    report: Callable[[int, str], Report],
) -> tuple[list[End], int]:
    """The best results of the last stage, which its likelihood cannot tell apart, and its number of observations."""
    first, vectors = (0, []) if saved is None else (int(saved["stage"]), list(saved["vectors"]))
    for stage, (count, steps, kept) in list(enumerate(stages))[first:]:
        last = stage + 1 == len(stages)
        terms = task.terms(count, vectors[0] if vectors else None)
        vectors = vectors or task.starts(terms)
        at = lambda v, terms=terms: evaluate(v, task.layout, terms)
        unsure = max(UNSURE[0] / terms.count, UNSURE[1])
        least = max(enough / terms.count, FINE * unsure) if last else ENOUGH[0] / terms.count
        report_step, ends, rival = report(stage, f"{stage + 1} of {len(stages)}"), [], np.inf
        for vector in vectors:
            ends.append(descend(vector, at, task.box, steps, least, report_step, rival))
            rival = min(rival, ends[-1][1].value + unsure) if last else np.inf
        found = sorted(ends, key=lambda end: end[1].value)
        kept_ends = _distinct(found, kept, terms.count)
        vectors = [vector for vector, _ in kept_ends]
        if not last:
            save(stage=stage + 1, vectors=np.array(vectors))
    return [end for end in kept_ends if end[1].value <= found[0][1].value + unsure], terms.count


def _distinct(found: list[End], most: int, count: int) -> list[End]:
    """The best results, at most `most`, that are apart from each other by more than DISTINCT nats of the likelihood."""
    kept: list[End] = []
    for vector, end in found:
        apart = [0.5 * count * (v - vector) @ e.information @ (v - vector) for v, e in kept]
        if len(kept) < most and all(nats > DISTINCT for nats in apart):
            kept.append((vector, end))
    return kept


def in_fixed_order(problem: Problem) -> Problem:
    """The problem with its observations sorted by place, which does not depend on their given order."""

    def order_of(block: Observations) -> np.ndarray:
        places = np.asarray(block.functional.places(), float).reshape(len(block.y), -1)
        noise = [] if block.noise is None else [block.noise]
        return np.lexsort([block.y, *noise, *places.T[::-1]])

    data, order = problem.data.reordered(order_of)
    parts = np.split(order, np.cumsum([len(block.y) for block in data.blocks])[:-1])
    first = lambda part: (type(part[0].functional).__name__, len(part[0].y), float(part[0].y[0]))
    blocks, orders = zip(*sorted(zip(data.blocks, parts, strict=True), key=first), strict=True)
    return problem._replace(data=Data(blocks), trend=problem.trend.in_order(np.concatenate(orders)))


def _slope(task: Task, method: Method) -> Callable[[np.ndarray], Slope]:
    """The engine's log evidence and its gradient, with the same probes at every step."""
    key = jax.random.key(task.seed)
    return lambda vector: method.log_evidence_slope(task.at(vector), PROBES, key)


def _evidence(task: Task, method: Method, vector: np.ndarray) -> Estimate:
    """The engine's log evidence, with the same probes for every vector."""
    post = method.refit(task.at(vector), np.inf)
    return post.log_evidence(JUDGES, jax.random.key(task.seed))


def _learned(
    task: Task,
    vector: np.ndarray,
    covariance: np.ndarray,
    value: float,
    trace: list[dict[str, Any]],
    began: float,
) -> Learned:
    kernel, found = task.layout.unpack(np.asarray(vector))
    names, loose = task.layout.names(), task.box.touching(vector) | (np.diag(covariance) > LOOSE**2)
    return Learned(
        jax.tree.map(lambda a: np.asarray(a, float), kernel),
        task.problem.noise if found is None else float(found),
        names,
        np.exp(vector),
        covariance,
        [name for name, on in zip(names, loose, strict=True) if on],
        value,
        dict(task.user),
        trace,
        time.perf_counter() - began,
    )


def stages_of(data: Data, most: int | None = None) -> list[tuple[int, int, int]]:
    """The stages that use more data than the one before, each at most `most` of them."""
    stages = STAGES if all(functional.single for functional in data.functionals) else EXPENSIVE_STAGES
    before = [0, *(count for count, _, _ in stages)]
    room = len(data) if most is None else min(most, len(data))
    kept = [stage for stage, used_before in zip(stages, before, strict=False) if room > used_before]
    return kept if most is None else [(min(count, most), *rest) for count, *rest in kept]  # type: ignore[misc]


def count_in_stages(data: Data, most: int) -> int:
    """About how many observations the last stage sees."""
    return min(len(data), stages_of(data, most)[-1][0])


def log_likelihoods(found: list[Learned], problem: Problem, most: int, seed: int) -> Float[np.ndarray, " K"]:
    """The log likelihoods of learned kernels, all of the same observations, at most `most` of them.

    Observations are chosen by groups, which depend on the kernel: where some are left out, the likelihoods are computed again
    with the groups of the best.
    """
    count = count_in_stages(problem.data, most)
    objectives = np.array([one.objective for one in found])
    if count == len(problem.data):
        return -count * objectives
    _, grid, data, _, trend = in_fixed_order(problem)
    best = found[int(np.argmin(objectives))].kernel
    terms = prepare(best, data, trend.of_data(data, grid), count, seed)
    at = lambda one: evaluate(one.layout.pack(one.kernel, one.noise), one.layout, terms).value
    return -count * np.array([at(one) for one in found])


def _reporter(
    bar: Progress, trace: list[dict[str, Any]], shown_stage: str, stage: int, layout: Layout
) -> Report:
    names = layout.names()

    def report(vector: np.ndarray, value: float) -> None:
        trace.append(
            {"stage": stage, "objective": value, **dict(zip(names, np.exp(vector).tolist(), strict=True))}
        )
        shown = ", ".join(f"{n} {v:.3g}" for n, v in zip(names, np.exp(vector), strict=True))
        bar.update(f"stage {shown_stage}, {value:.4f} nats a datum: {shown}")

    return report
