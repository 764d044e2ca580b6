"""Points streamed into a grid and not kept: seconds of reading, solving and standard deviations, and the coverage of intervals.

    python benchmarks/stream.py [--count 1000000000] [--side 1000] [--batch 8388608] [--host]

Writes benchmarks/results/stream-<count>-<side>-<device>.json. Batches of uniform points in the unit square are made where JAX
computes (with --host as NumPy arrays beforehand, one batch again and again), the truth is a sum of random waves with the
spectrum of a Matern 3/2 of lengthscale 0.05, noise 0.3, all in float64; the kernel is given.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from machine import facts, peak_memory, write_result

import hipgp as hg

LENGTHSCALE, NOISE, WAVES = 0.05, 0.3, 200


def waves() -> tuple[np.ndarray, np.ndarray]:
    """Frequencies of a Matern 3/2 in the plane, a Student t of three degrees of freedom, and phases."""
    rng = np.random.default_rng(0)
    scale = np.sqrt(rng.chisquare(3, WAVES) / 3)
    return rng.standard_normal((WAVES, 2)) / scale[:, None] / LENGTHSCALE, rng.uniform(0, 2 * np.pi, WAVES)


def truth(x, frequencies, phases):
    """The field at places, some waves at a time."""
    add = lambda total, wave: (total + jnp.cos(x @ wave[0] + wave[1]), None)
    return jax.lax.scan(add, jnp.zeros(len(x)), (frequencies, phases))[0] * np.sqrt(2 / WAVES)


@functools.partial(jax.jit, static_argnums=1)
def simulated(key, size, frequencies, phases):
    places, white = jax.random.split(key)
    x = jax.random.uniform(places, (size, 2))
    return x, truth(x, frequencies, phases) + NOISE * jax.random.normal(white, (size,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--side", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=2**23)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--host", action="store_true")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    wave = tuple(map(jnp.asarray, waves()))
    spent = {"simulation": 0.0}

    def batches():
        kept = None
        for number, begin in enumerate(range(0, args.count, args.batch)):
            began = time.perf_counter()
            if kept is None or not args.host:
                kept = jax.block_until_ready(simulated(jax.random.key(number), args.batch, *wave))
                kept = tuple(map(np.asarray, kept)) if args.host else kept
            spent["simulation"] += time.perf_counter() - began
            size = min(args.batch, args.count - begin)
            yield kept[0][:size], kept[1][:size]

    device = "cpu" if jax.default_backend() == "cpu" else "gpu"
    grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(args.side, args.side))
    gp = hg.GP(hg.Matern32(1.0, LENGTHSCALE), grid)
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
    x = np.random.default_rng(1).uniform(size=(10_000, 2))
    true = np.asarray(truth(jnp.asarray(x), *wave))
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
