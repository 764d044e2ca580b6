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
    def to_data(self, z: Float[Array, "B N"], x: Float[Array, "B n"]) -> tuple[Array, Array]:
        """alpha = A^-1 z and the field K W' alpha, from the solution x."""


class DataSystem(System):
    """A = W K W' + N."""

    toeplitz: Toeplitz
    weights: Weights
    noise: Float[Array, " N"]  # variances
    vecchia: Vecchia | None

    def field(self, a: Float[Array, "B N"]) -> Float[Array, "B M"]:
        u = self.weights.transpose_matmul(a)
        return self.toeplitz.matmul(u.reshape(-1, *self.toeplitz.shape)).reshape(u.shape)

    def matmul(self, v: Float[Array, "B n"]) -> Float[Array, "B n"]:
        return self.weights.matmul(self.field(v)) + self.noise * v

    def precondition(self, r: Float[Array, "B n"]) -> Float[Array, "B n"]:
        return r / self.noise if self.vecchia is None else self.vecchia.precondition(r)

    def nats(self, r: Float[Array, "B n"]) -> Float[Array, " B"]:
        return 0.5 * jnp.sum(r**2 / self.noise, axis=-1)

    def from_data(self, z: Float[Array, "B N"]) -> Float[Array, "B n"]:
        return z

    def to_data(self, z: Float[Array, "B N"], x: Float[Array, "B n"]) -> tuple[Array, Array]:
        return x, self.field(x)


def in_float64(tree: Any) -> Any:
    """The same with every array of floats in float64."""
    return jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, tree)


@eqx.filter_jit
def _start(system: System, residual: Array) -> State:
    return start(system.matmul, residual, system.precondition, system.nats)


@eqx.filter_jit
def _advance(system: System, state: State, target: Array, steps: Array) -> State:
    return advance(system.matmul, system.precondition, system.nats, target, state, steps)


@eqx.filter_jit
def _residual(system: System, rhs: Array, x: Array) -> tuple[Array, Array]:
    """The true residual in float64, whatever the solver's own precision."""
    exact = in_float64(system)
    r = rhs - exact.matmul(x)
    return r, exact.nats(r)


@eqx.filter_jit
def _right_hand_side(system: System, z: Array) -> Array:
    return system.from_data(z)


@eqx.filter_jit
def _back(system: System, z: Array, x: Array) -> tuple[Array, Array]:
    return system.to_data(z, x)


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
    dtype = z.dtype
    target = jnp.broadcast_to(jnp.asarray(tolerance, dtype), (z.shape[0],))
    rhs = _right_hand_side(system, z).astype(jnp.float64)
    x = jnp.zeros_like(rhs)
    steps, state = 0, None
    if checkpoint is not None and (saved := checkpoint.load(rhs.shape)) is not None:
        x, steps, state = saved
    r, nats = _residual(system, rhs, x)
    for _ in range(REFINEMENTS):
        if bool(jnp.all(nats <= target)) or steps >= max_iterations:
            break
        if state is None:
            scale = jnp.max(jnp.abs(r), axis=-1, keepdims=True)  # float32: keep far from under- and overflow
            state = _start(system, (r / jnp.where(scale > 0, scale, 1)).astype(dtype))
        else:
            scale = state[1]
            state = state[0]
        inner = (0.5 * target / jnp.where(scale[:, 0] > 0, scale[:, 0] ** 2, 1)).astype(dtype)
        before = steps
        state, steps = _run(system, state, inner, steps, max_iterations, scale, report, checkpoint, x)
        x = x + scale * state.value.astype(jnp.float64)
        state = None
        r, nats_after = _residual(system, rhs, x)
        stuck = bool(jnp.all(nats_after > 0.5 * nats)) or steps == before
        nats = nats_after
        if stuck:
            break
    alpha, field = _back(system, z, x.astype(dtype))
    return Solved(alpha, field, np.asarray(nats), steps, r)


def _run(
    system: System,
    state: State,
    target: Array,
    steps: int,
    max_iterations: int,
    scale: Array,
    report: Callable[[int, float], None],
    checkpoint: Checkpoint | None,
    x: Array,
) -> tuple[State, int]:
    """Advance in pieces of about a second, so that progress shows and checkpoints are written."""
    piece, done = 5, 0
    while steps + done < max_iterations:
        began = time.perf_counter()
        state = _advance(system, state, target, jnp.asarray(min(piece, max_iterations - steps - done)))
        active = bool(jnp.any(state.active))
        spent = time.perf_counter() - began
        done = int(jnp.max(state.iterations))
        report(steps + done, float(jnp.max(state.error * scale[:, 0] ** 2)))
        if checkpoint is not None:
            checkpoint.save(x, steps, state, scale)
        if not active:
            break
        piece = int(np.clip(piece * 1.0 / max(spent, 1e-3), 5, 50))
    return state, steps + done


def machine_memory(system: System) -> int:
    """Bytes held by the system's arrays."""
    leaves = jax.tree.leaves(eqx.filter(system, eqx.is_array))
    return int(sum(leaf.nbytes for leaf in leaves))
