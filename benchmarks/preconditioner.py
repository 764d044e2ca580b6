"""How many iterations does the circulant preconditioner save? (paper, section 5.1 and appendix C.1)

    python benchmarks/preconditioner.py            # a few minutes; writes results/preconditioner.json

Section 5.1: 2-D grids on [0, 4] x [-2, 2], variance 1, lengthscale 0.1, 25 random right-hand sides, |r| <= 1e-10 |b|;
beside our counts those of the authors' code, run by us on the same problem. Appendix C.1: M points in [0, 2], four
kernels, lengthscales 0.05 and 0.5; r_pcg = PCG / CG iterations.

Where K is singular to rounding, white noise has no K^-1: a solve then ends where rounding does, farther from b than
where it began. Such cases are counted as unsolvable, for either method, and stated; the right-hand sides that hipgp
itself solves for, k* at random places, have a solution at every M, and are measured beside.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from machine import facts

from hipgp.grid import Grid
from hipgp.kernels import Kernel, elementary
from hipgp.solvers import Solution, conjugate_gradients
from hipgp.toeplitz import Toeplitz, embed

TOLERANCE, SIDES = 1e-10, 25
MOST = 5000  # iterations; where CG needs more, r_pcg is an upper bound
AUTHORS = {  # CG, PCG iterations at 25 x 25, 50 x 50, 100 x 100
    "Matern12": ((22, 7), (60, 12), (166, 22)),
    "Matern32": ((25, 7), (109, 15), (575, 43)),
    "Matern52": ((26, 6), (166, 17), (1599, 75)),
}
SIZES = (10, 12, 15, 20, 30, 50, 100, 200, 300, 500)


@eqx.filter_jit
def solve(toeplitz: Toeplitz, rhs: Any, preconditioned: bool) -> Solution:
    on_grid = lambda f: lambda v: f(v.reshape(-1, *toeplitz.shape)).reshape(v.shape)
    precondition = on_grid(toeplitz.circulant_inverse) if preconditioned else lambda v: v
    return conjugate_gradients(
        on_grid(toeplitz.matmul), rhs, precondition=precondition, tolerance=TOLERANCE, max_iterations=MOST
    )


def compare(kernel: Kernel, grid: Grid, rhs: np.ndarray) -> dict[str, Any]:
    """Iterations of CG and PCG (mean over the sides), and how well each ended."""
    toeplitz = embed(kernel, grid)
    row: dict[str, Any] = {"clipped_mass": float(toeplitz.clipped_mass)}
    for name, preconditioned in (("cg", False), ("pcg", True)):
        found = solve(toeplitz, rhs, preconditioned)
        row[name] = round(float(np.mean(found.iterations)), 2)
        row[f"{name}_converged"] = int(np.sum(found.converged))
        row[f"{name}_residual"] = float(f"{np.max(found.error):.2g}")
    # farther from b than x = 0 is: rounding has eaten the answer, and there is none to be had
    row["solvable"] = min(row["cg_residual"], row["pcg_residual"]) < 1
    row["r_pcg"] = round(row["pcg"] / row["cg"], 3) if row["solvable"] else None
    return row


def section_5_1() -> list[dict[str, Any]]:
    rng, rows = np.random.default_rng(0), []
    for name, counts in AUTHORS.items():
        for n, (cg, pcg) in zip((25, 50, 100), counts, strict=True):
            grid = Grid.cover((0.0, -2.0), (4.0, 2.0), shape=(n, n))
            row = compare(elementary()[name](1.0, 0.1), grid, rng.normal(size=(SIDES, grid.size)))
            rows.append({"kernel": name, "grid": [n, n], "authors_cg": cg, "authors_pcg": pcg, **row})
            print(rows[-1], flush=True)
    return rows


def appendix_c_1() -> list[dict[str, Any]]:
    rng, rows = np.random.default_rng(1), []
    for name in ("Matern12", "Matern32", "Matern52", "SquaredExponential"):
        for lengthscale in (0.05, 0.5):
            kernel = elementary()[name](1.0, lengthscale)
            for m in SIZES:
                grid = Grid.cover(0.0, 2.0, shape=m)
                places = rng.uniform(0.0, 2.0, (SIDES, 1))
                sides = {"white": rng.normal(size=(SIDES, m)), "k*": kernel(places, grid.coordinates())}
                for kind, rhs in sides.items():
                    row = compare(kernel, grid, rhs)
                    rows.append({"kernel": name, "lengthscale": lengthscale, "M": m, "rhs": kind, **row})
                    print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).parent / "results" / "preconditioner.json"
    parser.add_argument("--out", type=Path, default=default)
    out: Path = parser.parse_args().out
    jax.config.update("jax_enable_x64", True)
    begin = time.time()
    result = {"machine": facts(), "section 5.1": section_5_1(), "appendix C.1": appendix_c_1()}
    result["seconds"] = round(time.time() - begin)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    worst = max((r["r_pcg"] for r in result["appendix C.1"] if r["solvable"]), default=None)
    print(
        f"largest r_pcg: {worst}; {sum(not r['solvable'] for r in result['appendix C.1'])} unsolvable; wrote {out}"
    )


if __name__ == "__main__":
    main()
