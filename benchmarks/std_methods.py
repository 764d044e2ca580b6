"""Which standard deviation, for how many seconds? Candidates against exact ones, for pairs of data and targets.

    python benchmarks/std_methods.py [--data lines]

Data from the prior (Matern 3/2) in a cube, and 1,000 held-out targets: their std exactly (by the factor of A), by Vecchia
conditionals and by samples (with those as control variate where all have but one node). Stated: the root-mean-square relative error of the std, its mean
ratio (above one: wide), seconds with everything compiled, and how often the 95% interval holds the true value; *default*
is what `std="auto"` takes. Lines cross one another; rays come from one place; boxes are averages over a tenth of each side.
"""

import argparse
import time

import jax
import numpy as np
from machine import facts, write_result

import hipgp as hg
from hipgp.batch.variances import automatic
from hipgp.model.functionals import Functional

KERNEL, GRID = hg.Matern32(1.0, 0.2), hg.Grid.cover((0, 0, 0), (1, 1, 1), shape=(40, 40, 40))
OBSERVED, TARGETS, SAMPLES = 4_000, 1_000, 64
PAIRS = {
    "points": ("points", "lines"),
    "lines": ("points", "lines"),
    "rays": ("points", "rays"),
    "boxes": ("points", "boxes"),
    "slopes": ("points", "slopes"),
    "points + lines": ("points", "lines"),
    "points + slopes": ("points", "slopes"),
}


def functional(kind: str, count: int, rng: np.random.Generator) -> Functional:
    start, end = rng.uniform(0.02, 0.98, (2, count, 3))
    match kind:
        case "points":
            return hg.Points(start)
        case "lines":
            return hg.LineIntegrals(start, end)
        case "rays":
            return hg.LineIntegrals(np.full(3, 0.5), end)
        case "boxes":
            return hg.BoxAverages(0.9 * start, 0.9 * start + 0.1)
        case _:
            direction = rng.standard_normal((count, 3))
            return hg.Derivatives(
                start, direction=direction / np.linalg.norm(direction, axis=1, keepdims=True)
            )


def problem(kinds: list[str], targets: tuple[str, ...], seed: int) -> tuple[hg.Data, dict]:
    """Data of these kinds, and targets with their true values, all of one draw of the prior."""
    rng = np.random.default_rng(seed)
    seen = [functional(kind, OBSERVED // len(kinds), rng) for kind in kinds]
    asked = {kind: functional(kind, TARGETS, rng) for kind in targets}
    anything = hg.observe(hg.Points(np.full((1, 3), 0.5)), np.zeros(1), noise=1e3)  # a prior, all but
    prior = hg.GP(KERNEL, GRID).condition(anything, progress=False)
    draw = lambda f: prior.sample(1, key=seed, at=f)[0]  # one key: one field
    blocks = []
    for f in seen:
        truth = draw(f)
        noise = 0.1 * truth.std()
        blocks.append(hg.observe(f, truth + noise * rng.standard_normal(len(truth)), noise))
    data = blocks[0] if len(blocks) == 1 else blocks[0] + blocks[1]
    return data, {kind: (f, draw(f)) for kind, f in asked.items()}


def timed(post: hg.Posterior, target: Functional, method: str, again: bool) -> tuple[hg.Prediction, float]:
    if again:
        post.predict(target, method, samples=SAMPLES)  # compiles
    began = time.perf_counter()
    found = post.predict(target, method, samples=SAMPLES)
    return found, time.perf_counter() - began


def compared(post: hg.Posterior, target: Functional, truth: np.ndarray) -> dict:
    exact, seconds = timed(post, target, "exact", again=False)
    covered = lambda p: float(np.mean(np.abs(truth - p.mean) < 1.96 * p.std))
    out = {"exact": {"seconds": seconds, "coverage_95": covered(exact)}}
    for method in ("vecchia", "samples"):
        found, seconds = timed(post, target, method, again=True)
        ratio = found.std / exact.std
        out[method] = {
            "seconds": seconds,
            "rms_error": float(np.sqrt(np.mean((ratio - 1) ** 2))),
            "mean_ratio": float(np.mean(ratio)),
            "coverage_95": covered(found),
        }
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", choices=list(PAIRS), nargs="+", default=list(PAIRS))
    rows = []
    for kinds in parser.parse_args().data:
        data, asked = problem(kinds.split(" + "), PAIRS[kinds], seed=1)
        post = hg.GP(KERNEL, GRID).condition(data, progress=False)
        for kind, (target, truth) in asked.items():
            about = {
                "data": kinds,
                "targets": kind,
                "steps": post.diagnostics["iterations"],
                "default": automatic(post.engine, target, SAMPLES),
            }
            rows.append(about | compared(post, target, truth))
            print(rows[-1], flush=True)
            result = {"facts": facts(), "observed": OBSERVED, "grid": GRID.shape, "rows": rows}
            write_result("std_methods", result)  # row by row: it takes long
            jax.clear_caches()


if __name__ == "__main__":
    main()
