"""How far is a step of the solve from what the machine allows? Each part of a step beside its floor.

    python benchmarks/gpu_floor.py [--dtype float32] [--only rays points]

The floor of a step is one pair of FFTs on the torus by the library FFT alone, and the bytes of W and S, each read once by
rows and once by columns, at the bandwidth that a plain copy reaches. Times are the best of five, after compilation.
"""

import argparse
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import rays as line_problem
from machine import facts, peak_memory, write_result

import hipgp as hg
from hipgp.inference.systems import DataSystem


def best(function: Any, *args: Any) -> float:
    compiled = eqx.filter_jit(function)
    jax.block_until_ready(compiled(*args))
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def bandwidth() -> float:
    """Bytes a second of a copy, read and written."""
    x = jnp.ones(2**27, jnp.float32)
    return 2 * x.nbytes / best(lambda v: v + 1, x)


def size(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array)))


def rays(dtype: str) -> tuple[Any, ...]:
    grid, kernel, data, _ = line_problem.simulate(200_000, (128, 128, 64), dtype)
    return kernel, grid, data


def points(dtype: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 1, (1_000_000, 2)).astype(dtype), rng.standard_normal(1_000_000).astype(dtype)
    grid = hg.Grid.cover((0, 0), (1, 1), shape=(1000, 1000))
    return hg.Matern32(0.6, 0.01), grid, hg.observe(hg.Points(x), y, np.asarray(0.1, dtype))


def measure(kernel: Any, grid: hg.Grid, data: hg.Data, rate: float) -> dict[str, Any]:
    system, info = hg.Batch(space="data").system(kernel, grid, data, np.asarray(data.noise_std(None), float))
    assert isinstance(system, DataSystem) and system.vecchia is not None
    out: dict[str, Any] = {"observations": len(data), "grid": grid.shape, "torus": info["torus"]}
    out["preconditioner"] = info["preconditioner"]
    for sides in (1, 8):
        v = jnp.asarray(np.random.default_rng(1).standard_normal((sides, len(data))), data.dtype)
        u = jnp.zeros((sides, *system.toeplitz.torus.shape), data.dtype)
        axes = tuple(range(1, u.ndim))
        pair = lambda a, ax=axes: jnp.fft.irfftn(jnp.fft.rfftn(a, axes=ax), s=a.shape[1:], axes=ax)
        parts = {
            "fft_pair": best(pair, u),
            "K": best(lambda s, a: s.toeplitz.matmul(a), system, u[(..., *map(slice, grid.shape))]),
            "W": best(
                lambda s, a: s.weights.matmul(a.reshape(len(a), -1)),
                system,
                u[(..., *map(slice, grid.shape))],
            ),
            "W'": best(lambda s, a: s.weights.transpose_matmul(a), system, v),
            "S'S": best(lambda s, a: s.precondition(a), system, v),
            "step": best(lambda s, a: s.precondition(s.matmul(a)), system, v),
        }
        read = (size(system.weights) + size(system.vecchia.factor)) / rate
        floor = parts["fft_pair"] + read
        out[f"sides_{sides}"] = parts | {
            "bytes_floor": read,
            "floor": floor,
            "over_floor": parts["step"] / floor,
        }
        print(out[f"sides_{sides}"], flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", nargs="+", choices=("rays", "points"), default=["rays", "points"])
    args = parser.parse_args()
    with jax.enable_x64(True):
        rate = bandwidth()
        found = {
            name: measure(*{"rays": rays, "points": points}[name](args.dtype), rate) for name in args.only
        }
    result = {"facts": facts(), "dtype": args.dtype, "copy_bytes_per_second": rate, "problems": found}
    write_result(f"floor-{jax.default_backend()}-{args.dtype}", result | {"memory": peak_memory()})


if __name__ == "__main__":
    main()
