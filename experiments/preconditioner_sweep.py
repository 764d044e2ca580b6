"""When does the circulant preconditioner work? Four kernels, two lengthscales, M points in [0, 2] (appendix C.1).

r_pcg = PCG / CG iterations to |r| <= 1e-10 |b|, 25 right-hand sides. Where K is singular to rounding, white noise (the
paper's sides) has no K^-1: both methods end farther from b than where they began. Such cases are "none". The sides that
hipgp itself solves for, k* at random places, have a solution at every M, and are measured beside them.
"""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

import hipgp as hg
from hipgp.apps import plots
from hipgp.linalg import krylov as solvers
from hipgp.weights.toeplitz import Toeplitz, embed

from .outcome import Result
from .preconditioner import SIDES, TOLERANCE, products

MOST = 5000  # iterations; where CG needs more, r_pcg is an upper bound
KERNELS = {
    "squared exponential": hg.SquaredExponential,
    "Matern 5/2": hg.Matern52,
    "Matern 3/2": hg.Matern32,
    "Matern 1/2": hg.Matern12,
}
LENGTHSCALES = (0.05, 0.5)
# iterations of CG and PCG that the authors' notebook prints for lengthscale 0.05; in float32, and CG cut off at 2,000
AUTHORS = {
    "squared exponential": {10: (2, 1), 20: (11, 2), 100: (2000, 42), 200: (2000, 67), 300: (2000, 87), 500: (2000, 102)},
    "Matern 5/2": {10: (3, 1), 20: (11, 2), 100: (319, 6), 200: (2000, 12), 300: (2000, 17), 500: (2000, 41)},
    "Matern 3/2": {10: (4, 1), 20: (11, 2), 100: (156, 5), 200: (591, 6), 300: (1327, 8), 500: (2000, 11)},
    "Matern 1/2": {10: (5, 1), 20: (11, 2), 100: (56, 3), 200: (111, 3), 300: (168, 3), 500: (282, 4)},
}  # fmt: skip


def run(size: str, data: Path | None, folder: Path, progress: bool) -> Result:
    points = (10, 20, 50, 100) if size == "small" else (10, 12, 15, 20, 30, 50, 100, 200, 300, 500)
    result = Result("When the preconditioner works")
    table = result.table("Iterations, mean over 25 right-hand sides", progress)
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        for name, kind in KERNELS.items():
            for lengthscale in LENGTHSCALES:
                kernel = kind(1.0, lengthscale)
                for m in points:
                    grid = hg.Grid.cover(0.0, 2.0, shape=m)
                    places = rng.uniform(0.0, 2.0, (SIDES, 1))
                    white = compare(kernel, grid, rng.normal(size=(SIDES, m)))
                    cross = compare(kernel, grid, np.asarray(kernel(places, grid.coordinates())))
                    paper = AUTHORS[name].get(m) if lengthscale == LENGTHSCALES[0] else None
                    table.add(
                        kernel=name,
                        lengthscale=lengthscale,
                        M=m,
                        CG=white["CG"],
                        PCG=white["PCG"],
                        r_pcg=white["r_pcg"],
                        authors="" if paper is None else f"{paper[0]} and {paper[1]}",
                        r_pcg_of_cross_covariances=cross["r_pcg"],
                    )
    result.figures.append(plots.save(picture(table.rows), folder / "preconditioner-sweep.png"))
    result.figures.append(plots.save(matrices(), folder / "matrices.png"))
    return result


def compare(kernel: Any, grid: hg.Grid, rhs: np.ndarray) -> dict[str, Any]:
    """Mean iterations of CG and PCG, and their ratio where either ends nearer to b than x = 0 is."""
    toeplitz = embed(kernel, grid)
    cg, pcg = solve(toeplitz, rhs, False), solve(toeplitz, rhs, True)
    solvable = min(float(np.max(cg.error)), float(np.max(pcg.error))) < 1
    means = {"CG": float(np.mean(cg.iterations)), "PCG": float(np.mean(pcg.iterations))}
    return means | {"r_pcg": means["PCG"] / means["CG"] if solvable else "none"}


@eqx.filter_jit
def solve(toeplitz: Toeplitz, rhs: Any, preconditioned: bool) -> solvers.Solution:
    matmul, precondition = products(toeplitz, preconditioned)
    return solvers.conjugate_gradients(
        matmul, rhs, precondition=precondition, tolerance=TOLERANCE, max_iterations=MOST
    )


@plots.styled
def picture(rows: list[dict[str, Any]]) -> plots.Figure:
    """r_pcg against M, a panel for each lengthscale."""
    fig = plots.figure(9.2, 3.8)
    colours = (plots.ACCENT, plots.SECOND, "#e09f3e", plots.INK)
    for ax, lengthscale in zip(fig.subplots(1, 2, sharey=True), LENGTHSCALES, strict=True):
        for colour, name in zip(colours, KERNELS, strict=True):
            some = [r for r in rows if (r["kernel"], r["lengthscale"]) == (name, lengthscale)]
            for key, style in (("r_pcg", "o-"), ("r_pcg_of_cross_covariances", ".:")):
                m, ratio = (
                    np.array([(r["M"], r[key]) for r in some if r[key] != "none"], float).reshape(-1, 2).T
                )
                ax.loglog(m, ratio, style, color=colour, ms=4, lw=1.3, label=name if style == "o-" else None)
        ax.axhline(1, color="#9aa3af", lw=1)
        ax.set(title=f"lengthscale {lengthscale}", xlabel="M")
    fig.axes[0].set_ylabel("PCG / CG iterations")
    fig.axes[0].legend(fontsize=8)
    fig.suptitle("solid: white right-hand sides, as the paper's; dotted: k* at random places", fontsize=10)
    return fig


@plots.styled
def matrices() -> plots.Figure:
    """What the kernels look like on 10 and on 500 points: the more banded, the better C^-1 stands for K^-1."""
    fig = plots.figure(9.2, 9.6)
    panels = fig.subplots(4, 4)
    for row, (lengthscale, m) in enumerate((ell, m) for ell in LENGTHSCALES for m in (10, 500)):
        x = np.linspace(0.0, 2.0, m)[:, None]
        for ax, (name, kind) in zip(panels[row], KERNELS.items(), strict=True):
            drawn = ax.imshow(np.asarray(kind(1.0, lengthscale)(x, x)), cmap=plots.VALUE, vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[], title=name if row == 0 else "")
        panels[row][0].set_ylabel(f"lengthscale {lengthscale}, M = {m}")
    fig.colorbar(drawn, ax=panels.ravel().tolist(), shrink=0.4, label="covariance")
    return fig
