"""A fit that starts from the posterior of most of its data: after some were added, or taken away.

With alpha = A^-1 y known for the observations o, and others n added (or d taken away), the new solution is known but for
conditionals of a few observations given all others:

    added:       alpha' = (alpha, 0) + S_n' S_n r,    r the residual,   S_n the rows of a Vecchia factor that has n last,
    taken away:  alpha' = alpha_o + B' alpha_d,       B = A_do A_oo^-1, the weights of d given o.

Given all others means, nearly, given the nearest NEAREST of them. What that leaves is removed by steps of minimal residuals,
measured as the certificate measures them. Conjugate gradients, which minimise the error of A's own norm, need twice as many
here: they would first make the residual larger. The certified solve then starts from what was found.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Array, Bool, Float, Int

from hipgp.linalg.krylov import Solution, minimal_residuals
from hipgp.model.nodes import Nodes
from hipgp.model.problem import Problem
from hipgp.runtime import memory
from hipgp.runtime.arrays import on_device
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit
from hipgp.vecchia import factor as vecchia
from hipgp.vecchia.conditioning_sets import location_features, target_groups
from hipgp.vecchia.group_covariances import coarse_data_nodes

if TYPE_CHECKING:
    from hipgp.batch.least_squares import RightHandSides
    from hipgp.batch.posterior import BatchPosterior
    from hipgp.batch.systems import System

NEAREST = 256  # observations that an added one, or one that is taken away, is conditioned on
MOST_STEPS = 16  # of minimal residuals, whose directions are all kept


class Start(NamedTuple):
    """A first guess for a fit: A^-1 times the data less their trend, its coefficients, and A^-1 times its columns."""

    alpha: Float[np.ndarray, " N"]
    beta: Float[np.ndarray, " p"]
    of_columns: Float[np.ndarray, "p N"]
    added: Bool[np.ndarray, " N"]  # observations of which nothing is known

    def in_order(self, order: Int[np.ndarray, " N"]) -> "Start":
        return Start(self.alpha[order], self.beta, self.of_columns[:, order], self.added[order])

    def of(self, rows: "RightHandSides") -> Float[np.ndarray, "B N"]:
        """Return a first guess for these right-hand sides."""
        of_data = self.alpha + (self.beta - rows.beta) @ self.of_columns
        return np.concatenate([of_data[None], rows.scale[:, None] * self.of_columns])


def start_from(post: "BatchPosterior", kept: Int[np.ndarray, " n"], added: int) -> Start:
    """Return the solution for the observations numbered `kept`, followed by zeros for `added` new ones."""
    alpha = np.concatenate([np.asarray(a, float) for a in (post.alpha[None], post.alpha_of_columns)])
    left = np.setdiff1d(np.arange(alpha.shape[1]), kept)
    known = alpha[:, kept]
    if len(left):
        known = known + _contribution_of_left(post, kept, left, alpha[:, left])
    filled = np.concatenate([known, np.zeros((len(known), added))], axis=1)
    is_added = np.arange(filled.shape[1]) >= len(kept)
    return Start(filled[0], np.asarray(post.beta, float), filled[1:], is_added)


@float64_available
def _contribution_of_left(
    post: "BatchPosterior",
    kept: Int[np.ndarray, " n"],
    left: Int[np.ndarray, " d"],
    alpha: Float[np.ndarray, "B d"],
) -> Float[np.ndarray, "B n"]:
    """Return B' alpha of the observations that are left out."""
    nodes, places = _nodes_and_places(post.problem)
    noise = np.asarray(post.noise_variance, float)[kept]
    groups = target_groups(places[kept], places[left], 1, NEAREST)
    of_left = vecchia.conditionals(post.kernel, nodes[kept], noise, nodes[left], groups)
    entries = of_left.coefficients.ravel(), of_left.near.ravel()
    width = of_left.near.shape[1]
    matrix = scipy.sparse.csr_array(
        (*entries, np.arange(len(left) + 1) * width), shape=(len(left), len(kept))
    )
    return (matrix.T @ alpha[:, np.asarray(groups.index[:, -1]) - len(kept)].T).T


def _nodes_and_places(problem: Problem) -> tuple[Nodes, Float[np.ndarray, "N F"]]:
    """Return the observations as coarse nodes, and where they are in the kernel's coordinates."""
    nodes = coarse_data_nodes(problem.data, problem.kernel)
    return nodes, location_features(nodes, problem.kernel)


def guess(
    system: "System",
    problem: Problem,
    start: Start,
    rows: "RightHandSides",
    z: Array,
    target: Float[np.ndarray, " B"],
) -> tuple[Array, int]:
    """Return a first guess of the system's unknowns for A^-1 z, and the steps it took; `rows` are what z was made of."""
    alpha = on_device(start.of(rows), z.dtype)
    if system.space == "grid":
        return system.unknowns_of(alpha), 0
    residual = _residual(system, z, alpha)
    if np.any(start.added):
        factor = _factor_of_added(problem, np.asarray(system.noise, float), np.flatnonzero(start.added))
        local = (factor.T @ (factor @ np.asarray(residual, float).T)).T
        alpha = alpha + on_device(local, z.dtype)
        residual = _residual(system, z, alpha)
    if not memory.fits(2.0 * MOST_STEPS * z.size * z.dtype.itemsize):
        return alpha, 0
    found = _steps(system, residual, on_device(target, z.dtype))
    return alpha + found.value, int(np.max(np.asarray(found.iterations)))


@float64_available
def _factor_of_added(
    problem: Problem, noise: Float[np.ndarray, " N"], added: Int[np.ndarray, " n"]
) -> scipy.sparse.csr_array:
    """Return the rows of a Vecchia factor of the observations that were added, all others before them."""
    nodes, places = _nodes_and_places(problem)
    return vecchia.last_rows(problem.kernel, nodes, places, noise, added, NEAREST)


@bounded_jit()
def _residual(system: "System", z: Array, alpha: Array) -> Array:
    return z - system.matmul(alpha)


@bounded_jit()
def _steps(system: "System", residual: Array, target: Array) -> Solution:
    return minimal_residuals(
        system.matmul, residual, 0.5 / system.noise, target, precondition=system.precondition, most=MOST_STEPS
    )
