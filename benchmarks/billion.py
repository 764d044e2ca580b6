"""K v, R e and R'u at a billion unknowns on one device, slab by slab: seconds, memory, and whether they are right.

    python benchmarks/billion.py [--side 1024]

Writes benchmarks/results/billion-<side>-<device>.json: in float32, a Matern 3/2 of 8 cells on a cube of so many points a side. R R'u
is compared with K u, <R e, u> with <e, R'u>, and K's first column with the kernel where K is built.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from machine import facts, peak_memory, write_result

import hipgp as hg
from hipgp.weights import toeplitz


def timed(function, *arguments):
    """The result of the second call, its seconds, and those of the first, which compiles."""
    seconds = []
    for _ in range(2):
        found = None  # frees the first result before the second is made
        began = time.perf_counter()
        found = jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - began)
    return found, seconds[1], seconds[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=1024)
    side = parser.parse_args().side
    jax.config.update("jax_enable_x64", True)
    toeplitz.in_slabs = lambda *_: (True, "")  # however small
    grid = hg.Grid((0.0,) * 3, 1.0, (side,) * 3)
    device = "cpu" if jax.default_backend() == "cpu" else "gpu"
    result = {"machine": facts(), "unknowns": grid.size, "dtype": "float32", "kernel": "Matern32(1.0, 8.0)"}

    def keep(**more) -> None:
        result.update(more, peak_memory_gib=peak_memory())
        write_result(f"billion-{side}-{device}", result)
        print({k: v for k, v in result.items() if k != "machine"}, flush=True)

    began = time.perf_counter()
    k = toeplitz.embed(hg.Matern32(1.0, 8.0), grid, np.float32)
    keep(build_s=time.perf_counter() - began, torus=k.torus.shape)
    cut, amplitudes = k.slabs, jnp.sqrt(k.orthant)
    u = jax.random.normal(jax.random.key(0), grid.shape, np.float32)
    product, seconds, first = timed(jax.jit(lambda k, u: k.matmul(u)), k, u)
    product = np.asarray(product)
    keep(product_s=seconds, product_first_s=first)
    drawn, seconds, first = timed(jax.jit(lambda k, key: k.draw(key, 1)[0]), k, jax.random.key(1))
    keep(draw_s=seconds, draw_first_s=first, draw_std=float(jnp.std(drawn)))
    del k, drawn
    pull = jax.jit(lambda a, u: cut.root_transpose(a, cut.to_planes(u)))
    modes, seconds, first = timed(pull, amplitudes, u)
    keep(root_transpose_s=seconds, root_transpose_first_s=first)
    push = jax.jit(lambda a, e: cut.from_planes(cut.root(a, e)))
    again, seconds, first = timed(push, amplitudes, modes)
    size = jax.jit(lambda a: jnp.sum(jnp.square(jnp.abs(a)), dtype=jnp.float64))
    inner = float(jnp.sum(again * u, dtype=jnp.float64))  # u'R R'u is |R'u|^2
    keep(
        root_s=seconds,
        root_first_s=first,
        root_of_transpose_off=float(np.max(np.abs(np.asarray(again) - product)) / np.max(np.abs(product))),
        adjoint_off=abs(inner / float(size(modes)) - 1),
    )


if __name__ == "__main__":
    main()
