"""How long does it take to whiten 200 observations? (section 5.2, appendix C.2)

k_n = R' K^-1 k* for 200 random places in [0, 2], M inducing points, variance 0.1, lengthscale 2 / M: by PCG with the
circulant (HIP-GP, to 1e-10), by a Cholesky factor (SVGP; R is its own), and by local weights (no solve). Seconds do not
include compilation. Whatever R is, k_n'k_n is the same, which is the check: `disagreement` is its largest difference
from the PCG's, relative to the variance. Local weights are another, nearby answer.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import hipgp as hg
from hipgp import plots
from hipgp.weights import exact as weights
from hipgp.weights import stencils
from hipgp.weights.toeplitz import Toeplitz, embed

from . import systems
from .outcome import NOT_POSSIBLE, Result

EXTENT, VARIANCE, OBSERVATIONS = 2.0, 0.1, 200
AT_ONCE = 2**24  # numbers in one block of k*
KERNELS = {
    "Matern 1/2": hg.Matern12,
    "Matern 3/2": hg.Matern32,
    "Matern 5/2": hg.Matern52,
    "squared exponential": hg.SquaredExponential,
}
SIZES = (10**3, 10**4, 10**5, 10**6)
PAPER = {  # seconds of HIP-GP and of SVGP on a V100, float32
    "Matern 1/2": ((0.0078, 0.0187, 0.3484, 1.4727), (0.0152, 0.1516)),
    "Matern 3/2": ((0.0087, 0.0192, 0.3479, 1.4656), (0.0142, 0.1379)),
    "Matern 5/2": ((0.0045, 0.0185, 0.3475, 1.4595), (0.0175, 0.1745)),
    "squared exponential": ((0.0112, 0.0199, 0.3683, 2.3433), (0.7090, 0.0992)),
}


def run(size: str, data: Path | None, folder: Path, progress: bool) -> Result:
    counts = (*SIZES[:1], 3000) if size == "small" else SIZES
    result = Result("Speed-up over the Cholesky decomposition")
    table = result.table("Seconds to whiten 200 observations", progress)
    places = np.random.default_rng(0).uniform(0.0, EXTENT, (OBSERVATIONS, 1))
    with jax.enable_x64(True):
        for name, kind in KERNELS.items():
            for m in counts:
                grid = hg.Grid.cover(0.0, EXTENT, shape=m)
                measured = measure(kind(VARIANCE, EXTENT / m), grid, places)
                paper = PAPER[name][0][SIZES.index(m)] if m in SIZES else ""
                table.add(kernel=name, M=m, **measured, paper_HIP_GP=paper, paper_SVGP=_paper_svgp(name, m))
    ratios = [r["SVGP"] / r["HIP_GP"] for r in table.rows if isinstance(r["SVGP"], float)]
    faster = sum(r > 1 for r in ratios)
    result.conclude(
        "HIP-GP whitens faster than Cholesky at every M that both reach", "1.6 to 63 times as fast",
        f"{min(ratios):.2g} to {max(ratios):.2g} times as fast",
        "holds" if faster == len(ratios) else f"holds in {faster} of {len(ratios)} cases",
    )  # fmt: skip
    result.draw(picture(table.rows), folder / "whitening.png")
    return result


def _paper_svgp(name: str, m: int) -> Any:
    if m not in SIZES:
        return ""
    known = PAPER[name][1]
    return known[SIZES.index(m)] if SIZES.index(m) < len(known) else NOT_POSSIBLE


def measure(kernel: Any, grid: hg.Grid, places: np.ndarray) -> dict[str, Any]:
    seconds, explained, steps = by_solves(kernel, grid, places)
    local_seconds, local = by_stencils(kernel, grid, places)
    svgp_seconds: Any = NOT_POSSIBLE
    svgp_off: Any = NOT_POSSIBLE
    if systems.fits_memory("SVGP", grid):
        svgp_seconds, cholesky = by_cholesky(kernel, grid, places)
        svgp_off = float(np.max(np.abs(cholesky - explained)) / VARIANCE)
    return {
        "HIP_GP": seconds,
        "PCG_iterations": steps,
        "SVGP": svgp_seconds,
        "local_weights": local_seconds,
        "disagreement_of_SVGP": svgp_off,
        "disagreement_of_local": float(np.max(np.abs(local - explained)) / VARIANCE),
    }


def by_solves(kernel: Any, grid: hg.Grid, places: np.ndarray) -> tuple[float, np.ndarray, int]:
    """The paper's: the embedding, w = K^-1 k* by PCG, and k = R' w."""

    def whiten() -> tuple[np.ndarray, int]:
        toeplitz, explained, steps = embed(kernel, grid), [], 0
        for block in blocks(grid, places):
            k, iterations = _solved(kernel, toeplitz, block)
            explained.append(np.asarray(_explained(k)))
            steps = max(steps, int(np.max(iterations)))
        return np.concatenate(explained)[: len(places)], steps

    seconds, (explained, steps) = timed(whiten)
    return seconds, explained, steps


def by_stencils(kernel: Any, grid: hg.Grid, places: np.ndarray) -> tuple[float, np.ndarray]:
    """w from the four nearest points, and k = R' w."""

    def whiten() -> np.ndarray:
        toeplitz = embed(kernel, grid)
        data = hg.observe(hg.Points(places), np.zeros(len(places)))
        local = stencils.LocalWeights.from_rows(
            stencils.local_weight_rows(kernel, grid, data.functionals), np.float64
        )
        rows = jnp.eye(len(places))
        chunk = len(next(blocks(grid, places)))
        found = [_spread(toeplitz, local, rows[i : i + chunk]) for i in range(0, len(places), chunk)]
        return np.concatenate([np.asarray(f) for f in found])

    return timed(whiten)


