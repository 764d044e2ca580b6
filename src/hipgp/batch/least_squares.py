"""The trend's coefficients by generalised least squares, within the certified solve.

With a flat prior on beta, y = X beta + L f + noise has alpha = A^-1 (y - X beta) with X' alpha = 0. For any alpha and
beta with X' alpha = 0 the KL from the exact joint posterior of field and coefficients is at most r' N^-1 r / 2 with
r = y - X beta - A alpha, as without a trend (docs/certificate.md). Two measures make this independent of units: an
ordinary fit is subtracted from y first, so that no large coefficients multiply a residual, and the columns are scaled to
the size of the remainder, so that no column counts as solved because its units are small.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.batch.systems import Solved, System, solve
from hipgp.runtime.programs import bounded_jit

COLUMN_SHARE = 0.1  # fraction of the tolerance for the solves of the columns


class RightHandSides(NamedTuple):
    """The residual of an ordinary fit of y and, as further rows, the scaled columns of the trend."""

    z: Float[np.ndarray, "B N"]
    beta: Float[np.ndarray, " p"]  # the ordinary fit
    scale: Float[np.ndarray, " p"]  # of each column


class TrendSolution(NamedTuple):
    """The solution with generalised least-squares coefficients, and its bound on the KL from the exact one."""

    alpha: Float[Array, " N"]
    field: Float[Array, " M"]
    beta: Float[np.ndarray, " p"]
    covariance: Float[np.ndarray, "p p"]
    kl_bound: float  # nats
    steps: int
    alpha_of_columns: Float[np.ndarray, "p N"]  # A^-1 X

    def diagnostics(self, tolerance: float) -> dict[str, Any]:
        """Diagnostics of the solve: steps, KL bound, and whether it reached `tolerance` nats."""
        return {
            "iterations": self.steps,
            "kl_nats": self.kl_bound,
            "tolerance_nats": tolerance,
            "converged": self.kl_bound <= tolerance,
        }

    @property
    def solved(self) -> dict[str, Any]:
        """The arrays that a posterior keeps."""
        return {
            "alpha": self.alpha,
            "field": self.field,
            "beta": self.beta,
            "beta_covariance": self.covariance,
            "alpha_of_columns": self.alpha_of_columns,
        }


def right_hand_sides(
    y: Float[np.ndarray, " N"], columns: Float[np.ndarray, "N p"], noise_std: Float[np.ndarray, " N"]
) -> RightHandSides:
    """A least-squares fit weighted by the noise; a ValueError if the data do not determine the trend."""
    y = np.asarray(y, float)
    p = columns.shape[1]
    size = np.sqrt(np.mean(columns**2, axis=0))
    unit = columns / np.where(size > 0, size, 1.0) / np.asarray(noise_std, float)[:, None]
    rank = int(np.linalg.matrix_rank(unit)) if p else 0
    if rank < p:
        raise ValueError(
            f"trend: expected data that determine its {p} coefficients, got data that determine {rank} of them; use a "
            "simpler trend"
        )
    beta = np.linalg.lstsq(unit, y / noise_std, rcond=None)[0] / np.where(size > 0, size, 1.0)
    rest = y - columns @ beta
    left = np.sqrt(np.mean(rest**2))
    scale = (left if left > 1e-12 * np.sqrt(np.mean(y**2)) else float(np.mean(noise_std))) / size
    return RightHandSides(np.concatenate([rest[None], (columns * scale).T]), beta, scale)


def row_tolerances(tolerance: float, p: int) -> Float[np.ndarray, " B"]:
    """The tolerance of each right-hand side such that their combination stays within `tolerance` (root nats add)."""
    share = tolerance / (1 + p) ** 2
    return np.array([share] + [COLUMN_SHARE * share] * p)


def combine(
    system: System, solved: Solved, rows: RightHandSides, tolerance: float, max_iterations: int, dtype: Any
) -> TrendSolution:
    """beta, its covariance, and alpha = A^-1 (y - X beta), from the solves for y's residual and for the columns."""
    p = len(rows.beta)
    if p == 0:
        return TrendSolution(
            solved.alpha[0],
            solved.field[0],
            rows.beta,
            np.zeros((0, 0)),
            float(solved.kl_bound[0]),
            solved.steps,
            np.zeros((0, solved.alpha.shape[1])),
        )
    total, first, steps = np.zeros(p), solved, solved.steps
    for attempt in range(2):
        part, alpha, field, bound = _orthogonal_to_columns(system, first, solved, rows)
        total = total + part
        if bound <= tolerance or attempt == 1:
            break
        z = np.zeros_like(rows.z)  # of as many rows as before, for which the solve is compiled
        z[0] = rows.z[0] - total @ rows.z[1:]
        first = solve(system, jnp.asarray(z, dtype), tolerance / 4, max_iterations)
        steps += first.steps
    inner = rows.z[1:] @ np.asarray(solved.alpha[1:], float).T
    covariance = np.linalg.inv((inner + inner.T) / 2) * np.outer(rows.scale, rows.scale)
    of_columns = np.asarray(solved.alpha[1:], float) / rows.scale[:, None]
    return TrendSolution(alpha, field, rows.beta + rows.scale * total, covariance, bound, steps, of_columns)


def _orthogonal_to_columns(
    system: System, first: Solved, solved: Solved, rows: RightHandSides
) -> tuple[np.ndarray, Array, Array, float]:
    """The coefficients that make X' alpha = 0, and the combination's alpha, field and KL bound."""
    inner = rows.z[1:] @ np.asarray(solved.alpha[1:], float).T
    beta = np.linalg.solve(inner, rows.z[1:] @ np.asarray(first.alpha[0], float))
    arrays = lambda s: (s.alpha, s.field, s.residual)
    alpha, field, bound = _without_trend(system, beta, arrays(first), arrays(solved))
    return beta, alpha, field, float(bound)


@bounded_jit()
def _without_trend(
    system: System, beta: Any, of_data: tuple[Array, ...], of_columns: tuple[Array, ...]
) -> tuple[Array, ...]:
    """alpha and field of y less beta times those of the columns, and the KL bound of the combined residual."""
    alpha, field, residual = (
        a[0] - beta.astype(b.dtype) @ b[1:] for a, b in zip(of_data, of_columns, strict=True)
    )
    return alpha, field, system.kl_bound(residual[None])[0]
