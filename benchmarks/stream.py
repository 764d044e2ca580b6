"""Points streamed into a grid and not kept: seconds of reading, solving and standard deviations, and the coverage of intervals.

    python benchmarks/stream.py [--count 1000000000] [--side 1000] [--batch 8388608] [--host]

Writes benchmarks/results/stream-<count>-<side>-<device>.json. Batches of uniform points in the unit square are made where JAX
computes (with --host one batch, as NumPy arrays, again and again). The truth is drawn from the model: a Matern 3/2 of lengthscale
0.05 on the grid, between its points given the grid, noise 0.3, all in float64; the kernel is given.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from machine import facts, peak_memory, write_result

import hipgp as hg
from hipgp.weights.stencil_geometry import STENCIL, locate_stencils, stencil_offsets
from hipgp.weights.stencils import stencil_weights
from hipgp.weights.toeplitz import embed
from hipgp.weights.torus import WRAPPED

KERNEL, NOISE = hg.Matern32(1.0, 0.05), 0.3


@functools.partial(jax.jit, static_argnums=(1, 2))
def simulated(key, grid, size, field):
    """Points, their true values given a field on the grid, and measurements of them."""
    places, between, noise = jax.random.split(key, 3)
    x = jax.random.uniform(places, (size, 2))
    begin, offset = locate_stencils(grid, x, STENCIL, jnp)
    w, v = stencil_weights(KERNEL, grid, STENCIL, offset, None, None)
    near = field[begin[:, None] + jnp.asarray(stencil_offsets(grid, STENCIL)[1])]
    f = jnp.sum(w * near, axis=1) + jnp.sqrt(v) * jax.random.normal(between, (size,))
    return x, f, f + NOISE * jax.random.normal(noise, (size,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--side", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=2**23)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--host", action="store_true")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(args.side, args.side))
    field = embed(KERNEL, grid, np.float64, WRAPPED).draw(jax.random.key(2**31), 1).ravel()
    spent = {"simulation": 0.0}

    def batches():
        kept = None
        for number, begin in enumerate(range(0, args.count, args.batch)):
            began = time.perf_counter()
            if kept is None or not args.host:
                kept = jax.block_until_ready(simulated(jax.random.key(number), grid, args.batch, field))
                kept = tuple(map(np.asarray, kept)) if args.host else kept
            spent["simulation"] += time.perf_counter() - began
            size = min(args.batch, args.count - begin)
            yield kept[0][:size], kept[2][:size]

    device = "cpu" if jax.default_backend() == "cpu" else "gpu"
    gp = hg.GP(KERNEL, grid)
    result = {"machine": facts(), "count": args.count, "grid": grid.shape, "noise": NOISE, "host": args.host}

    def keep(**more) -> None:
        result.update(more, peak_memory_gib=peak_memory())
        write_result(f"stream-{args.count}-{args.side}-{device}{'-host' * args.host}", result)
        print({k: v for k, v in result.items() if k != "machine"}, flush=True)

    began = time.perf_counter()
    post = gp.condition(hg.observe_from(batches, noise=NOISE, rows=args.count), progress=False)
    keep(
        seconds=time.perf_counter() - began,
        simulation_seconds=spent["simulation"],
        diagnostics=post.diagnostics,
    )
    x, true, _ = map(np.asarray, simulated(jax.random.key(2**30), grid, 10_000, field))
    began = time.perf_counter()
    found = post.predict(x, "samples", samples=args.samples, progress=False)
    keep(
        samples=args.samples,
        std_seconds=time.perf_counter() - began,
        mean_std=float(np.mean(found.std)),
        rmse=float(np.sqrt(np.mean((found.mean - true) ** 2))),
        coverage_95=float(np.mean(np.abs(found.mean - true) < 1.96 * found.std)),
    )


if __name__ == "__main__":
    main()
