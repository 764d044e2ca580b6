"""K v slab by slab beside K v on the whole torus: processor seconds of one product, one right-hand side, compiled.

    python benchmarks/slabs.py [--rounds 5]

Writes benchmarks/results/slabs-<device>.json: for each grid and dtype the seconds of both, their ratio, and by how much they
differ. Both are timed in turn, several rounds, and the least of each counts; on a CPU seconds are those of the processor, so
that other work on the machine matters little.
"""

import argparse
import time

import jax
import numpy as np
from machine import facts, write_result

import hipgp as hg
from hipgp.weights import toeplitz
from hipgp.weights.toeplitz import Toeplitz, embed

GRIDS = (
    (64, 64),
    (300, 300),
    (1000, 1000),
    (2000, 2000),
    (20, 20, 10),
    (50, 50, 25),
    (100, 100, 100),
    (200, 200, 100),
    (16,) * 4,
)


def seconds(product, matrix: Toeplitz, v: jax.Array) -> float:
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    count = max(1, 2**20 // matrix.torus.size)
    began = clock()
    for _ in range(count):
        product(matrix, v).block_until_ready()
    return (clock() - began) / count


def compared(shape: tuple[int, ...], dtype: type, rounds: int) -> dict[str, object]:
    toeplitz.in_slabs = lambda *_: (True, "")  # however small
    grid = hg.Grid((0.0,) * len(shape), 1.0, shape)
    slabs = embed(hg.Matern32(1.0, min(shape) / 8), grid, dtype)
    forms = slabs.whole(), slabs
    v = jax.device_put(np.random.default_rng(0).normal(size=shape).astype(dtype))
    product = jax.jit(lambda matrix, v: matrix.matmul(v))
    whole, other = (np.asarray(product(form, v)) for form in forms)
    times = np.array([[seconds(product, form, v) for form in forms] for _ in range(rounds)]).min(axis=0)
    return {
        "grid": shape, "torus": slabs.torus.shape, "dtype": np.dtype(dtype).name, "planes": slabs.slabs.planes,
        "lines": slabs.slabs.lines, "whole_s": times[0], "slabs_s": times[1], "ratio": times[1] / times[0],
        "difference": np.max(np.abs(other - whole)) / np.max(np.abs(whole)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    jax.config.update("jax_enable_x64", True)
    rows = []
    for shape in GRIDS:
        for dtype in (np.float64, np.float32):
            rows.append(compared(shape, dtype, rounds))
            print(
                {
                    name: value if isinstance(value, tuple | str) else float(f"{value:.3g}")
                    for name, value in rows[-1].items()
                }
            )
    device = "cpu" if jax.default_backend() == "cpu" else "gpu"
    write_result(f"slabs-{device}", {"rows": rows, "machine": facts()})


if __name__ == "__main__":
    main()
