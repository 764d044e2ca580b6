"""Learning of kernel and noise by the Vecchia likelihood (`learning/likelihood.py`), then by the exact bound.

The search has stages: many starts on few data (a single bad start may never find the lengthscale), the best of them on
more, then the best on all points (on some thousand lines or areas, whose likelihood is expensive). No stage needs a large
solve. The last steps maximise the log evidence of all data (`Method.log_evidence_slope` of the given engine), with the
information of the Vecchia likelihood; each is a solve with a few more right-hand sides. The data are first sorted by
place, so that the result does not depend on their order.
"""

import itertools
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from hipgp.engines import Method, Slope
from hipgp.learning.learned import Learned
from hipgp.learning.likelihood import Terms, evaluate, prepare
from hipgp.learning.parameters import Bounds, Evaluation, Layout, bounds
from hipgp.learning.periods import begun, periods_to_try
from hipgp.learning.periods import rungs as repeating_rungs
from hipgp.learning.scoring import Model, Report, climb, descend, uncertainty
from hipgp.learning.units import LearnOptions
from hipgp.model.data import Data, Observations
from hipgp.model.kernel_scales import repeats
from hipgp.model.kernels import Kernel
from hipgp.model.periodic import Periodic
from hipgp.model.problem import Problem
from hipgp.runtime.checkpoints import fingerprint, read_arrays, write_arrays
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Progress
from hipgp.runtime.threads import one_blas_thread

STAGES = (  # number of data, largest number of steps, number of results passed on to the next stage
    (1_024, 12, 2),
    (8_192, 20, 1),
    (122_880, 12, 1),
)
EXPENSIVE_STAGES = ((512, 12, 2), (4_096, 20, 1))  # if covariances are double sums over nodes
ENOUGH = 0.1, 0.05  # nats: least predicted decrease of a step, with further stages to come and without
DONE = 99  # stage number in the checkpoint of completed learning
LADDER = 8  # lengthscales tried
DESCENTS = 4  # number of starts for the first descent
LOOSE = 2.0  # standard error of a logarithm above which its parameter counts as not determined
PROBES = 8  # of the bound's gradient: its error is at most a third of the parameters' standard errors
POLISHED_UP_TO = 100_000  # observations plus grid points up to which steps on the exact bound pay


@one_blas_thread
@float64_available
def learn(problem: Problem, method: Method, how: LearnOptions) -> Learned:
    """Learn kernel and noise with their uncertainty; `how.start` is "data" (search) or "kernel" (start at its values)."""
    began = time.perf_counter()
    start, user_bounds, seed, polish, progress, checkpoint = how
    problem = in_fixed_order(problem)
    task = Task.of(problem, start, user_bounds or {}, seed)
    count, stages = len(problem.data), stages_of(problem.data)
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
        vector, here, seen = _through(task, stages, ENOUGH[0] if exact else ENOUGH[1], saved, save, report)
        value = here.value
        if exact:
            up = _slope(task, method), Model(here.information), task.box, count
            vector, value = climb(vector, *up, report(len(stages), "exact bound"))
            seen = count
    covariance = uncertainty(here.information, seen, task.box.touching(vector))
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
        kernel = _rebuilt(kernel, map(begun, kernel.parts, periods))
        layout = Layout.of(kernel, not np.all(data.noise_known))
        data_std = _std_about_trend(data, columns)
        extent, spacing = np.asarray(grid.upper) - np.asarray(grid.lower), np.asarray(grid.spacing)
        box = bounds(layout, _field_std(data, data_std), spacing, extent, user, data_std)
        problem = problem._replace(kernel=kernel)
        return Task(problem, start, seed, layout, columns, data_std, box, user, periods)

    def terms(self, count: int, best: np.ndarray | None) -> Terms:
        """The likelihood of about `count` observations, with neighbours chosen by the `best` parameters so far."""
        kernel = self.problem.kernel
        unknown = _neutral(kernel, self.extent) if self.start == "data" else kernel
        centre = unknown if best is None else self.layout.kernel(best)
        return prepare(centre, self.problem.data, self.columns, count, self.seed)

    def starts(self, terms: Terms) -> list[np.ndarray]:
        """The values given, or the starts of highest likelihood."""
        if self.start == "kernel":
            return [self.layout.pack(self.problem.kernel, self.problem.noise or 0.3 * self.data_std)]
        starts = _starts(self)
        values = np.array([evaluate(self.box.clip(start), self.layout, terms).value for start in starts])
        ranked = np.argsort(np.round(np.nan_to_num(values, nan=np.inf), 9), kind="stable")
        return [starts[i] for i in ranked[:DESCENTS]]

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
) -> tuple[np.ndarray, Evaluation, int]:
    """The best parameters of the last stage, the likelihood there, and its number of observations."""
    first, vectors = (0, []) if saved is None else (int(saved["stage"]), list(saved["vectors"]))
    for stage, (count, steps, kept) in list(enumerate(stages))[first:]:
        last = stage + 1 == len(stages)
        terms = task.terms(count, vectors[0] if vectors else None)
        vectors = vectors or task.starts(terms)
        at = lambda v, terms=terms: evaluate(v, task.layout, terms)
        least = (enough if last else ENOUGH[0]) / terms.count
        tell = report(stage, f"{stage + 1} of {len(stages)}")
        found = sorted(
            (descend(v, at, task.box, steps, least, tell) for v in vectors), key=lambda end: end[1].value
        )
        vectors = [vector for vector, _ in found[:kept]]
        if not last:
            save(stage=stage + 1, vectors=np.array(vectors))
    best, here = found[0]
    return best, here, terms.count


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

    def at(vector: np.ndarray) -> Slope:
        kernel, found = task.layout.unpack(np.asarray(vector))
        noise = task.problem.noise if found is None else float(found)
        problem = task.problem._replace(kernel=kernel, noise=noise)
        return method.log_evidence_slope(problem, PROBES, jax.random.key(task.seed))

    return at


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


