"""Steps to 0.01 nats with one percent more data, or less: from the old posterior, and in a fit anew.

    python benchmarks/update.py [--share 0.01]

Writes benchmarks/results/update-<device>.json. The observations that come or go are chosen at random, or are those nearest to
one place. `difference` is the largest between the two means on the grid, in posterior standard deviations there.
"""

import argparse

import jax
import numpy as np
from machine import facts, write_result

import hipgp as hg


def problems():
    """Points of a smooth and of a rough field, and rays from one place."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(20_000, 2))
    y = np.sin(9 * x[:, 0]) * np.cos(7 * x[:, 1]) + 0.1 * rng.standard_normal(len(x))
    square = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=200)
    yield "points", hg.Matern12(lengthscale=0.3), square, hg.observe(hg.Points(x), y, noise=0.1)
    yield "points", hg.Matern32(lengthscale=0.1), square, hg.observe(hg.Points(x), y, noise=0.1)
    yield "points", hg.Matern32(lengthscale=0.3), square, hg.observe(hg.Points(x), y, noise=0.1)
    end = rng.uniform(size=(4_000, 3))
    length = np.linalg.norm(end - 0.5, axis=1)
    z = length * (1 + 0.3 * np.sin(5 * end[:, 0])) + 0.02 * rng.standard_normal(len(end))
    cube = hg.Grid.cover((0.0,) * 3, (1.0,) * 3, shape=(40, 40, 20))
    yield (
        "rays",
        hg.Matern32(lengthscale=0.2),
        cube,
        hg.observe(hg.LineIntegrals(np.full(3, 0.5), end), z, noise=0.02),
    )


def compared(name: str, kernel, grid: hg.Grid, data: hg.Data, which: str, share: float) -> dict[str, object]:
    count, rng = len(data), np.random.default_rng(1)
    places = np.asarray(data.blocks[0].functional.places())[:, -1]
    distance = rng.uniform(size=count) if which == "random" else np.sum((places - places[7]) ** 2, axis=1)
    new = np.isin(np.arange(count), np.argsort(distance)[: int(share * count)])
    gp = hg.GP(kernel, grid)
    whole = gp.condition(data, progress=False)
    before = gp.condition(data.kept(~new), progress=False)
    after = before.update(data.kept(new), progress=False)
    less = whole.without(new, progress=False)
    std = whole.std(progress=False)
    steps = [post.diagnostics["iterations"] for post in (whole, after, before, less)]
    return {
        "data": name, "kernel": repr(kernel), "observations": count, "which": which, "added": int(np.sum(new)),
        "fit_steps": steps[0], "update_steps": steps[1], "update_ratio": steps[1] / steps[0],
        "fit_without_steps": steps[2], "without_steps": steps[3], "without_ratio": steps[3] / steps[2],
        "kl_nats": max(post.diagnostics["kl_nats"] for post in (after, less)),
        "difference": float(np.max(np.abs(after.mean - whole.mean) / std)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=0.01)
    share = parser.parse_args().share
    jax.config.update("jax_enable_x64", True)
    rows = []
    for problem in problems():
        for which in ("random", "nearest"):
            rows.append(compared(*problem, which, share))
            print(rows[-1], flush=True)
    device = "cpu" if jax.default_backend() == "cpu" else "gpu"
    write_result(f"update-{device}", {"rows": rows, "machine": facts()})


if __name__ == "__main__":
    main()
