"""A positive field from line integrals: hipgp beside NIFTy.re's geoVI, the same prior and the same rays, kernel given.

    python benchmarks/beside_positive.py --peer-python PYTHON [--stars 3000] [--shape 45 45 18] [--runs 20x32 8x16]

The demo's simulated dust, Matern 3/2 of variance 2 and lengthscale 0.2 in the exponent, a tenth of the stars held out.
Writes beside-positive-<stars>-<shape>.json: seconds, compilation included, CRPS and coverage of the density at the grid points and
of the held-out extinctions. NIFTy is given the same circulant embedding of the kernel, trilinear weights along the rays, and a wide normal
prior for the level; `--runs` are its rounds and samples.
"""

import argparse

import numpy as np
from beside import keep, run_peer, timed
from beside_rays import amplitude, look_up
from positive import by_quantiles, scores

import hipgp as hg
from hipgp.apps import simulate

COLUMNS = ("system", "wall_s", "cpu_s", "field", "held_out", "note")
VARIANCE, LENGTHSCALE, DRAWS = 2.0, 0.2, 32
LEVEL_STD = 3.0


def problem(stars: int, shape: tuple[int, ...], seed: int) -> tuple[dict, hg.Grid, hg.LineIntegrals]:
    """The observed rays with their noise, and the truth at the grid points and along the rays held out."""
    sky = simulate.dust(stars=stars, seed=seed)
    grid = hg.Grid.cover((-1, -1, -0.4), (1, 1, 0.4), shape=shape, margin=0.02)
    held = np.arange(stars) % 10 == 0
    noise = 0.02 + 0.03 * sky.extinction[~held]
    y = sky.extinction[~held] + noise * np.random.default_rng(seed).standard_normal(len(noise))
    truth = simulate.interpolate(sky.axes, sky.density, grid.coordinates())
    said = {
        "y": y,
        "noise": noise,
        "truth": truth,
        "held_truth": sky.extinction[held],
        "ends": sky.stars[~held],
    }
    return said, grid, hg.LineIntegrals(np.zeros(3), sky.stars[held])


def run_hipgp(said: dict, grid: hg.Grid, held: hg.LineIntegrals) -> dict:
    data = hg.observe(hg.LineIntegrals(np.zeros(3), said["ends"]), said["y"], said["noise"])
    gp = hg.GP(hg.Matern32(VARIANCE, LENGTHSCALE), grid, trend="constant", link="exp")
    post, conditioning = timed(lambda: gp.condition(data, progress=False))
    found, predicting = timed(lambda: post.predict(held, progress=False))
    draws, drawing = timed(lambda: post.sample(DRAWS, key=1, progress=False))
    parts = conditioning, predicting, drawing
    return {
        "system": f"hipgp {hg.__version__}",
        "wall_s": sum(part["wall"] for part in parts),
        "cpu_s": sum(part["cpu"] for part in parts),
        "field": scores(draws.reshape(DRAWS, -1), said["truth"]),
        "held_out": by_quantiles(found, said["held_truth"]),
        "phases": dict(zip(("condition", "predict", "draw"), parts, strict=True)),
        "note": f"float64, kernel given, {post.diagnostics['rounds']} rounds, {DRAWS} draws",
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--stars", type=int, default=3000)
    parser.add_argument("--shape", type=int, nargs=3, default=(45, 45, 18))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="*", default=["20x32", "8x16"])
    parser.add_argument("--most", type=float, default=1800, help="CPU seconds before a peer is stopped")
    args = parser.parse_args()
    said, grid, held = problem(args.stars, tuple(args.shape), args.seed)
    name = f"beside-positive-{args.stars}-{'x'.join(map(str, args.shape))}"
    about = {"rays": len(said["y"]), "grid": args.shape, "kernel": f"Matern32({VARIANCE}, {LENGTHSCALE})"}
    keep(name, about, [run_hipgp(said, grid, held)], COLUMNS)
    columns, weights = look_up(grid, said["ends"])
    of_held = look_up(grid, np.asarray(held.end))
    given = {key: said[key] for key in ("y", "noise", "truth", "held_truth")} | {
        "amplitude": amplitude(hg.Matern32(VARIANCE, LENGTHSCALE), grid),
        "shape": grid.shape,
        "columns": columns,
        "weights": weights,
        "held_columns": of_held[0],
        "held_weights": of_held[1],
        "level": -1.0,
        "level_std": LEVEL_STD,
    }
    for run in args.runs:
        rounds, samples = run.split("x")
        options = ["--rounds", rounds, "--samples", samples]
        keep(name, about, [run_peer(args.peer_python, "nifty_positive", given, options, args.most)], COLUMNS)


if __name__ == "__main__":
    main()
