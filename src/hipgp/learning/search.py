"""Learning kernel, noise and trend from the data: by the Vecchia likelihood (`learning/likelihood.py`), then by the exact bound.

The search goes from coarse to fine: many starts on few data (a lengthscale cannot be found from one bad start), the
best one on more, then on all (of points; of lines and areas, whose likelihood is dear, on some thousands). None of that
needs a large solve. The last steps are Newton's on the collapsed bound of all the data (`Method.log_evidence_slope` of the engine
given), each a solve with a few more right-hand sides, with the Vecchia likelihood's curvature.
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

from hipgp.engines import Method, Problem, Slope
from hipgp.learning.descent import Report, climb, curved_at, descend, newton, uncertainty
from hipgp.learning.likelihood import Terms, prepare, value_and_gradient
from hipgp.learning.parameters import Bounds, Layout, bounds
from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.scaling import scaled_kernel, scaled_noise
from hipgp.model.trend import Trend
from hipgp.runtime.checkpoints import fingerprint, read_arrays, write_arrays
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Progress
from hipgp.runtime.threads import one_blas_thread

STAGES = (  # data, share of the preconditioner's neighbours, iterations at most
    (1_024, 0.35, 12),
    (8_192, 1.0, 25),
    (122_880, 1.0, 0),
)
DEAR_STAGES = (STAGES[0], (4_096, 1.0, 25))  # where covariances are double sums over nodes
DONE = 99  # the stage in the checkpoint of one that came to its end
LADDER = 8  # lengthscales tried
DESCENTS = 3  # starts from which the search goes on
PROBES = 8  # of the bound's gradient: its error is a third of the parameters' own at most
POLISHED_UP_TO = 100_000  # observations and grid points from which the bound is not worth its solves


class Learned(NamedTuple):
    """What learning found: parameters with their uncertainty, and how it got there."""

    kernel: Kernel
    noise: float | None
    names: list[str]
    values: Float[np.ndarray, " p"]
    log_std: Float[np.ndarray, " p"]  # standard deviation of each parameter's logarithm
    undetermined: list[str]  # parameters on their bound: the data do not determine them
    objective: float  # negative log-likelihood per observation
    trace: list[dict[str, Any]]
    seconds: float


@one_blas_thread
@float64_available
def learn(
    kernel: Kernel,
    grid: Grid,
    data: Data,
    noise: float | None,
    trend: Trend,
    method: Method,
    *,
    start: str = "data",
    user_bounds: dict[str, Any] | None = None,
    seed: int = 0,
    polish: bool | None = None,
    progress: bool = True,
    checkpoint: Any = None,
) -> Learned:
    """Kernel, noise and their uncertainty. `start` is "data" (searched for) or "kernel" (the values given)."""
    began = time.perf_counter()
    layout = Layout.of(kernel, not np.all(data.noise_known))
    columns = trend.of_data(data, grid)
    spread = _spread(data, columns)
    extent, spacing = np.asarray(grid.upper) - np.asarray(grid.lower), np.asarray(grid.spacing)
    box = bounds(layout, _field_spread(data, spread), spacing, extent, user_bounds or {}, spread)
    stages = _stages(data)
    exact = len(data) + grid.size <= POLISHED_UP_TO if polish is None else polish
    trace: list[dict[str, Any]] = []
    wanted = sorted((user_bounds or {}).items())
    problem = fingerprint(kernel, grid, data, noise, trend, start, seed, wanted, stages, exact)
    saved = None if checkpoint is None else read_arrays(_path(checkpoint), problem, "stage", "vector")
    if saved is not None and int(saved["stage"]) == DONE:
        done = saved["vector"], saved["log_std"], float(saved["value"])
        return _learned(layout, noise, box, *done, trace, began)
    first_stage, vector = (0, None) if saved is None else (int(saved["stage"]), saved["vector"])
    with Progress("learning", progress) as bar:
        for stage, (count, share, iterations) in list(enumerate(stages))[first_stage:]:
            report = _reporter(bar, trace, f"{stage + 1} of {len(stages)}", stage, layout)
            unknown = _neutral(kernel, extent) if start == "data" else kernel
            centre = unknown if vector is None else layout.unpack(np.asarray(vector))[0]
            terms = prepare(centre, data, columns, count, share, seed)
            if vector is None:
                starts = [layout.pack(kernel, noise or 0.3 * spread)]
                if start == "data":
                    starts = _starts(layout, data, spread, spacing, extent, seed)
                vector, value = _best_start(starts, layout, terms, box, iterations, report)
            else:
                # nats; the bound's optimum is some nats away in any case
                enough = None if stage + 1 < len(stages) else 1.0 if exact else 0.01
                vector, value = _onward(np.asarray(vector), layout, terms, box, iterations, enough, report)
            if checkpoint is not None and stage + 1 < len(stages):
                write_arrays(_path(checkpoint), fingerprint=problem, stage=stage + 1, vector=vector)
        assert vector is not None
        if exact:
            report = _reporter(bar, trace, "exact bound", len(stages), layout)
            slope = _slope(method, layout, grid, data, trend, noise, seed)
            vector, value = climb(
                vector, slope, curved_at(vector, layout, terms, box), box, len(data), report
            )
    log_std = uncertainty(vector, layout, terms, len(data), box.touching(vector))
    if checkpoint is not None:
        found = {"vector": vector, "log_std": log_std, "value": value}
        write_arrays(_path(checkpoint), fingerprint=problem, stage=DONE, **found)
    return _learned(layout, noise, box, vector, log_std, float(value), trace, began)


def in_unit(learned: Learned, power: int) -> Learned:
    """What was learned from data divided by 2^power, for the data themselves."""
    if power == 0:
        return learned
    kernel, noise = scaled_kernel(learned.kernel, power), scaled_noise(learned.noise, power)
    layout = Layout.of(learned.kernel, "noise" in learned.names)
    one = layout.pack(scaled_kernel(layout.template, 1), 2.0) - layout.pack(layout.template, 1.0)
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
        trace=trace,
    )  # fmt: skip


def _onward(
    vector: np.ndarray,
    layout: Layout,
    terms: Terms,
    box: Bounds,
    iterations: int,
    enough: float | None,
    report: Report,
) -> tuple[np.ndarray, float]:
    """Downhill from `vector`, and then, where it says how many nats are near enough, by Newton's steps."""
    value = np.inf
    if iterations:
        vector, value = descend(vector, layout, terms, box, iterations, report)
    if enough is not None:
        vector, value = newton(vector, layout, terms, box, enough, report)
    return vector, value


