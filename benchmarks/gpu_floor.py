"""How far is a step of the solve from what the machine allows? Each part of a step beside its floor.

    python benchmarks/gpu_floor.py [--dtype float32] [--only rays points]

The floor of a step is one pair of FFTs on the torus by the library FFT alone, and the bytes of W and S, each read once by
rows and once by columns, at the bandwidth that a plain copy reaches. That leaves out what is gathered, from the cache, for each
entry and side; `local_floor` has it: the products with W and S are there those with banded matrices of as many rows and entries,
whose gathers are as local as can be (S of groups is dense blocks: its bytes). Times are the best of five, after compilation, of ROUNDS products one after the other in one
call, as they are in a solve.
"""

import argparse
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import rays as line_problem
import scipy.sparse
from machine import facts, peak_memory, write_result

import hipgp as hg
from hipgp.batch.build import build
from hipgp.batch.ordering import in_order
from hipgp.batch.systems import DataSystem
from hipgp.linalg.csr import CSR
from hipgp.linalg.sparse import SlicedEllpack, SparseMatrix, sliced_ellpack
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend
from hipgp.vecchia.factor import Vecchia
from hipgp.weights.stencils import LocalWeights

ROUNDS = 20


def best(function: Any, system: Any, v: Any) -> float:
    """Seconds of function(system, v); each round's v depends on the one before."""
    shape = eqx.filter_eval_shape(function, system, v)

    @eqx.filter_jit
    def rounds(system: Any, v: Any) -> Any:
        again = lambda _, y: function(system, v + 1e-9 * y[:, :1])
        return jax.lax.fori_loop(0, ROUNDS, again, jnp.zeros(shape.shape, shape.dtype))

    jax.block_until_ready(rounds(system, v))
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(rounds(system, v))
        seconds.append(time.perf_counter() - began)
    return min(seconds) / ROUNDS


def bandwidth() -> float:
    """Bytes a second of a copy, read and written."""
    x = jnp.ones((1, 2**27), jnp.float32)
    return 2 * x.nbytes / best(lambda _, v: v + 1, None, x)


def size(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array)))


def entries(rows: SlicedEllpack) -> int:
    """Numbers kept in one direction of a sparse matrix, padding included."""
    return sum(part.values.size for part in rows.slices)


def banded(rows: SlicedEllpack, columns: int, dtype: Any) -> SlicedEllpack:
    """As many rows and entries, next to one another."""
    width = max(1, round(entries(rows) / rows.row_count))
    first = np.arange(rows.row_count) * (columns - width) // rows.row_count
    at = (first[:, None] + np.arange(width)).ravel()
    starts = np.arange(rows.row_count + 1) * width
    matrix = scipy.sparse.csr_array((np.ones(at.size), at, starts), shape=(rows.row_count, columns))
    return sliced_ellpack(CSR.from_scipy(matrix), dtype)


def local(sparse: SparseMatrix, sides: int, dtype: Any) -> float:
    """Seconds of a product with a banded matrix like this one, and of one with its transpose."""
    assert sparse.transposed is not None
    total = 0.0
    for rows, columns in ((sparse.rows, sparse.column_count), (sparse.transposed, sparse.rows.row_count)):
        v = jnp.zeros((sides, columns), dtype)
        total += best(lambda r, a: r.matmul(a), banded(rows, columns, dtype), v)
    return total


def rays(dtype: str) -> tuple[Any, ...]:
    grid, kernel, data, _ = line_problem.simulate(200_000, (128, 128, 64), dtype)
    return kernel, grid, data


def points(dtype: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 1, (1_000_000, 2)).astype(dtype), rng.standard_normal(1_000_000).astype(dtype)
    grid = hg.Grid.cover((0, 0), (1, 1), shape=(1000, 1000))
    return hg.Matern32(0.6, 0.01), grid, hg.observe(hg.Points(x), y, np.asarray(0.1, dtype))


def measure(kernel: Any, grid: hg.Grid, data: hg.Data, rate: float) -> dict[str, Any]:
    data, _ = in_order(data)  # as `condition` has them
    built = build(Problem(kernel, grid, data, None, Trend(None)), hg.Batch(space="data"))
    system, info = built.system, built.diagnostics
    assert isinstance(system, DataSystem) and isinstance(system.preconditioner, Vecchia)
    assert isinstance(system.weights, LocalWeights)
    out: dict[str, Any] = {"observations": len(data), "grid": grid.shape, "torus": info["torus"]}
    out["preconditioner"] = info["preconditioner"]
    for sides in (1, 8):
        v = jnp.asarray(np.random.default_rng(1).standard_normal((sides, len(data))), data.dtype)
        u = jnp.zeros((sides, grid.size), data.dtype)
        torus = jnp.zeros((sides, system.toeplitz.torus.size), data.dtype)
        parts = {
            "fft_pair": best(_pair, system.toeplitz, torus),
            "K": best(lambda s, a: s.toeplitz.flat_matmul(a), system, u),
            "W": best(lambda s, a: s.weights.matmul(a), system, u),
            "W'": best(lambda s, a: s.weights.transpose_matmul(a), system, v),
            "S'S": best(lambda s, a: s.precondition(a), system, v),
            "step": best(lambda s, a: s.precondition(s.matmul(a)), system, v),
        }
        read = (size(system.weights) + size(system.preconditioner.factor)) / rate
        floor = parts["fft_pair"] + read
        factor = system.preconditioner.factor
        of_s = local(factor, sides, data.dtype) if isinstance(factor, SparseMatrix) else size(factor) / rate
        local_floor = parts["fft_pair"] + local(system.weights.sparse, sides, data.dtype) + of_s
        out[f"sides_{sides}"] = parts | {
            "bytes_floor": read,
            "floor": floor,
            "over_floor": parts["step"] / floor,
            "local_floor": local_floor,
            "over_local_floor": parts["step"] / local_floor,
        }
        print(out[f"sides_{sides}"], flush=True)
    return out


def _pair(toeplitz: Any, v: Any) -> Any:
    """A transform of the torus and back."""
    shape = toeplitz.torus.shape
    axes = tuple(range(1, len(shape) + 1))
    modes = jnp.fft.rfftn(v.reshape(-1, *shape), axes=axes)
    return jnp.fft.irfftn(modes, s=shape, axes=axes).reshape(v.shape)


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
