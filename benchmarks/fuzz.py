"""Random small problems without a grid, against a dense Gaussian process that shares no code with the library.

    PYTHONPATH=tests python benchmarks/fuzz.py [--count 1000] [--first 0] [--engine auto batch] [--part 0/1] [--seconds S]
    PYTHONPATH=tests python benchmarks/fuzz.py --merge FILES

Kernels, functionals, dimensions 1 to 3, float32 and float64, units, noise, trends and repeated data are drawn at random.
A problem is passed where every mean is within 0.1 posterior standard deviations of the truth and every standard deviation
within 10%, or where the library warned and said what to do. An exception or a NaN is a failure, and so is one that takes
more than LIMIT processor seconds. Problems that are in the result already are not run again, so that a stopped run goes
on where it was. `--part 2/8` takes every eighth problem from the third on, so that eight processes share the work, each
with a folder HIPGP_RESULTS of its own that begins as a copy of this one; `--merge` puts their files together.
`--seconds` begins no further problem after so many.

`--engine auto` is what users get, for so few observations the exact engine; `batch` asks for the batch engine, and thereby
for a grid that is chosen; `given` gives a grid of random size, which is often too coarse, and `kept` the same grid with the
batch engine asked for, which computes on it as it is.
"""

import argparse
import json
import pathlib
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from machine import RESULTS, facts, write_result

import dense
import hipgp as hg

WRITTEN_EVERY, CLEARED_EVERY = 5, 25  # problems
LIMIT = 300  # processor seconds of one problem
MEAN, STD = 0.1, 0.1  # what passes: in posterior standard deviations, and relative
ROUNDING = {
    "float32": 1e-3,
    "float64": 1e-6,
}  # of the prior's standard deviation, that a posterior's may be off by
KERNELS = ("Matern12", "Matern32", "Matern52", "SquaredExponential", "RationalQuadratic", "Sum")
KINDS = ("points", "derivatives", "lines", "boxes", "own")
ENGINES = {"auto": "auto", "batch": hg.Batch(), "given": None, "kept": hg.Batch()}
SMOOTH = ("Matern32", "Matern52", "SquaredExponential", "RationalQuadratic")  # have derivatives


class Problem(NamedTuple):
    """A problem of the library, and its dense twin."""

    said: dict[str, Any]
    gp: hg.GP
    data: hg.Data
    targets: list[Any]
    kernel: Any
    f: dense.Functional
    y: np.ndarray
    noise: np.ndarray
    f_star: dense.Functional
    trend: tuple[Any, Any]


def problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    d, dtype = int(rng.integers(1, 4)), ("float64", "float32")[rng.integers(2)]
    unit_x, unit_y = 10.0 ** rng.uniform(-4, 4), 10.0 ** rng.uniform(-4, 4)
    name = KERNELS[rng.integers(len(KERNELS))]
    ours, theirs = kernels(rng, name, d, unit_x, unit_y)
    kinds = [k for k in KINDS if k != "derivatives" or name in SMOOTH]
    chosen = rng.permutation(kinds)[: rng.integers(1, 4)]
    repeated = bool(rng.integers(4) == 0)
    cast, panels = lambda a: np.asarray(a, dtype), 8 if name in SMOOTH else 24
    data, parts, drawn_from, stds = None, [], [], []
    for kind in chosen:
        f, twin = pair(rng, kind, int(rng.integers(8, 24)), d, unit_x, cast)
        own, rough = twin(panels), twin(2)
        if repeated:
            rows = np.concatenate([np.arange(len(f)), rng.integers(0, len(f), 6)])
            f, own, rough = f[rows], own.rows(rows), rough.rows(rows)
        scale = np.sqrt(np.median(dense.variance(theirs, rough)))
        std = cast(10.0 ** rng.uniform(-2, 0) * scale * rng.uniform(0.5, 2.0, len(f)))
        parts, drawn_from = [*parts, own], [*drawn_from, rough]
        stds.append(np.asarray(std, float))
        block = (f, std)
        data = [block] if data is None else [*data, block]
    f, noise = dense.concatenate(*parts), np.concatenate(stds)
    trend = (None, "constant")[rng.integers(2)]
    if list(chosen) == ["derivatives"]:
        trend = None  # slopes say nothing of a constant
    rough = dense.concatenate(*drawn_from)
    a = dense.covariance(theirs, rough, rough) + np.diag(noise**2)
    x = (f.value * f.weights.sum(axis=1))[:, None]
    level = 0.0 if trend is None else 5 * unit_y * rng.standard_normal()
    y = np.linalg.cholesky(a) @ rng.standard_normal(len(noise)) + level * x[:, 0]
    y, begin, observed = np.asarray(cast(y), float), 0, None
    for functional, std in data:
        end = begin + len(functional)
        one = hg.observe(functional, cast(y[begin:end]), noise=std)
        observed, begin = one if observed is None else observed + one, end
    asked = [pair(rng, k, 6, d, unit_x, cast) for k in rng.permutation(kinds)[:2]]
    asked.append(pair(rng, "points", 3, d, 3 * unit_x, cast))  # some of them far from the data
    f_star = dense.concatenate(*[twin(panels) for _, twin in asked])
    columns = (None, None)
    if trend is not None:
        columns = x, (f_star.value * f_star.weights.sum(axis=1))[:, None]
    said = {"seed": seed, "dimensions": d, "dtype": dtype, "kernel": name, "kinds": [str(k) for k in chosen]}
    said |= {"observations": len(y), "repeated": repeated, "trend": trend, "units": [unit_x, unit_y]}
    said["lengthscale"] = [
        float(np.min(np.asarray(p.lengthscale) / unit_x)) for p in ours.parts
    ]  # of an extent of one
    said["noise"] = float(np.median(noise / np.sqrt(np.diag(a))))
    gp = hg.GP(ours, trend=trend)
    return Problem(said, gp, observed, [t for t, _ in asked], theirs, f, y, noise, f_star, columns)


