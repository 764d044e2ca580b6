"""How many iterations does the circulant preconditioner save? (section 5.1, figure 1)

2-D grids on [0, 4] x [-2, 2], Matern kernels of variance 1, 25 random right-hand sides, |r| <= 1e-10 |b|. The paper gives
neither the order nor the lengthscale: three orders at lengthscale 0.1, and Matern 5/2 at 0.14.
"""

from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import hipgp as hg
from hipgp import plots
from hipgp.linalg import krylov as solvers
from hipgp.weights.toeplitz import Toeplitz, embed

from .outcome import Result

TOLERANCE = 1e-10
MOST = 8000  # iterations; where CG needs more, the fraction is an upper bound
SIDES = 25
PROBLEMS = {
    "Matern 1/2, lengthscale 0.1": hg.Matern12(1.0, 0.1),
    "Matern 3/2, lengthscale 0.1": hg.Matern32(1.0, 0.1),
    "Matern 5/2, lengthscale 0.1": hg.Matern52(1.0, 0.1),
    "Matern 5/2, lengthscale 0.14": hg.Matern52(1.0, 0.14),
}
PAPER = {625: "< 18%", 10_000: "< 4.5%"}


class Trace(NamedTuple):
    """Mean iterations to convergence, the sides that got there, and the RMSE after each iteration."""

    iterations: float
    converged: int
    error: np.ndarray


def run(size: str, data: Path | None, folder: Path, progress: bool) -> Result:
    sides = (25, 50) if size == "small" else (25, 50, 100)
    result = Result("Effect of the preconditioner")
    table = result.table("Iterations of CG and PCG, mean over 25 right-hand sides", progress)
    rng = np.random.default_rng(0)
    traces: dict[str, dict[int, tuple[Trace, Trace]]] = {}
    with jax.enable_x64(True):
        for name, kernel in PROBLEMS.items():
            traces[name] = {}
            for n in sides:
                grid = hg.Grid.cover((0.0, -2.0), (4.0, 2.0), shape=(n, n))
                cg, pcg = compare(kernel, grid, rng.normal(size=(SIDES, grid.size)))
                traces[name][grid.size] = cg, pcg
                table.add(
                    kernel=name,
                    M=grid.size,
                    CG=cg.iterations,
                    PCG=pcg.iterations,
                    fraction=pcg.iterations / cg.iterations,
                    converged=f"{cg.converged} and {pcg.converged} of {SIDES}",
                    paper=PAPER.get(grid.size, ""),
                )
    conclude(result, table.rows)
    result.draw(picture(traces), folder / "figure-1.png")
    return result


def conclude(result: Result, rows: list[dict[str, Any]]) -> None:
    by_kernel = [[r["fraction"] for r in rows if r["kernel"] == name] for name in PROBLEMS]
    falls = all(found == sorted(found, reverse=True) for found in by_kernel)
    spans = ", ".join(f"{found[0]:.1%} to {found[-1]:.1%}" for found in by_kernel)
    result.conclude("PCG / CG iterations fall as M grows", "yes", spans, falls)
    for m, most in ((625, 0.18), (10_000, 0.045)):
        found = [r["fraction"] for r in rows if r["M"] == m]
        if found:
            met = sum(f < most for f in found)
            verdict = "holds" if met == len(found) else f"holds for {met} of {len(found)} kernels"
            here = f"{min(found):.1%} to {max(found):.1%}"
            result.conclude(f"PCG / CG iterations at M = {m:,}", f"< {most:.1%}", here, verdict)


def compare(kernel: Any, grid: hg.Grid, rhs: np.ndarray) -> tuple[Trace, Trace]:
    toeplitz = embed(kernel, grid)
    best = _solve(toeplitz, jnp.asarray(rhs))
    return trace(toeplitz, rhs, best, False), trace(toeplitz, rhs, best, True)


def trace(toeplitz: Toeplitz, rhs: np.ndarray, best: Any, preconditioned: bool) -> Trace:
    """Step by step, with the distance from the converged solution after each."""
    sides = jnp.asarray(rhs)
    target = TOLERANCE**2 * solvers.squared_norm(sides)
    state = solvers.cg_start(sides, solvers.squared_norm)
    error = [_distance(state.value, best)]
    while bool(jnp.any(state.active)) and len(error) <= MOST:
        state = _step(toeplitz, state, target, preconditioned)
        error.append(_distance(state.value, best))
    converged = int(jnp.sum(state.error <= target))
    return Trace(float(jnp.mean(state.iterations)), converged, np.array(error))


def products(toeplitz: Toeplitz, preconditioned: bool) -> tuple[Any, Any]:
    on_grid = lambda f: lambda v: f(v.reshape(-1, *toeplitz.shape)).reshape(v.shape)
    return on_grid(toeplitz.matmul), on_grid(toeplitz.circulant_inverse) if preconditioned else lambda v: v


@eqx.filter_jit
def _step(toeplitz: Toeplitz, state: solvers.CGState, target: Any, preconditioned: bool) -> solvers.CGState:
    matmul, precondition = products(toeplitz, preconditioned)
    return solvers.cg_advance(matmul, precondition, solvers.squared_norm, target, state, 1)


@eqx.filter_jit
def _solve(toeplitz: Toeplitz, rhs: Any) -> Any:
    matmul, precondition = products(toeplitz, True)
    found = solvers.conjugate_gradients(
        matmul, rhs, precondition=precondition, tolerance=1e-2 * TOLERANCE, max_iterations=MOST
    )
    return found.value


def _distance(value: Any, best: Any) -> float:
    return float(jnp.sqrt(jnp.mean((value - best) ** 2)))


@plots.styled
def picture(traces: dict[str, dict[int, tuple[Trace, Trace]]]) -> plots.Figure:
    """The paper's figure 1: RMSE against the fraction of the iterations that CG needs."""
    fig = plots.figure(7.6, 6.0)
    panels = fig.subplots(2, 2, sharey=True, sharex=True).ravel()
    colours = (plots.SECOND, plots.ACCENT, plots.INK)
    for ax, (name, by_size) in zip(panels, traces.items(), strict=True):
        for colour, (m, (cg, pcg)) in zip(colours, by_size.items(), strict=False):
            total = len(cg.error) - 1
            for found, style, label in ((cg, (0, (4, 2)), "CG"), (pcg, "-", "PCG")):
                x = np.arange(len(found.error)) / total
                ax.semilogy(x, found.error, ls=style, color=colour, lw=1.4, label=f"{label}, M = {m:,}")
        ax.set(title=name)
    panels[0].set_ylim(bottom=1e-13)
    fig.supxlabel("iterations / those of CG", fontsize=10)
    fig.supylabel("RMSE to the converged solution", fontsize=10)
    panels[0].legend(fontsize=8)
    return fig
