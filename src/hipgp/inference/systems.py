"""The one linear system behind the exact full-rank posterior, and its certified solve.

With A = W K W' + N, everything is A^-1 applied to data-sized vectors: the posterior mean on the grid is K W' A^-1 y.
There are two forms of it with the same answer. In *data space*, here: conjugate gradients on A itself, preconditioned by
the Vecchia factor. The distance of the approximate posterior from the exact one is KL <= r' N^-1 r / 2 nats, r the
residual (proof in docs/certificate.md). For *grid space* see `grid_space.py`.
"""

import abc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.inference.checkpoint import Checkpoint
from hipgp.residuals import Residuals
from hipgp.solvers import State, advance, start
from hipgp.toeplitz import Toeplitz
from hipgp.vecchia import Vecchia
from hipgp.weights import Weights

REFINEMENTS = 8  # restarts from the true residual, in float64, before a solve is given up


class Solved(NamedTuple):
    """A^-1 z for several z (rows), what it means on the grid, and how good it is."""

    alpha: Float[Array, "B N"]
    field: Float[Array, "B M"]  # K W' alpha
    nats: Float[np.ndarray, " B"]  # bound on the KL from the exact posterior
    steps: int
    residual: Float[Array, "B n"]  # of the system solved, in float64


class System(eqx.Module):
    """A symmetric positive system: product, preconditioner, and the error in nats of a residual."""

    @abc.abstractmethod
    def matmul(self, v: Float[Array, "B n"]) -> Float[Array, "B n"]: ...

    @abc.abstractmethod
    def precondition(self, r: Float[Array, "B n"]) -> Float[Array, "B n"]: ...

    @abc.abstractmethod
    def nats(self, r: Float[Array, "B n"]) -> Float[Array, " B"]: ...

    @abc.abstractmethod
    def from_data(self, z: Float[Array, "B N"]) -> Float[Array, "B n"]:
        """The right-hand side that stands for data z."""

    @abc.abstractmethod
    def answer(self, z: Float[Array, "B N"], x: Float[Array, "B n"]) -> tuple[Array, Array, Array]:
        """The product with x; and what x stands for as the solution for data z: alpha = A^-1 z, and the field K W' alpha."""


class DataSystem(System):
    """A = W K W' + R + N, R where residuals of points are held jointly (`residuals.py`)."""

    toeplitz: Toeplitz
    weights: Weights
    noise: Float[Array, " N"]  # variances
    vecchia: Vecchia | None
    residuals: Residuals | None = None

    def spread(self, v: Float[Array, "B N"]) -> Float[Array, "B N"]:
        """(N + R) v."""
        own = self.noise * v
        return own if self.residuals is None else own + self.residuals.covariance.matmul(v)

    def matmul(self, v: Float[Array, "B n"]) -> Float[Array, "B n"]:
        return self.answer(v, v)[0]

    def precondition(self, r: Float[Array, "B n"]) -> Float[Array, "B n"]:
        return r / self.noise if self.vecchia is None else self.vecchia.precondition(r)

    def nats(self, r: Float[Array, "B n"]) -> Float[Array, " B"]:
        return 0.5 * jnp.sum(r**2 / self.noise, axis=-1)

    def from_data(self, z: Float[Array, "B N"]) -> Float[Array, "B n"]:
        return z

    def answer(self, z: Float[Array, "B N"], x: Float[Array, "B n"]) -> tuple[Array, Array, Array]:
        field = self.toeplitz.flat_matmul(self.weights.transpose_matmul(x))
        return self.weights.matmul(field) + self.spread(x), x, field


def in_float64(tree: Any) -> Any:
    """The same with every array of floats in float64."""
    return jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, tree)


# Each of these is compiled as one, and they are few: to compile takes longer than to solve a small problem.


class _Stand(NamedTuple):
    """Where a solve stands between refinements."""

    x: Float[Array, "B n"]  # in float64
    residual: Float[Array, "B n"]  # in float64
    nats: Float[Array, " B"]
    # to go on from: the residual in units of its largest entry, which keeps float32 far from under- and overflow
    state: State
    scale: Float[Array, "B 1"]


