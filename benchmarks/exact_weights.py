"""The paper's exact weights: seconds for each star, of one pass over many, beside a bare program of the same PCG.

    python benchmarks/exact_weights.py --stars 500000 --seconds 500 --resume pass.npz
    python benchmarks/exact_weights.py --stars 20000 --seconds 60 --iterations 20 97

Line integrals from the centre of a patch to stars in it, 50 x 50 x 25 grid points, Matern 3/2. The library: covariances, PCG on
its positive torus with true residuals, residual variances and k = R'w, in the dtype of the stars. The bare program: float32,
the least torus with its negative eigenvalues cut off, nothing checked. `--seconds` ends the pass, and with `--resume` the same command
goes on with the next minibatch; residual variances and errors of all stars done are in that file.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from machine import facts, peak_memory, write_result

import hipgp as hg
from hipgp.runtime.checkpoints import fingerprint, read_arrays, write_arrays
from hipgp.variational.minibatch_weights import exact_source
from hipgp.variational.whitening import ToeplitzWhitening, whiten

PATCHES = {"thin": (1.0, 1.0, 0.4), "paper": (2.0, 2.0, 1.0)}  # half the extent, kpc
WRITE_EVERY = 20.0  # seconds
NODES = 48  # of the bare program


class Setting:
    """The stars, the grid and the kernel."""

    def __init__(self, args: argparse.Namespace):
        half = np.array(PATCHES[args.patch])
        self.grid = hg.Grid.cover(-half, half, shape=tuple(args.grid))
        self.kernel = hg.Matern32(1.0, args.lengthscale)
        ends = np.random.default_rng(0).uniform(-0.99, 0.99, (args.stars, 3)) * half
        self.ends = ends.astype(args.dtype)
        self.dtype = np.dtype(args.dtype)


# --- the library ------------------------------------------------------------------------------------------------------


class Solver:
    """Weights of any stars by the library, compiled once for a number of stars and for every limit of iterations."""

    def __init__(self, setting: Setting, tolerance: float, limit: int):
        self.whitening = whiten(setting.kernel, setting.grid, "toeplitz")
        zero = np.zeros(3, setting.dtype)
        lines: list[Any] = [hg.LineIntegrals(zero, setting.ends)]
        given = setting.kernel, setting.grid, lines, tolerance, limit, setting.dtype
        self.kernel, self.source = setting.kernel, exact_source(*given)

    @property
    def torus(self) -> tuple[int, ...]:
        assert isinstance(self.whitening, ToeplitzWhitening)
        return self.whitening.shape

    def __call__(self, index: np.ndarray) -> tuple[Any, ...]:
        """Residual variances, relative errors, iterations and |k|^2: small enough to keep."""
        return _solved(self.source, self.kernel, self.whitening, jnp.asarray(index))


@eqx.filter_jit
def _solved(source: Any, kernel: Any, whitening: Any, index: jax.Array) -> tuple[jax.Array, ...]:
    rows = source.weights(kernel, whitening, (index,))
    k = whitening.root_transpose(rows.w)
    return rows.v, rows.error, rows.iterations, jnp.sum(k**2, axis=-1)


def pass_over(solver: Solver, setting: Setting, args: argparse.Namespace) -> dict[str, Any]:
    """As much of one pass as the seconds allow, from where the last one ended."""
    count, batch = len(setting.ends), min(args.batch, len(setting.ends))
    limits = (args.tolerance, args.iterations[0])
    problem = fingerprint(setting.kernel, setting.grid, setting.ends, limits)
    found = {"v": np.zeros(count), "error": np.zeros(count), "iterations": np.zeros(count, np.int32)}
    done, spent = 0, 0.0
    saved = read_arrays(args.resume, problem, "done", "spent", *found) if args.resume else None
    if saved is not None:
        done, spent = int(saved["done"]), float(saved["spent"])
        found = {name: np.array(saved[name]) for name in found}
    jax.block_until_ready(solver(np.arange(batch)))  # compiled before the clock begins
    before, began, written = done, time.perf_counter(), time.perf_counter()
    while done < count and time.perf_counter() - began < args.seconds:
        index = np.minimum(np.arange(done, done + batch), count - 1)
        inside = slice(done, min(done + batch, count))
        for name, values in zip(found, solver(index), strict=False):
            found[name][inside] = np.asarray(values)[: inside.stop - done]
        done = inside.stop
        now = time.perf_counter()
        if args.resume and (now - written > WRITE_EVERY or done == count or now - began >= args.seconds):
            write_arrays(args.resume, fingerprint=problem, done=done, spent=spent + now - began, **found)
            written = now
    seconds = time.perf_counter() - began
    return {
        "stars_done": done,
        "seconds": spent + seconds,
        "milliseconds_a_star": 1e3 * seconds / (done - before) if done > before else None,
        "error_mean": float(np.mean(found["error"][:done])) if done else None,
        "error_max": float(np.max(found["error"][:done])) if done else None,
        "iterations_mean": float(np.mean(found["iterations"][:done])) if done else None,
        "residual_variance_mean": float(np.mean(found["v"][:done])) if done else None,
        "whole": done == count,
    }


def each(setting: Setting, tolerance: float, limit: int, batch: int) -> dict[str, Any]:
    """Milliseconds a star at one limit of the iterations: the best of three minibatches."""
    solver, index = Solver(setting, tolerance, limit), np.arange(batch) % len(setting.ends)
    v, error, iterations, explained = (np.asarray(a) for a in solver(index))
    best = min(_seconds(solver, index) for _ in range(3))
    return {
        "iterations_allowed": limit,
        "iterations_mean": float(np.mean(iterations)),
        "milliseconds_a_star": 1e3 * best / batch,
        "error_max": float(np.max(error)),
        "v_over_prior_mean": float(np.mean(v / (v + explained))),
    }


def _seconds(function: Any, *given: Any) -> float:
    began = time.perf_counter()
    jax.block_until_ready(function(*given))
    return time.perf_counter() - began


# --- the bare program -------------------------------------------------------------------------------------------------


def bare(setting: Setting, limit: int, batch: int) -> dict[str, Any]:
    """The same covariances, PCG steps and R'w with nothing checked, in float32 on the least torus."""
    shape, spacing = setting.grid.shape, np.asarray(setting.grid.spacing)
    torus = tuple(2 * n for n in shape)
    profile = lambda s: (1 + np.sqrt(3) * s) * np.exp(-np.sqrt(3) * s)
    lags = [np.minimum(np.arange(t), t - np.arange(t)) * h for t, h in zip(torus, spacing, strict=True)]
    apart = np.sqrt(sum(a**2 for a in np.meshgrid(*lags, indexing="ij")))
    row = profile(apart / float(setting.kernel.lengthscale))
    spectrum = np.fft.rfftn(row).real
    spectrum = jnp.asarray(np.maximum(spectrum, 1e-4 * row.max()), jnp.float32)
    points = jnp.asarray(setting.grid.coordinates(), jnp.float32)
    ends = jnp.asarray(setting.ends[np.arange(batch) % len(setting.ends)], jnp.float32)
    program = jax.jit(lambda ends: _bare(ends, points, spectrum, shape, torus, limit, setting.kernel))
    error = program(ends)[1]
    best = min(_seconds(program, ends) for _ in range(3))
    return {"torus": torus, "milliseconds_a_star": 1e3 * best / batch, "error_max": float(jnp.max(error))}