def stages_of(data: Data) -> list[tuple[int, int, int]]:
    """The stages that use more data than the one before."""
    stages = STAGES if all(functional.single for functional in data.functionals) else EXPENSIVE_STAGES
    before = [0, *(count for count, _, _ in stages)]
    return [stage for stage, seen in zip(stages, before, strict=False) if len(data) > seen]


def _neutral(kernel: Kernel, extent: np.ndarray) -> Kernel:
    """The kernel with lengthscales of a tenth of the extent, which define neighbours before anything is learned."""
    whole = lambda part: part.period if isinstance(part, Periodic) else np.max(extent)
    tenth = lambda part: 0.1 * extent if np.ndim(part.lengthscale) else np.asarray(0.1 * whole(part))
    parts = [eqx.tree_at(lambda p: p.lengthscale, part, tenth(part)) for part in kernel.parts]
    return _rebuilt(kernel, iter(parts))


def _std_about_trend(data: Data, columns: np.ndarray) -> float:
    """The standard deviation of the data about the trend."""
    y = np.asarray(data.y, float)
    design = np.concatenate([columns, np.ones((len(y), 1 if columns.shape[1] == 0 else 0))], axis=1)
    rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return float(np.std(rest)) or 1.0


def _field_std(data: Data, data_std: float) -> float:
    """The field's standard deviation from that of the data: the integral along a ray of length L has about L times it."""
    sizes = [np.mean(np.abs(np.sum(b.functional.nodes(1e9).weights, axis=1))) for b in data.blocks]
    return data_std / float(np.median(sizes))


def _starts(task: Task) -> list[np.ndarray]:
    """Starting values: lengthscales from a few cells to the extent in every combination, variances from the data."""
    layout, spacing, extent = task.layout, np.asarray(task.problem.grid.spacing), task.extent
    parts = layout.template.parts
    ladder = np.geomspace(2 * float(np.exp(np.mean(np.log(spacing)))), 0.5 * float(np.max(extent)), LADDER)
    per_axis = np.geomspace(
        2 * spacing, 0.5 * extent, LADDER
    )  # relative to each axis, which may have another unit
    rungs = list(zip(ladder, per_axis, strict=True))
    if any(
        np.ndim(part.lengthscale) for part in parts
    ):  # and equal on all axes: the field of a thin box may be isotropic
        rungs += [(one, np.full(len(spacing), one)) for one in ladder]
    every = [
        repeating_rungs(part, periods) if isinstance(part, Periodic) else rungs
        for part, periods in zip(parts, task.periods, strict=True)
    ]
    # Combinations that differ by exchanging parts of one kind, which do not repeat, are tried once.
    kinds = [(type(p).__name__, np.ndim(p.lengthscale), i * p.repeats) for i, p in enumerate(parts)]
    numbers = itertools.product(*(range(len(own)) for own in every))
    kept = {tuple(sorted(zip(kinds, mixture, strict=True))): mixture for mixture in numbers}
    mixtures = [[own[i] for own, i in zip(every, mixture, strict=True)] for mixture in kept.values()]
    if len(mixtures) > LADDER**2:
        mixtures = [
            mixtures[i] for i in np.random.default_rng(task.seed).permutation(len(mixtures))[: LADDER**2]
        ]
    scale = _field_std(task.problem.data, task.data_std) ** 2
    out = []
    for lengths, factor in itertools.product(mixtures, (0.1, 1.0, 10.0) if len(parts) == 1 else (1.0,)):
        variance = factor * scale / len(parts)
        sized = [_sized(part, variance, *length) for part, length in zip(parts, lengths, strict=True)]
        out.append(layout.pack(_rebuilt(layout.template, iter(sized)), 0.3 * task.data_std))
    return out


def _sized(part: Any, variance: float, one: float, other: Any) -> Any:
    """The part with a variance and a lengthscale: `one`, or `other`, which has one per axis or is a period."""
    length = other if np.ndim(part.lengthscale) else np.asarray(one)
    part = eqx.tree_at(lambda p: (p.variance, p.lengthscale), part, (np.asarray(variance), length))
    return eqx.tree_at(lambda p: p.period, part, np.asarray(other)) if isinstance(part, Periodic) else part


def _rebuilt(kernel: Kernel, parts: Any) -> Kernel:
    """The composite with its elementary kernels replaced, in order."""
    if hasattr(kernel, "left"):
        left = _rebuilt(kernel.left, parts)  # type: ignore[attr-defined]
        return type(kernel)(left, _rebuilt(kernel.right, parts))  # type: ignore[attr-defined,call-arg]
    return next(parts)


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
