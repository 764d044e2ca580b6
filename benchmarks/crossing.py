"""Long lines that cross: the solve and the standard deviations with each preconditioner.

    python benchmarks/crossing.py [--arcs 20000] [--shape 64] [--data DIR --every 9] [--only arcs paths tooth] [--learn]

- arcs: simulated great circles between random places of a sphere of radius 1, in a cube around it; Matern 3/2 of lengthscale
  0.3, signal to noise 9.
- paths: every so many of the real surface-wave paths in DIR, at the parameters learned for `solver_table.py`, or learned
  from these paths with `--learn`.
- tooth: crossing beams in DIR, likewise.

For each: steps to 0.01 nats, set-up and solve seconds; then seconds and error of the std of held-out or repeated lines.
"""

import argparse
import pathlib
import time
import warnings
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from datasets import surface_waves, tooth
from machine import facts, peak_memory, write_result
from solver_table import LIMIT, learned

import hipgp as hg
from hipgp.model.functionals import Functional
from hipgp.runtime.precision import float64_available
from hipgp.weights.stencils import local_weight_rows
from hipgp.weights.toeplitz import embed
from hipgp.weights.torus import WRAPPED

NODES, LENGTHSCALE, SIGNAL_TO_NOISE = 64, 0.3, 9.0
HELD_OUT, EXACT = 1000, 50


class Crossing(NamedTuple):
    gp: hg.GP
    data: hg.Data
    targets: Functional


def great_arcs(count: int, rng: np.random.Generator) -> np.ndarray:
    """Points at equal steps along arcs between random places of the unit sphere, (count, NODES, 3)."""
    v = rng.standard_normal((2, count, 3))
    a, b = v / np.linalg.norm(v, axis=-1, keepdims=True)
    angle = np.arccos(np.clip(np.sum(a * b, axis=1), -1, 1))[:, None]
    t = (np.arange(NODES) + 0.5) / NODES
    first, last = np.sin((1 - t) * angle), np.sin(t * angle)
    return (first[..., None] * a[:, None] + last[..., None] * b[:, None]) / np.sin(angle)[..., None]


@float64_available
def simulated_arcs(count: int, shape: int) -> Crossing:
    rng = np.random.default_rng(0)
    grid = hg.Grid.cover((-1.05,) * 3, (1.05,) * 3, shape=(shape,) * 3)
    kernel = hg.Matern32(1.0, LENGTHSCALE)
    arcs = hg.Functionals(great_arcs(count + HELD_OUT, rng), np.full(NODES, 1 / NODES))
    observed, targets = arcs[:count], arcs[count:]
    rows = local_weight_rows(kernel, grid, [observed], 2)
    toeplitz = embed(kernel, grid, np.float64, WRAPPED)
    draw = toeplitz.root(jnp.asarray(rng.standard_normal(toeplitz.torus.shape))).ravel()
    truth = rows.matrix @ np.asarray(draw)
    noise = float(truth.std() / np.sqrt(SIGNAL_TO_NOISE))
    y = truth + noise * rng.standard_normal(count)
    return Crossing(hg.GP(kernel, grid), hg.observe(observed, y, noise), targets)


def real_paths(folder: pathlib.Path, every: int, learn: bool) -> Crossing:
    problem = surface_waves(folder)
    block = problem.data.blocks[0]
    targets = block.functional[np.arange(1, len(problem.data), every)[:HELD_OUT]]
    data = hg.observe(block.functional[np.arange(0, len(problem.data), every)], np.asarray(block.y)[::every])
    if not learn:
        return Crossing(learned("surface_waves", problem)[0], data, targets)
    return Crossing(problem.gp.learn(data, progress=False), data, targets)


def real_beams(folder: pathlib.Path) -> Crossing:
    problem = tooth(folder)
    gp, _ = learned("tooth", problem)
    return Crossing(gp, problem.data, problem.data.blocks[0].functional[:HELD_OUT])


METHODS = {
    "Vecchia": hg.Batch(preconditioner="vecchia", max_iterations=LIMIT),
    "low rank": hg.Batch(preconditioner="low-rank", max_iterations=LIMIT),
}
IN_THE_PLANE = {"grid space": hg.Batch(space="grid", max_iterations=LIMIT)}


def run(problem: Crossing, asked: list[str]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    methods = METHODS | (IN_THE_PLANE if problem.data.ndim == 2 else {})
    for name in asked:
        if name not in methods:
            continue
        post = problem.gp.condition(problem.data, methods[name], progress=False)
        keys = ("iterations", "kl_nats", "setup_seconds", "solve_seconds", "preconditioner")
        rows[name] = {key: post.diagnostics[key] for key in keys}
        print(name, rows[name], flush=True)
        if name == "low rank":
            rows[name]["std"] = [std_of(post, problem.targets[:count]) for count in (EXACT, HELD_OUT)]
            print(name, rows[name]["std"], flush=True)
    return rows


def std_of(post: Any, targets: Functional) -> dict[str, Any]:
    began = time.perf_counter()
    found = post.predict(targets)
    seconds = time.perf_counter() - began
    error = None if found.std_error is None else float(np.mean(found.std_error / found.std))
    return {"targets": len(targets), "seconds": seconds, "relative_monte_carlo_error": error}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--arcs", type=int, default=20_000)
    parser.add_argument("--shape", type=int, default=64)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=("arcs", "paths", "tooth"))
    parser.add_argument("--learn", action="store_true", help="the kernel of the paths from themselves, timed")
    parser.add_argument("--method", nargs="+", default=[*METHODS, *IN_THE_PLANE])
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # solves that stop at the limit are rows of the table
    for name in args.only or (["arcs"] if args.data is None else ["arcs", "paths", "tooth"]):
        began = np.array([time.perf_counter(), time.process_time()])
        if name == "arcs":
            problem = simulated_arcs(args.arcs, args.shape)
        elif name == "paths":
            problem = real_paths(args.data, args.every, args.learn)
        else:
            problem = real_beams(args.data)
        made = np.array([time.perf_counter(), time.process_time()]) - began
        result = {"facts": facts(), "observations": len(problem.data), "grid": problem.gp.grid.shape}
        if name == "paths" and args.learn:
            assert problem.gp.learned is not None
            result["learned"] = {
                "wall_s": made[0],
                "cpu_s": made[1],
                "parameters": problem.gp.learned.shown(),
            }
            print(result["learned"], flush=True)
        result["rows"] = run(problem, args.method)
        write_result(f"crossing-{name}{'-learned' * args.learn}", result | {"peak_memory_gib": peak_memory()})


if __name__ == "__main__":
    main()
