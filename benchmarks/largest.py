"""The largest problem on one GPU: 512 x 512 x 256 unknowns from five million line integrals, mean and samples.

    python benchmarks/largest.py [--stars 5000000] [--shape 512 512 256] [--samples 8]

Simulated starlight as in `rays.py`, in float32, with a shorter lengthscale (0.1 kpc, 13 cells), and weights that are followed in
each product: stored ones would take some 80 GB. Writes benchmarks/results/largest-<stars>-<shape>-<device>.json: seconds
of each part, of one product of each operator, memory, the map's correlation with the truth and the coverage of its intervals.
"""

import argparse
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from machine import facts, peak_memory, write_result
from rays import BOX, t_limit

import hipgp as hg
from hipgp.batch import build, engine, interpolation, systems
from hipgp.weights.toeplitz import embed

AT_ONCE = 50_000  # rays simulated together
NOISE = 0.1  # of the signal's spread


def simulate(kernel, grid: hg.Grid, stars: int, seed: int = 0) -> tuple[hg.Data, np.ndarray]:
    """A draw of the prior, and its integrals along rays from the middle: two nodes a cell, trilinear."""
    rng = np.random.default_rng(seed)
    ends = (rng.uniform(-0.49, 0.49, (stars, 3)) * BOX).astype(np.float32)
    with jax.enable_x64(True):
        toeplitz = embed(kernel, grid, np.float32, 1e-9)
        truth = toeplitz.draw(jax.random.key(seed), 1)[0]
    nodes = 2 * int(np.ceil(np.linalg.norm(np.array(grid.shape) / 2)))
    t = jnp.asarray((np.arange(nodes) + 0.5) / nodes, np.float32)
    low, step = np.asarray(grid.origin, np.float32), np.asarray(grid.spacing, np.float32)

    @jax.jit
    def along(truth, ends):
        at = (t[:, None, None] * ends - low) / step
        return jax.scipy.ndimage.map_coordinates(truth, [at[..., a] for a in range(3)], order=1).mean(axis=0)

    parts = [np.asarray(along(truth, part)) for part in np.array_split(ends, max(1, stars // AT_ONCE))]
    signal = np.concatenate(parts) * np.linalg.norm(ends, axis=1)
    noise = np.float32(NOISE * signal.std())
    y = signal + noise * rng.standard_normal(stars).astype(np.float32)
    return hg.observe(hg.LineIntegrals(np.zeros(3, np.float32), ends), y, noise=noise), np.asarray(truth)


class Clock:
    """Wall seconds of the parts of a fit, each from its begin to its end after the fit's; parts may overlap in threads."""

    PARTS = (
        (build, "embed", "K"),
        (interpolation, "matrix_free_weights", "W"),
        (build.vecchia, "choose_conditioning_sets", "conditioning sets"),
        (build.vecchia, "vecchia_factor", "Vecchia factor"),
        (engine, "grid_diagnostics", "check of the grid"),
        (engine, "in_order", "order"),
        (systems, "_begin", "begin of the solve"),
        (systems, "_advance", "steps"),
        (systems, "_refined", "true residual"),
    )

    def __init__(self) -> None:
        self.parts, self.began = [], time.perf_counter()
        for module, name, what in self.PARTS:
            setattr(module, name, self._timed(getattr(module, name), what))

    def _timed(self, function, what):
        def wrapped(*args, **kwargs):
            begin = time.perf_counter() - self.began
            found = jax.block_until_ready(function(*args, **kwargs))
            self.parts.append((what, round(begin, 2), round(time.perf_counter() - self.began, 2)))
            return found

        return wrapped


def products(post: hg.Posterior, sides: int) -> dict[str, float]:
    """Milliseconds of one product of each operator in a step, compiled."""
    system = post.engine.system
    key = jax.random.key(0)
    data = jax.random.normal(key, (sides, len(post.engine.data)), np.float32)
    field = jax.random.normal(key, (sides, post.grid.size), np.float32)
    out = {}
    for name, function, argument in (
        ("W", lambda system, u: system.weights.matmul(u), field),
        ("W'", lambda system, a: system.weights.transpose_matmul(a), data),
        ("K", lambda system, u: system.toeplitz.flat_matmul(u), field),
        ("preconditioner", lambda system, r: system.precondition(r), data),
    ):
        call = eqx.filter_jit(function)
        jax.block_until_ready(call(system, argument))
        began = time.perf_counter()
        for _ in range(2):
            jax.block_until_ready(call(system, argument))
        out[name] = 500 * (time.perf_counter() - began)
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stars", type=int, default=5_000_000)
    parser.add_argument("--shape", type=int, nargs=3, default=(512, 512, 256))
    parser.add_argument("--samples", type=int, default=8)
    args = parser.parse_args()
    grid = hg.Grid.cover(-BOX / 2, BOX / 2, shape=tuple(args.shape))
    kernel = hg.Matern32(1.0, 0.1)
    clock = time.perf_counter
    began = clock()
    data, truth = simulate(kernel, grid, args.stars)
    result = {
        "facts": facts(), "stars": args.stars, "grid": grid.shape, "unknowns": grid.size,
        "kernel": "Matern32(1.0, 0.1)", "noise": NOISE, "dtype": "float32", "weights": "matrix-free",
        "simulation_seconds": clock() - began,
    }  # fmt: skip
    name = f"largest-{args.stars}-{'x'.join(map(str, grid.shape))}-{jax.default_backend()}"

    def keep(**more) -> None:
        result.update(more, peak_memory_gib=peak_memory())
        write_result(name, result)
        print({k: v for k, v in result.items() if k != "facts"}, flush=True)

    keep()
    began, parts = clock(), Clock()
    post = hg.GP(kernel, grid).condition(data, hg.Batch(weights="matrix-free"), progress=False)
    mean = post.mean
    seconds = clock() - began
    keep(
        mean_seconds=seconds,
        parts_begin_and_end=parts.parts,
        diagnostics=dict(post.diagnostics),
        correlation_with_truth=float(np.corrcoef(mean.ravel(), truth.ravel())[0, 1]),
    )
    keep(products_ms=products(post, 1), products_8_sides_ms=products(post, 8))
    if args.samples > 1:
        began = clock()
        draws = post.sample(args.samples, key=1)
        seconds = clock() - began
        middle, spread = draws.mean(axis=0), draws.std(axis=0, ddof=1) * np.sqrt(1 + 1 / args.samples)
        keep(
            samples=args.samples,
            samples_seconds=seconds,
            coverage_95_t=float(np.mean(np.abs(truth - middle) < t_limit(args.samples) * spread)),
        )
        del draws


if __name__ == "__main__":
    main()