def _standing(system: System, x: Array, r: Array, dtype: Any) -> _Stand:
    scale = jnp.max(jnp.abs(r), axis=-1, keepdims=True)
    rhs = (r / jnp.where(scale > 0, scale, 1)).astype(dtype)
    return _Stand(x, r, in_float64(system).nats(r), start(rhs, system.nats), scale)


@eqx.filter_jit
def _begin(system: System, z: Array) -> tuple[Array, _Stand]:
    """The right-hand side in float64, and the solve from zero."""
    rhs = system.from_data(z).astype(jnp.float64)
    return rhs, _standing(system, jnp.zeros_like(rhs), rhs, z.dtype)


@eqx.filter_jit
def _advance(system: System, state: State, target: Any, steps: Any) -> State:
    return advance(system.matmul, system.precondition, system.nats, target, state, steps)


@eqx.filter_jit
def _refined(
    system: System, z: Array, rhs: Array, x: Array, scale: Array, value: Array
) -> tuple[_Stand, Array, Array]:
    """x with what has been found, its true residual, whatever the solver's own precision, and what it means."""
    x = x + scale * value.astype(x.dtype)
    product, alpha, field = in_float64(system).answer(z.astype(x.dtype), x)
    return _standing(system, x, rhs - product, z.dtype), alpha.astype(z.dtype), field.astype(z.dtype)


def solve(
    system: System,
    z: Float[Array, "B N"],
    tolerance: float | Float[np.ndarray, " B"],
    max_iterations: int,
    report: Callable[[int, float], None] = lambda steps, nats: None,
    checkpoint: Checkpoint | None = None,
) -> Solved:
    """A^-1 z to `tolerance` nats (per row, if an array), the certificate taken from the true residual in float64.

    In float32 the recurrence's residual drifts from the true one: the solve is then restarted from the true residual
    (iterative refinement), which costs one product each time.
    """
    target = np.broadcast_to(np.asarray(tolerance, z.dtype), (z.shape[0],))
    rhs, stand = _begin(system, z)
    steps, nats, found = 0, np.asarray(stand.nats), None
    if checkpoint is not None and (saved := checkpoint.load(rhs.shape)) is not None:
        x, steps, (state, scale) = saved
        stand, nats = stand._replace(x=x, state=state, scale=scale), np.full_like(nats, np.inf)
    for _ in range(REFINEMENTS):
        if np.all(nats <= target) or steps >= max_iterations:
            break
        size = np.asarray(stand.scale)[:, 0]
        inner = (0.5 * target / np.where(size > 0, size**2, 1)).astype(z.dtype)
        before = steps
        state, steps = _run(system, stand, inner, steps, max_iterations, report, checkpoint)
        found = _refined(system, z, rhs, stand.x, stand.scale, state.value)
        stand, after = found[0], np.asarray(found[0].nats)
        stuck = bool(np.all(after > 0.5 * nats)) or steps == before
        nats = after
        if stuck:
            break
    if found is None:
        found = _refined(system, z, rhs, stand.x, stand.scale, stand.state.value)
    stand, alpha, field = found
    return Solved(alpha, field, np.asarray(stand.nats), steps, stand.residual)


def _run(
    system: System,
    stand: _Stand,
    target: Float[np.ndarray, " B"],
    steps: int,
    max_iterations: int,
    report: Callable[[int, float], None],
    checkpoint: Checkpoint | None,
) -> tuple[State, int]:
    """Advance in pieces of about a second, so that progress shows and checkpoints are written."""
    piece, done, size, state = 5, 0, np.asarray(stand.scale)[:, 0], stand.state
    while steps + done < max_iterations:
        began = time.perf_counter()
        state = _advance(system, state, target, np.asarray(min(piece, max_iterations - steps - done)))
        active = bool(np.asarray(state.active).any())
        spent = time.perf_counter() - began
        done = int(np.asarray(state.iterations).max())
        report(steps + done, float(np.max(np.asarray(state.error) * size**2)))
        if checkpoint is not None:
            checkpoint.save(stand.x, steps, state, stand.scale)
        if not active:
            break
        piece = int(np.clip(piece * 1.0 / max(spent, 1e-3), 5, 50))
    return state, steps + done


def machine_memory(system: System) -> int:
    """Bytes held by the system's arrays."""
    leaves = jax.tree.leaves(eqx.filter(system, eqx.is_array))
    return int(sum(leaf.nbytes for leaf in leaves))