def _slope(
    method: Method, layout: Layout, grid: Grid, data: Data, trend: Trend, noise: float | None, seed: int
) -> Callable[[np.ndarray], Slope]:
    """The engine's log evidence and its gradient, with the same probes at every step."""

    def at(vector: np.ndarray) -> Slope:
        kernel, found = layout.unpack(np.asarray(vector))
        problem = Problem(kernel, grid, data, noise if found is None else float(found), trend)
        return method.log_evidence_slope(problem, PROBES, jax.random.key(seed))

    return at


def _learned(
    layout: Layout,
    noise: float | None,
    box: Bounds,
    vector: np.ndarray,
    log_std: np.ndarray,
    value: float,
    trace: list[dict[str, Any]],
    began: float,
) -> Learned:
    kernel, found = layout.unpack(np.asarray(vector))
    names, loose = layout.names(), box.touching(vector) | (log_std > 2.0)
    return Learned(
        jax.tree.map(lambda a: np.asarray(a, float), kernel),
        noise if found is None else float(found),
        names,
        np.exp(vector),
        log_std,
        [name for name, on in zip(names, loose, strict=True) if on],
        value,
        trace,
        time.perf_counter() - began,
    )


def _stages(data: Data) -> list[tuple[int, float, int]]:
    """Those that look at more than the one before."""
    stages = STAGES if all(block.functional.single for block in data.blocks) else DEAR_STAGES
    before = [(0, 0, 0), *stages]
    return [s for s, b in zip(stages, before, strict=False) if len(data) > b[0] or s[1] != b[1]]