def kernels(rng: np.random.Generator, name: str, d: int, unit_x: float, unit_y: float) -> tuple[Any, Any]:
    """A kernel of the library and of the reference."""
    if name == "Sum":
        one, other = (kernels(rng, n, d, unit_x, unit_y) for n in ("Matern12", "SquaredExponential"))
        return one[0] + other[0], dense.Sum(one[1], other[1])
    size = d if rng.integers(2) else None
    length = unit_x * 10.0 ** rng.uniform(-1.2, 0.4, size)
    variance = unit_y**2 * 10.0 ** rng.uniform(-0.5, 0.5)
    per_axis = tuple(np.broadcast_to(length, d))
    more = (float(rng.uniform(0.5, 3.0)),) if name == "RationalQuadratic" else ()
    return getattr(hg, name)(variance, length, *more), getattr(dense, name)(variance, per_axis, *more)


def pair(
    rng: np.random.Generator, kind: str, count: int, d: int, unit: float, cast: Any
) -> tuple[Any, Callable[[int], dense.Functional]]:
    """A functional within a box of the size of the unit, and its dense twin of the same numbers, lines with so many panels."""
    x, end = cast(unit * rng.uniform(0.0, 1.0, (2, count, d)))
    if kind == "points":
        return hg.Points(x), lambda _: dense.points(x)
    if kind == "derivatives":
        axis = int(rng.integers(d))
        return hg.Derivatives(x, axis=axis), lambda _: dense.derivatives(x, axis=axis)
    if kind == "lines":
        own = lambda panels: dense.line_integrals(x, end, order=12, panels=panels, average=True)
        return hg.LineIntegrals(x, end, average=True), own
    if kind == "boxes":
        upper = x + cast(unit * rng.uniform(0.02, 0.2, (count, d)))
        order, panels = {1: (12, 8), 2: (8, 2), 3: (9, 1)}[d]
        return hg.BoxAverages(x, upper), lambda _: dense.box_averages(x, upper, order=order, panels=panels)
    nodes, weights = cast(unit * rng.uniform(0, 1, (count, 3, d))), cast(rng.normal(size=(count, 3)))
    return hg.Functionals(nodes, weights), lambda _: dense.functionals(nodes, weights)


def given_grid(said: dict[str, Any]) -> hg.Grid:
    """A grid over the data of a problem, with a random number of points."""
    d, unit = said["dimensions"], said["units"][0]
    rng = np.random.default_rng((said["seed"], 1))
    points = np.round(10.0 ** rng.uniform(*{1: (0.9, 2.3), 2: (0.8, 1.6), 3: (0.6, 1.1)}[d], d)).astype(int)
    return hg.Grid.cover(np.full(d, -0.05 * unit), np.full(d, 1.25 * unit), shape=tuple(points.tolist()))


