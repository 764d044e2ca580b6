"""Whitening and solves on a 1-D grid: hipgp's circulant root and preconditioned solve beside Cholesky, CIQ, Toeplitz CG.

    python benchmarks/beside_whitening.py --peer-python PYTHON [--sizes 1000 10000 100000 1000000 10000000]

Writes benchmarks/results/beside-whitening.json. K is Matern 3/2 with a lengthscale of 8 cells, no jitter; k are the
covariances of 4 random places with the grid. hipgp: w = K^-1 k by conjugate gradients with the circulant preconditioner to
a relative residual of 1e-8, whitened as R' w (its exact weights); Cholesky: L^-1 k (up to M = 10,000); CIQ: K^-1/2 k;
linear_operator: K^-1 k by plain conjugate gradients. `error` is that of k' K^-1 k, relative, against hipgp's at 1e-12.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from beside import keep, run_peer, timed
from scipy.linalg import cholesky, solve_triangular, toeplitz

import hipgp as hg
from hipgp.linalg.krylov import conjugate_gradients
from hipgp.weights.toeplitz import Toeplitz, embed

LENGTHSCALE, SIDES, TOLERANCE, DENSE = 8.0, 4, 1e-8, 10_000
COLUMNS = ("system", "M", "wall_s", "cpu_s", "again_wall_s", "again_cpu_s", "error", "residual", "note")


@eqx.filter_jit
def solve(matrix: Toeplitz, sides: jax.Array, tolerance: float):
    return conjugate_gradients(
        matrix.matmul, sides, precondition=matrix.circulant_inverse, tolerance=tolerance
    )


@eqx.filter_jit
def root_transpose(matrix: Toeplitz, w: jax.Array):
    return matrix.root_transpose(w)


def twice(function) -> tuple[object, dict[str, float]]:
    _, first = timed(function)
    found, again = timed(function)
    return found, {
        "wall_s": first["wall"],
        "cpu_s": first["cpu"],
        "again_wall_s": again["wall"],
        "again_cpu_s": again["cpu"],
    }


def run_hipgp(kernel: hg.Matern32, grid: hg.Grid, sides: np.ndarray, explained: np.ndarray) -> dict:
    def run():
        matrix = embed(kernel, grid)
        solution = solve(matrix, jnp.asarray(sides), TOLERANCE)
        white = jax.block_until_ready(root_transpose(matrix, solution.value))
        return matrix, solution, white

    (matrix, solution, white), seconds = twice(run)
    found = np.sum(np.asarray(white) ** 2, axis=1)
    return {
        "system": f"hipgp {hg.__version__}, embedding, solve and whitening",
        **seconds,
        "error": float(np.max(np.abs(found / explained - 1))),
        "residual": float(np.max(solution.error)),
        "note": f"float64, torus {matrix.torus.shape[0]}, {int(np.max(solution.iterations))} steps",
    }


def run_cholesky(column: np.ndarray, sides: np.ndarray, explained: np.ndarray) -> dict:
    def run():
        factor = cholesky(toeplitz(column), lower=True, overwrite_a=True, check_finite=False)
        return solve_triangular(factor, sides.T, lower=True, check_finite=False)

    white, seconds = twice(run)
    error = np.abs(np.sum(white**2, axis=0) / explained - 1)
    return {
        "system": "dense Cholesky, SciPy",
        **seconds,
        "error": float(error.max()),
        "note": "float64, two threads or more",
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python", required=True)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000, 10_000_000]
    )
    parser.add_argument("--most", type=float, default=120, help="CPU seconds before a peer is stopped")
    args = parser.parse_args()
    kernel = hg.Matern32(1.0, LENGTHSCALE)
    covariance = lambda r: (1 + np.sqrt(3) * r / LENGTHSCALE) * np.exp(-np.sqrt(3) * r / LENGTHSCALE)
    jax.config.update("jax_enable_x64", True)
    for size in args.sizes:
        grid = hg.Grid(0, 1.0, (size,))
        places = np.random.default_rng(0).uniform(0, size - 1, SIDES)
        sides = covariance(np.abs(np.arange(size) - places[:, None]))
        column = covariance(np.arange(size, dtype=float))
        exact = solve(embed(kernel, grid), jnp.asarray(sides), 1e-12).value
        explained = np.sum(np.asarray(exact) * sides, axis=1)
        jax.clear_caches()
        rows = [run_hipgp(kernel, grid, sides, explained)]
        if size <= DENSE:
            rows.append(run_cholesky(column, sides, explained))
        problem = {"column": column, "sides": sides, "tolerance": TOLERANCE, "explained": explained}
        for task in ("solve", "whiten"):
            rows.append(
                run_peer(args.peer_python, "linear_operator_toeplitz", problem, ["--task", task], args.most)
            )
        rows = [row | {"M": size, "system": f"{row['system']}, M = {size}"} for row in rows]
        keep(
            "beside-whitening",
            {"kernel": "Matern32", "lengthscale in cells": LENGTHSCALE, "sides": SIDES},
            rows,
            COLUMNS,
        )


if __name__ == "__main__":
    main()