def _neutral(kernel: Kernel, extent: np.ndarray) -> Kernel:
    """The kernel with lengthscales of a tenth of the extent: to say who is near before anything is known."""
    tenth = lambda part: 0.1 * extent if np.ndim(part.lengthscale) else np.asarray(0.1 * np.max(extent))
    parts = [eqx.tree_at(lambda p: p.lengthscale, part, tenth(part)) for part in kernel.parts]
    return _rebuilt(kernel, iter(parts))


def _path(checkpoint: Any) -> pathlib.Path:
    return pathlib.Path(checkpoint)


def _spread(data: Data, columns: np.ndarray) -> float:
    """The standard deviation of the data about the trend."""
    y = np.asarray(data.y, float)
    design = np.concatenate([columns, np.ones((len(y), 1 if columns.shape[1] == 0 else 0))], axis=1)
    rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return float(np.std(rest)) or 1.0


def _field_spread(data: Data, spread: float) -> float:
    """The field's own scale, from the data's: a ray of length L has about L times the field's spread."""
    sizes = [np.mean(np.abs(np.sum(b.functional.nodes(1e9).weights, axis=1))) for b in data.blocks]
    return spread / float(np.median(sizes))


def _starts(
    layout: Layout, data: Data, spread: float, spacing: np.ndarray, extent: np.ndarray, seed: int
) -> list[np.ndarray]:
    """Lengthscales from a few cells to the extent, in every mixture of parts; variances from the data's spread."""
    parts = layout.template.parts
    ladder = np.geomspace(2 * float(np.exp(np.mean(np.log(spacing)))), 0.5 * float(np.max(extent)), LADDER)
    per_axis = np.geomspace(2 * spacing, 0.5 * extent, LADDER)  # axes may have different units
    rungs = list(zip(ladder, per_axis, strict=True))
    if any(np.ndim(part.lengthscale) for part in parts):  # or the same: a thin box need not hold a thin field
        rungs += [(one, np.full(len(spacing), one)) for one in ladder]
    mixtures = list(itertools.product(rungs, repeat=len(parts)))
    if len(mixtures) > LADDER**2:
        mixtures = [mixtures[i] for i in np.random.default_rng(seed).permutation(len(mixtures))[: LADDER**2]]
    scale = _field_spread(data, spread) ** 2
    out = []
    for lengths, factor in itertools.product(mixtures, (0.1, 1.0, 10.0) if len(parts) == 1 else (1.0,)):
        variance = factor * scale / len(parts)
        sized = [
            eqx.tree_at(lambda p: (p.variance, p.lengthscale), part, _sized(part, variance, *length))
            for part, length in zip(parts, lengths, strict=True)
        ]
        out.append(layout.pack(_rebuilt(layout.template, iter(sized)), 0.3 * spread))
    return out


def _sized(part: Any, variance: float, one: float, per_axis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(variance), per_axis if np.ndim(part.lengthscale) else np.asarray(one)


def _rebuilt(kernel: Kernel, parts: Any) -> Kernel:
    """The composite with its elementary kernels replaced, in order."""
    if hasattr(kernel, "left"):
        left = _rebuilt(kernel.left, parts)  # type: ignore[attr-defined]
        return type(kernel)(left, _rebuilt(kernel.right, parts))  # type: ignore[attr-defined,call-arg]
    return next(parts)


def _best_start(
    starts: list[np.ndarray],
    layout: Layout,
    terms: Terms,
    box: Bounds,
    iterations: int,
    report: Report,
) -> tuple[np.ndarray, float]:
    """The likelihood at every start, a few steps from the most promising, and the best of them."""
    values = [
        np.nan_to_num(float(value_and_gradient(box.clip(s), layout, terms)[0]), nan=np.inf) for s in starts
    ]
    promising = np.argsort(values)[:DESCENTS]
    ends = [descend(starts[i], layout, terms, box, iterations, report) for i in promising]
    return min(ends, key=lambda end: end[1])


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