def _bare(
    ends: jax.Array, points: jax.Array, spectrum: jax.Array, shape: Any, torus: Any, limit: int, kernel: Any
) -> tuple[jax.Array, jax.Array]:
    t, c = np.polynomial.legendre.leggauss(NODES)
    nodes = jnp.asarray((t + 1) / 2, jnp.float32), jnp.asarray(c / 2, jnp.float32)
    ell = float(kernel.lengthscale)

    def covariance(end: jax.Array) -> jax.Array:
        def add(total: jax.Array, node: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            s = jnp.sqrt(3 * jnp.sum((points - node[0] * end) ** 2, axis=-1) + 1e-12) / ell
            return total + node[1] * (1 + s) * jnp.exp(-s), None

        return jax.lax.scan(add, jnp.zeros(len(points), jnp.float32), nodes)[0] * jnp.linalg.norm(end)

    axes = (1, 2, 3)
    crop = lambda v: v[:, : shape[0], : shape[1], : shape[2]]
    apply = lambda s, v: crop(jnp.fft.irfftn(s * jnp.fft.rfftn(v, s=torus, axes=axes), s=torus, axes=axes))
    dot = lambda a, b: jnp.sum(a * b, axes, keepdims=True)
    b = jax.vmap(covariance)(ends).reshape(-1, *shape)
    z = apply(1 / spectrum, b)

    def step(_: Any, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, r, p, rho = state
        q = apply(spectrum, p)
        a = rho / dot(p, q)
        x, r = x + a * p, r - a * q
        z = apply(1 / spectrum, r)
        new = dot(r, z)
        return x, r, z + new / rho * p, new

    x, r, *_ = jax.lax.fori_loop(0, limit, step, (jnp.zeros_like(b), b, z, dot(b, z)))
    k = jnp.fft.irfftn(jnp.sqrt(spectrum) * jnp.fft.rfftn(x, s=torus, axes=axes), s=torus, axes=axes)
    return jnp.sum(k**2, axes), jnp.sqrt(dot(r, r) / dot(b, b))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stars", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the pass")
    parser.add_argument("--resume", type=Path, help="a file that the pass is kept in and goes on from")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument(
        "--iterations", type=int, nargs="+", default=[20], help="limits; the pass has the first"
    )
    parser.add_argument("--tolerance", type=float, default=1e-10)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--patch", choices=PATCHES, default="thin")
    parser.add_argument("--lengthscale", type=float, default=0.15)
    parser.add_argument("--grid", type=int, nargs=3, default=[50, 50, 25])
    parser.add_argument("--name", help="of the result; by default from the device and the dtype")
    args = parser.parse_args()
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        setting = Setting(args)
        solver = Solver(setting, args.tolerance, args.iterations[0])
        result: dict[str, Any] = {"facts": facts(), "dtype": args.dtype, "torus": solver.torus}
        result |= {"grid": args.grid, "stars": args.stars, "batch": args.batch, "patch": args.patch}
        result["bare"] = bare(setting, args.iterations[0], args.batch)
        print(json.dumps(result["bare"]), flush=True)
        result["limits"] = []
        for limit in args.iterations:
            result["limits"].append(each(setting, args.tolerance, limit, args.batch))
            print(json.dumps(result["limits"][-1]), flush=True)
        ours, least = (r["milliseconds_a_star"] for r in (result["limits"][0], result["bare"]))
        result["over_bare"] = ours / least
        result["pass"] = pass_over(solver, setting, args)
        print(json.dumps({"over_bare": result["over_bare"], "pass": result["pass"]}), flush=True)
    name = args.name or f"exact-weights-{jax.default_backend()}-{args.dtype}"
    write_result(name, result | {"memory": peak_memory()})


if __name__ == "__main__":
    main()