def by_cholesky(kernel: Any, grid: hg.Grid, places: np.ndarray) -> tuple[float, np.ndarray]:
    """The standard SVGP: K = L L', k = L^-1 k*."""
    return timed(
        lambda: np.asarray(
            _explained(_factored(kernel, jnp.asarray(grid.coordinates()), jnp.asarray(places)))
        )
    )


def blocks(grid: hg.Grid, places: np.ndarray) -> Iterator[jax.Array]:
    """As many places at a time as memory allows, the last block filled up so that all are of one size."""
    count = min(len(places), max(1, AT_ONCE // grid.size))
    for begin in range(0, len(places), count):
        yield jnp.asarray(places[np.minimum(np.arange(begin, begin + count), len(places) - 1)])


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the second call: the first compiles."""
    function()
    began = time.perf_counter()
    found = function()
    return time.perf_counter() - began, found


@eqx.filter_jit
def _solved(kernel: Any, toeplitz: Toeplitz, places: Any) -> tuple[Any, Any]:
    cross = _gram(kernel, places, jnp.asarray(toeplitz.torus.grid.coordinates()))
    found = weights.solve_grid(toeplitz, cross, tolerance=1e-10)
    return toeplitz.root_transpose(found.value), found.iterations


@eqx.filter_jit
def _spread(toeplitz: Toeplitz, local: stencils.LocalWeights, rows: Any) -> Any:
    return _explained(toeplitz.root_transpose(local.transpose_matmul(rows)))


@eqx.filter_jit
def _factored(kernel: Any, points: Any, places: Any) -> Any:
    factor = jnp.linalg.cholesky(_gram(kernel, points, points))
    return jax.scipy.linalg.solve_triangular(factor, _gram(kernel, points, places), lower=True).T


def _gram(kernel: Any, a: Any, b: Any) -> Any:
    return kernel.evaluate(a.T[:, :, None] - b.T[:, None, :])


def _explained(k: Any) -> Any:
    return jnp.sum(k**2, axis=-1)


@plots.styled
def picture(rows: list[dict[str, Any]]) -> plots.Figure:
    """Seconds against M, a panel for each kernel; the paper's in grey."""
    fig = plots.figure(3.4 * len(KERNELS), 3.6)
    lines = {
        "HIP_GP": ("HIP-GP", plots.SECOND, "o-"),
        "SVGP": ("Cholesky", plots.ACCENT, "s-"),
        "local_weights": ("local weights", plots.INK, "^-"),
        "paper_HIP_GP": ("the paper's HIP-GP (V100)", "#9aa3af", "o:"),
        "paper_SVGP": ("the paper's SVGP (V100)", "#9aa3af", "s:"),
    }
    for ax, name in zip(fig.subplots(1, len(KERNELS), sharey=True), KERNELS, strict=True):
        some = [r for r in rows if r["kernel"] == name]
        for key, (label, colour, style) in lines.items():
            known = [(r["M"], r[key]) for r in some if isinstance(r[key], float)]
            if known:
                ax.loglog(*np.array(known).T, style, color=colour, ms=4, lw=1.3, label=label)
        ax.set(title=name, xlabel="M")
    fig.axes[0].set_ylabel("seconds")
    fig.axes[0].legend(fontsize=8)
    return fig
