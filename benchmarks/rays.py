"""How long does the exact posterior of many line integrals take? Simulated starlight: rays from one origin into a box.

    python benchmarks/rays.py --stars 20000 --shape 50 50 25 --samples 8 --dtype float64

Writes benchmarks/results/rays-<stars>-<shape>-<device>.json. The truth is a draw of the prior, so that the map's
correlation with it and the coverage of its intervals can be stated.
"""

import argparse
import time

import jax
import numpy as np
from machine import facts, peak_memory, write_result

import hipgp as hg
from hipgp.weights.toeplitz import embed

BOX = np.array([4.0, 4.0, 2.0])  # kpc, the paper's region


def simulate(stars: int, shape: tuple[int, ...], dtype: str, seed: int = 0):
    rng = np.random.default_rng(seed)
    grid = hg.Grid.cover(-BOX / 2, BOX / 2, shape=shape)
    kernel = hg.Matern32(1.0, 0.3)
    ends = (rng.uniform(-0.49, 0.49, (stars, 3)) * BOX).astype(dtype)
    rays = hg.LineIntegrals(np.zeros(3, dtype), ends)
    with jax.enable_x64(True):
        toeplitz = embed(kernel, grid, np.float32)
        white = jax.random.normal(jax.random.key(seed), toeplitz.torus.shape, np.float32)
        truth = np.asarray(toeplitz.root(white))
    nodes = 64
    signal = np.zeros(stars)
    for q in range(nodes):  # trilinear look-up of the truth along each ray
        corner, within = grid.cells(ends * ((q + 0.5) / nodes))
        for offset in np.ndindex(2, 2, 2):
            share = np.prod(np.where(offset, within, 1 - within), axis=1)
            signal += share * truth[tuple((corner + np.array(offset)).T)]
    signal *= np.linalg.norm(ends, axis=1) / nodes
    noise = 0.1 * signal.std()
    y = (signal + noise * rng.standard_normal(stars)).astype(dtype)
    return grid, kernel, hg.observe(rays, y, noise=np.asarray(noise, dtype)), truth


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stars", type=int, default=20_000)
    parser.add_argument("--shape", type=int, nargs=3, default=(50, 50, 25))
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--neighbours", type=int)
    args = parser.parse_args()
    grid, kernel, data, truth = simulate(args.stars, tuple(args.shape), args.dtype)
    result = {"facts": facts(), "stars": args.stars, "grid": grid.shape, "dtype": args.dtype}
    for attempt in ("first", "second"):  # the first includes compilation
        began = time.perf_counter()
        post = hg.GP(kernel, grid).condition(data, hg.Batch(neighbours=args.neighbours), progress=False)
        mean = post.mean
        result[f"mean_seconds_{attempt}"] = time.perf_counter() - began
        began = time.perf_counter()
        draws = post.sample(args.samples, key=1) if args.samples else np.zeros((0, *grid.shape))
        result[f"samples_seconds_{attempt}"] = time.perf_counter() - began
        result[f"diagnostics_{attempt}"] = dict(post.diagnostics)
        print({k: v for k, v in result.items() if k.endswith(attempt)}, flush=True)
        if result["mean_seconds_first"] > 120:
            break
    result["correlation_with_truth"] = float(np.corrcoef(mean.ravel(), truth.ravel())[0, 1])
    if args.samples > 1:
        spread = draws.std(axis=0, ddof=1) * np.sqrt(1 + 1 / args.samples)
        result["coverage_95_t"] = float(
            np.mean(np.abs(truth - draws.mean(axis=0)) < t_limit(args.samples) * spread)
        )
    result["peak_memory_gib"] = peak_memory()
    name = f"rays-{args.stars}-{'x'.join(map(str, grid.shape))}-{jax.default_backend()}-{args.dtype}"
    write_result(name, result)
    print({k: v for k, v in result.items() if k not in ("facts",)})


def t_limit(count: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, count - 1))


if __name__ == "__main__":
    main()