def run(seed: int, engine: str) -> dict[str, Any]:
    """One problem: what it is, how far off, what was warned of, and whether it passed."""
    with np.errstate(under="ignore"):
        p = problem(seed)
        truth = dense.exact_gp(p.kernel, p.f, p.y, p.noise, p.f_star, *p.trend)
        floor = ROUNDING[p.said["dtype"]] * np.sqrt(dense.variance(p.kernel, p.f_star))
    began, method = time.process_time(), ENGINES[engine]
    gp = p.gp if engine in ("auto", "batch") else hg.GP(p.gp.kernel, given_grid(p.said), trend=p.gp.trend)
    out = p.said | {"engine": engine, "passed": False}
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            post = gp.condition(p.data, method=method, progress=False)
            found = [post.predict(target, progress=False) for target in p.targets]
    except Exception as error:  # an exception is what is looked for
        return out | {"exception": f"{type(error).__name__}: {error}"}
    mean, std = (np.concatenate([np.asarray(getattr(f, n), float) for f in found]) for n in ("mean", "std"))
    errors = [np.zeros_like(f.std) if f.std_error is None else f.std_error for f in found]
    off = np.maximum(np.abs(mean - truth.mean) - floor, 0) / truth.std
    wide = np.maximum(np.abs(std - truth.std) - floor - 4 * np.concatenate(errors), 0) / truth.std
    out |= {
        "warnings": [str(w.message) for w in told],
        "mean": float(np.max(off)),
        "std": float(np.max(wide)),
        "finite": bool(np.all(np.isfinite([mean, std]))),
        "cpu_seconds": time.process_time() - began,
        "chosen": post.diagnostics.get("grid_chosen", post.diagnostics.get("grid_refined")),
    }
    right = out["mean"] <= MEAN and out["std"] <= STD
    return out | {"right": right, "passed": out["finite"] and (right or bool(out["warnings"]))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--engine", nargs="+", choices=tuple(ENGINES), default=["auto", "batch"])
    parser.add_argument("--part", default="0/1", help="I/N: every N-th problem from the I-th on")
    parser.add_argument("--seconds", type=float, default=np.inf)
    parser.add_argument("--merge", nargs="+", type=pathlib.Path, default=[], help="results to put together")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    done = earlier([RESULTS / "fuzz.json", *args.merge])
    if not args.merge:
        part, parts = map(int, args.part.split("/"))
        wanted = [
            (s, e) for e in args.engine for s in range(args.first, args.first + args.count)[part::parts]
        ]
        go_through([one for one in wanted if one not in done], done, time.monotonic() + args.seconds)
    write_result("fuzz", summary(list(done.values())))
    print(json.dumps(summary(list(done.values()))["counts"]))


def earlier(paths: list[pathlib.Path]) -> dict[tuple[int, str], dict[str, Any]]:
    """The problems in some result files, by seed and engine; what a later file has replaces what an earlier one has."""
    files = [json.loads(path.read_text())["problems"] for path in paths if path.exists()]
    return {(one["seed"], one["engine"]): one for problems in files for one in problems}


def go_through(
    wanted: list[tuple[int, str]], done: dict[tuple[int, str], dict[str, Any]], end: float
) -> None:
    """Run the wanted problems and add them to `done`; results are written every few problems."""
    signal.signal(signal.SIGPROF, _stop)
    for number, (seed, engine) in enumerate(wanted):
        if time.monotonic() > end:
            print(f"{len(wanted) - number} problems are left", flush=True)
            return
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        done[seed, engine] = run(seed, engine)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if not done[seed, engine]["passed"]:
            print(json.dumps(done[seed, engine]), flush=True)
        if number % WRITTEN_EVERY == WRITTEN_EVERY - 1:
            write_result("fuzz", summary(list(done.values())))
        if number % CLEARED_EVERY == CLEARED_EVERY - 1:
            jax.clear_caches()


def _stop(*_: Any) -> None:
    raise TimeoutError(f"not done after {LIMIT} processor seconds")


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    of = lambda engine: [one for one in done if one["engine"] == engine]
    counts = {
        engine: {
            "problems": len(of(engine)),
            "failed": sum(not one["passed"] for one in of(engine)),
            "right": sum(one.get("right", False) for one in of(engine)),
            "off, and warned of": sum(one["passed"] and not one["right"] for one in of(engine)),
            "exceptions": sum("exception" in one for one in of(engine)),
            "not ended": sum("TimeoutError" in one.get("exception", "") for one in of(engine)),
            "not finite": sum(not one.get("finite", True) for one in of(engine)),
        }
        for engine in sorted({one["engine"] for one in done})
    }
    return {"machine": facts(), "counts": counts, "problems": done}


if __name__ == "__main__":
    main()
