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
from hipgp import plots
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
    conclude(result, table.rows)
    for name, lengthscale in zip(("figure-S1.png", "figure-S2.png"), LENGTHSCALES, strict=True):
        result.draw(appendix(table.rows, lengthscale), folder / name)
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


def conclude(result: Result, rows: list[dict[str, Any]]) -> None:
    solved = [r["r_pcg"] for r in rows if r["r_pcg"] != "none"]
    here = f"{min(solved):.2g} to {max(solved):.2g} in {len(solved)} of {len(rows)} cases; the others have no solution"
    result.conclude(
        "r_pcg is below 1", "always", here, "holds where K^-1 b exists" if max(solved) < 1 else False
    )
    most = max(r["M"] for r in rows)
    rough, smooth = (
        [
            r["r_pcg"]
            for r in rows
            if r["kernel"] == k and r["M"] == most and r["lengthscale"] == LENGTHSCALES[0]
        ]
        for k in ("Matern 1/2", "Matern 5/2")
    )
    result.conclude(
        "rougher kernels gain more at the same M", "yes",
        f"M = {most}, lengthscale {LENGTHSCALES[0]}: Matern 1/2 {rough[0]:.2g}, Matern 5/2 {smooth[0]:.2g}",
        rough[0] < smooth[0],
    )  # fmt: skip


@plots.styled
def appendix(rows: list[dict[str, Any]], lengthscale: float) -> plots.Figure:
    """The paper's figures S1 and S2: the kernel's matrix on 10 and 500 points, and r_pcg against M, for four kernels."""
    fig = plots.figure(9.2, 6.6)
    panels = fig.subplots(3, 4)
    for column, (name, kind) in enumerate(KERNELS.items()):
        for ax, m in zip(panels[:2, column], (10, 500), strict=True):
            x = np.linspace(0.0, 2.0, m)[:, None]
            drawn = ax.imshow(np.asarray(kind(1.0, lengthscale)(x, x)), cmap=plots.VALUE, vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[], title=name if m == 10 else "")
        ax = panels[2, column]
        some = [r for r in rows if (r["kernel"], r["lengthscale"]) == (name, lengthscale)]
        for key, style, label in (
            ("r_pcg", "o-", "white right-hand sides"),
            ("r_pcg_of_cross_covariances", ".:", "k* at random places"),
        ):
            known = np.array([(r["M"], r[key]) for r in some if r[key] != "none"], float).reshape(-1, 2)
            ax.loglog(*known.T, style, color=plots.SECOND, ms=4, lw=1.3, label=label)
        ax.axhline(1, color="#9aa3af", lw=1)
        ax.set(xlabel="M", xlim=(8, 650), ylim=(8e-4, 1.6))
        ax.tick_params(labelleft=column == 0)
    for ax, label in zip(panels[:, 0], ("M = 10", "M = 500", "PCG / CG iterations"), strict=True):
        ax.set_ylabel(label)
    panels[2, 0].legend(fontsize=8, loc="lower left")
    fig.colorbar(drawn, ax=panels[:2].ravel().tolist(), shrink=0.7, label="covariance")
    fig.suptitle(f"Lengthscale {lengthscale}", fontweight="bold")
    return fig
