"""Which standard deviation, for how many seconds? Candidates against exact solves, for all pairs of data and targets.

    python benchmarks/std_methods.py

Data from the prior (Matern 3/2) in a cube; 60 held-out targets of each kind have their std by exact solves, then by Vecchia
conditionals and by samples with those as control variate. Stated: the root-mean-square relative error of the std, its
mean (wide or narrow), and seconds for 1,000 targets, compilation apart. Coverage is that of the targets' true values.
"""

import time

import jax
import numpy as np
from machine import facts, write_result

import hipgp as hg
from hipgp.functionals import Functional

KERNEL, GRID = hg.Matern32(1.0, 0.2), hg.Grid.cover((0, 0, 0), (1, 1, 1), shape=(40, 40, 40))
OBSERVED, EXACT, TARGETS = 4_000, 60, 1_000


def functional(kind: str, count: int, rng: np.random.Generator) -> Functional:
    ends = rng.uniform(0.02, 0.98, (2, count, 3))
    return hg.Points(ends[0]) if kind == "points" else hg.LineIntegrals(*ends)


def problem(kinds: tuple[str, ...], seed: int) -> tuple[hg.Data, dict[str, tuple[Functional, np.ndarray]]]:
    """Data of these kinds, and targets of every kind with their true values, all of one draw of the prior."""
    rng = np.random.default_rng(seed)
    seen = {kind: functional(kind, OBSERVED // len(kinds), rng) for kind in kinds}
    asked = {kind: functional(kind, TARGETS, rng) for kind in ("points", "rays")}
    anything = hg.observe(hg.Points(np.full((1, 3), 0.5)), np.zeros(1), noise=1e3)  # a prior, all but
    prior = hg.GP(KERNEL, GRID).condition(anything, progress=False)
    draw = lambda f: prior.sample(1, key=seed, at=f)[0]  # one key: one field
    blocks = []
    for f in seen.values():
        truth = draw(f)
        noise = 0.1 * truth.std()
        blocks.append(hg.observe(f, truth + noise * rng.standard_normal(len(truth)), noise))
    data = blocks[0] if len(blocks) == 1 else blocks[0] + blocks[1]
    return data, {kind: (f, draw(f)) for kind, f in asked.items()}


def row(post: hg.Posterior, method: str, target: Functional, truth: np.ndarray, exact: np.ndarray) -> dict:
    post.predict(target, method)  # compiles
    began = time.perf_counter()
    found = post.predict(target, method)
    ratio = found.std[:EXACT] / exact
    return {
        "seconds": time.perf_counter() - began,
        "rms_error": float(np.sqrt(np.mean((ratio - 1) ** 2))),
        "mean_ratio": float(np.mean(ratio)),
        "coverage_95": float(np.mean(np.abs(truth - found.mean) < 1.96 * found.std)),
    }


def main() -> None:
    rows = []
    for kinds in (("points",), ("rays",), ("points", "rays")):
        data, asked = problem(kinds, seed=1)
        post = hg.GP(KERNEL, GRID).condition(data, progress=False)
        for kind, (target, truth) in asked.items():
            began = time.perf_counter()
            exact = post.predict(target[np.arange(EXACT)], "exact").std
            solving = (time.perf_counter() - began) * TARGETS / EXACT
            methods = {m: row(post, m, target, truth, exact) for m in ("vecchia", "samples")}
            rows.append({"data": kinds, "targets": kind, "exact_seconds": solving, **methods})
            print(rows[-1], flush=True)
            result = {"facts": facts(), "observed": OBSERVED, "grid": GRID.shape, "rows": rows}
            write_result("std_methods", result)  # row by row: it takes long
            jax.clear_caches()


if __name__ == "__main__":
    main()
