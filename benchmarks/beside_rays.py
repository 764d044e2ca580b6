"""Line integrals: hipgp beside NIFTy.re's Wiener filter, the same prior, the same rays, on the same machine.

    python benchmarks/beside_rays.py --peer-python PYTHON [--stars 20000] [--shape 50 50 25]

Writes benchmarks/results/beside-rays-<stars>-<shape>.json: wall and CPU seconds of the posterior mean (first call with
compilation, and again) and of one sample, and how far each map is from the truth. NIFTy is given the same circulant
embedding of the kernel as hipgp, so that both have the same prior on the grid, and as response the simulator's own
trilinear look-up, 64 nodes a ray, tabulated (seconds apart, hipgp's beside it: those of W and preconditioner, which are
part of its mean), or its own response with as many nodes; hipgp has its default quadrature and stencil.
"""

import argparse
import itertools
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from beside import keep, run_peer, timed
from rays import simulate
from scipy import sparse

import hipgp as hg
from hipgp.weights.toeplitz import embed

COLUMNS = (
    "system",
    "mean_wall_s",
    "mean_cpu_s",
    "mean_again_wall_s",
    "mean_again_cpu_s",
    "response_wall_s",
    "sample_wall_s",
    "sample_cpu_s",
    "rmse",
    "correlation",
    "rms_from_hipgp",
    "note",
)


NODES = 64  # a ray


def look_up(grid: hg.Grid, ends: np.ndarray, nodes: int = NODES) -> tuple[np.ndarray, np.ndarray]:
    """Columns and weights of the trilinear look-up along each ray from the origin, padded to one width."""
    with ThreadPoolExecutor() as pool:
        parts = list(
            pool.map(lambda some: _rows(grid, some, nodes), np.array_split(ends, -(-len(ends) // 5_000)))
        )
    width = max(np.diff(part.indptr).max() for part in parts)
    columns, weights = np.zeros((len(ends), width), np.int32), np.zeros((len(ends), width))
    begin = 0
    for part in parts:
        counts = np.diff(part.indptr)
        rows = begin + np.repeat(np.arange(len(counts)), counts)
        slot = np.arange(part.nnz) - np.repeat(part.indptr[:-1], counts)
        columns[rows, slot], weights[rows, slot] = part.indices, part.data
        begin += len(counts)
    return columns, weights


def _rows(grid: hg.Grid, ends: np.ndarray, nodes: int) -> sparse.csr_array:
    at, share = [], []
    for q in range(nodes):
        corner, within = grid.cells(ends * ((q + 0.5) / nodes))
        for offset in np.ndindex(2, 2, 2):
            share.append(np.prod(np.where(offset, within, 1 - within), axis=1))
            at.append(np.ravel_multi_index(tuple((corner + np.array(offset)).T), grid.shape))
    values = np.stack(share, axis=1) * (np.linalg.norm(ends, axis=1) / nodes)[:, None]
    starts = np.arange(len(ends) + 1) * len(at)
    out = sparse.csr_array(
        (values.ravel(), np.stack(at, axis=1).ravel(), starts), shape=(len(ends), grid.size)
    )
    out.sum_duplicates()
    return out


def amplitude(kernel: hg.Matern32, grid: hg.Grid) -> np.ndarray:
    """Square roots of the circulant's eigenvalues, the full spectrum."""
    toeplitz = embed(kernel, grid)
    shape = toeplitz.torus.shape
    with jax.enable_x64(True):
        row = np.fft.irfftn(np.asarray(toeplitz.eigenvalues), s=shape, axes=range(len(shape)))
    return np.sqrt(np.maximum(np.fft.fftn(row).real, 0.0))


def run_hipgp(
    kernel, grid: hg.Grid, data: hg.Data, truth: np.ndarray, samples: int, once: bool
) -> tuple[dict, np.ndarray]:
    gp = hg.GP(kernel, grid)
    solve = lambda: gp.condition(data, progress=False)
    post, first = timed(solve)
    later, again = (post, first) if once else timed(solve)
    draws, first_samples = timed(lambda: post.sample(samples, key=1))
    again_samples = first_samples if once else timed(lambda: post.sample(samples, key=2))[1]
    mean = post.mean
    return {
        "system": f"hipgp {hg.__version__}",
        "mean_wall_s": first["wall"],
        "mean_cpu_s": first["cpu"],
        "mean_again_wall_s": again["wall"],
        "mean_again_cpu_s": again["cpu"],
        "response_wall_s": later.diagnostics["setup_seconds"],
        "first_samples_wall_s": first_samples["wall"],
        "sample_wall_s": again_samples["wall"] / samples,
        "sample_cpu_s": again_samples["cpu"] / samples,
        "samples": samples,
        "rmse": float(np.sqrt(np.mean((mean - truth) ** 2))),
        "correlation": float(np.corrcoef(mean.ravel(), truth.ravel())[0, 1]),
        "sample_rmse": float(np.sqrt(np.mean((draws[0] - truth) ** 2))),
        "diagnostics": {k: v for k, v in post.diagnostics.items() if k != "kl_trace"},
        "note": f"float64, {post.diagnostics['iterations']} steps" + ", first calls with compilation" * once,
    }, mean


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--stars", type=int, default=20_000)
    parser.add_argument("--shape", type=int, nargs=3, default=(50, 50, 25))
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--deltas", type=float, nargs="+", default=[1e-6, 1e-8])
    parser.add_argument("--responses", nargs="+", choices=("table", "own"), default=["table", "own"])
    parser.add_argument("--once", action="store_true", help="first calls alone, for large problems")
    parser.add_argument("--most", type=float, default=600, help="CPU seconds before a peer is stopped")
    args = parser.parse_args()
    grid, kernel, data, truth = simulate(args.stars, tuple(args.shape), "float64")
    row, mean = run_hipgp(kernel, grid, data, truth, args.samples, args.once)
    name = f"beside-rays-{args.stars}-{'x'.join(map(str, grid.shape))}"
    about = {"rays": args.stars, "grid": grid.shape, "kernel": "Matern32(1.0, 0.3)"}
    keep(name, about, [row], COLUMNS)
    block = data.blocks[0]
    rays = block.functional
    in_cells = lambda x: np.clip((x - grid.origin) / grid.spacing, 0, np.asarray(grid.shape) - 1)
    problem = {
        "y": block.y,
        "noise": np.asarray(block.noise).ravel()[0],
        "shape": grid.shape,
        "truth": truth,
        "hipgp": mean,
        "amplitude": amplitude(kernel, grid),
        "start": np.broadcast_to(in_cells(rays.start), rays.end.shape),
        "end": in_cells(rays.end),
        "spacing": grid.spacing,
        "nodes": NODES,
    }
    if "table" in args.responses:
        (columns, weights), making = timed(lambda: look_up(grid, rays.end))
        problem |= {"columns": columns, "weights": weights, "response_wall_s": making["wall"]}
    for delta, response in itertools.product(args.deltas, args.responses):
        options = ["--delta", str(delta), "--samples", "1", *(["--once"] if args.once else [])]
        options += ["--own-response"] if response == "own" else []
        keep(name, about, [run_peer(args.peer_python, "nifty_rays", problem, options, args.most)], COLUMNS)


if __name__ == "__main__":
    main()
