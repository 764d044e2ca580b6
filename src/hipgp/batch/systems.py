"""The linear system of the exact full-rank posterior, and its certified solve.

With A = W K W' + N, mean, draws and variances need A^-1 times vectors of the data's length; the posterior mean on the grid
is K W' A^-1 y. There are two equivalent forms. In *data space*, here, conjugate gradients solve with A, preconditioned by
the Vecchia factor or by a low-rank one (`batch/low_rank.py`). The KL divergence of the approximate posterior from the
exact one is at most r' N^-1 r / 2 nats, with r the residual (proof in docs/certificate.md). *Grid space* is in
`batch/grid_space.py`.
"""

import abc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.linalg import krylov
from hipgp.linalg.krylov import CGState
from hipgp.linalg.preconditioner import Preconditioner
from hipgp.runtime.hosts import agreed
from hipgp.runtime.memory import gpu_bytes
from hipgp.runtime.programs import bounded_jit
from hipgp.weights.joint_residuals import ResidualCovariance
from hipgp.weights.operator import Weights
from hipgp.weights.toeplitz import Toeplitz

if TYPE_CHECKING:
    from hipgp.batch.checkpoint import Checkpoint

MOST_DRAWS = 64  # solved together
ON_CPU, SHARE_OF_GPU = (
    2**30,
    0.4,
)  # memory of a solve for several draws: bytes, and fraction of a GPU's memory
REFINEMENTS = 8  # restarts from the true residual, in float64, at most


class Solved(NamedTuple):
    """A^-1 z for several right-hand sides z, one per row, the field on the grid, and the certificate."""

    alpha: Float[Array, "B N"]
    field: Float[Array, "B M"]  # K W' alpha
    kl_bound: Float[np.ndarray, " B"]  # nats, on the KL from the exact posterior
    steps: int
    residual: Float[Array, "B n"]  # of the system solved, in float64


class System(eqx.Module):
    """A symmetric positive system of n unknowns that stands for A^-1: its product, preconditioner and certificate."""

    space: eqx.AbstractClassVar[str]  # "data" or "grid"
    toeplitz: eqx.AbstractVar[Toeplitz]
    weights: eqx.AbstractVar[Weights]
    noise: eqx.AbstractVar[Float[Array, " N"]]  # variances, including residual variances that count as noise
    residuals: eqx.AbstractVar[ResidualCovariance | None]  # V if residuals are joint

    def matmul(self, v: Float[Array, "B n"]) -> Float[Array, "B n"]:
        return self.matvec_and_field(v)[0]

    def noise_matmul(self, v: Float[Array, "B N"]) -> Float[Array, "B N"]:
        """(N + V) v, the product with the covariance of the data given the grid values."""
        independent = self.noise * v
        return independent if self.residuals is None else independent + self.residuals.covariance.matmul(v)

    @property
    def grid_is_smaller(self) -> bool:
        """Whether exact variances are computed from a matrix of the grid's size, with fewer points than data.

        This needs independent residuals, since joint ones would have to be inverted, and the grid on one device.
        """
        whole = self.toeplitz.in_one_piece
        return whole and self.grid_size < len(self.noise) and self.residuals is None

    @property
    def grid_size(self) -> int:
        return int(np.prod(self.toeplitz.shape))

    @property
    @abc.abstractmethod
    def preconditioner_size(self) -> str | None:
        """The size of the preconditioner in words; None without a preconditioner."""

    @abc.abstractmethod
    def precondition(self, r: Float[Array, "B n"]) -> Float[Array, "B n"]:
        """An approximation of the inverse times r."""

    @abc.abstractmethod
    def kl_bound(self, r: Float[Array, "B n"]) -> Float[Array, " B"]:
        """The certificate: a bound in nats on the KL from the exact posterior, given the residual r of the solve."""

    @abc.abstractmethod
    def from_data(self, z: Float[Array, "B N"]) -> Float[Array, "B n"]:
        """The right-hand side that stands for data z."""

    @abc.abstractmethod
    def matvec_and_field(self, x: Float[Array, "B n"]) -> tuple[Array, Array]:
        """The product with x, and the field K W' alpha that x stands for."""

    @abc.abstractmethod
    def alpha(self, z: Float[Array, "B N"], x: Float[Array, "B n"], field: Float[Array, "B M"]) -> Array:
        """A^-1 z, from the solution x for data z, and its field."""

    @abc.abstractmethod
    def unknowns_of(self, alpha: Float[Array, "B N"]) -> Float[Array, "B n"]:
        """The solution that stands for alpha = A^-1 z."""

    @abc.abstractmethod
    def random_signs(self, probes: int, key: Array) -> Float[Array, "B k"]:
        """Random signs, one for each dimension of the whitened system, and zeros for padding."""

    @abc.abstractmethod
    def whitened_matmul(self, v: Float[Array, "B k"]) -> Float[Array, "B k"]:
        """The whitened system times v: its determinant is that of A over exp(whitener_log_determinant)."""

    @property
    @abc.abstractmethod
    def whitener_log_determinant(self) -> Float[Array, ""]:
        """The part of log|A| that is known without probes."""


class DataSystem(System):
    """A = W K W' + N, or W K W' + V + N with joint residuals of points (`weights/joint_residuals.py`)."""

    space: ClassVar[str] = "data"
    toeplitz: Toeplitz
    weights: Weights
    noise: Float[Array, " N"]  # variances
    preconditioner: Preconditioner
    residuals: ResidualCovariance | None = None

    @property
    def preconditioner_size(self) -> str | None:
        return self.preconditioner.description

    def precondition(self, r: Float[Array, "B n"]) -> Float[Array, "B n"]:
        return self.preconditioner.precondition(r)

    def kl_bound(self, r: Float[Array, "B n"]) -> Float[Array, " B"]:
        return 0.5 * jnp.sum(r**2 / self.noise, axis=-1)

    def from_data(self, z: Float[Array, "B N"]) -> Float[Array, "B n"]:
        return z

    def matvec_and_field(self, x: Float[Array, "B n"]) -> tuple[Array, Array]:
        field = self.toeplitz.flat_matmul(self.weights.transpose_matmul(x))
        return self.weights.matmul(field) + self.noise_matmul(x), field

    def alpha(self, z: Float[Array, "B N"], x: Float[Array, "B n"], field: Float[Array, "B M"]) -> Array:
        return x

    def unknowns_of(self, alpha: Float[Array, "B N"]) -> Float[Array, "B n"]:
        return alpha

    def random_signs(self, probes: int, key: Array) -> Float[Array, "B k"]:
        used = self.preconditioner.rows_used
        rows = jnp.ones_like(self.noise) if used is None else used
        return jax.random.rademacher(key, (probes, len(rows)), rows.dtype) * rows

    def whitened_matmul(self, v: Float[Array, "B k"]) -> Float[Array, "B k"]:
        """Return S A S' v."""
        return self.preconditioner.whiten(self.matmul(self.root_transpose(v)))

    def root_transpose(self, v: Float[Array, "B k"]) -> Float[Array, "B N"]:
        """Return S' v."""
        return self.preconditioner.whiten_transpose(v)

    @property
    def whitener_log_determinant(self) -> Float[Array, ""]:
        return self.preconditioner.log_determinant


def draws_at_once(system: System) -> int:
    """The number of draws solved together, which take about a gigabyte or two fifths of a GPU's memory."""
    size = system.toeplitz.torus.size + len(system.noise)
    gpu = gpu_bytes()
    most = ON_CPU if gpu is None else SHARE_OF_GPU * gpu
    return int(np.clip(most // (6 * size * system.noise.dtype.itemsize), 1, MOST_DRAWS))


def in_float64(tree: Any) -> Any:
    """A pytree with every array of floats in float64."""
    return jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, tree)


# The following functions are compiled. They are few, since compiling takes longer than solving a small problem.


def _from(system: System, r: Array, dtype: Any) -> tuple[CGState, Array]:
    """Start a solve for the residual r, in units of its largest entry to keep float32 from under- and overflow."""
    scale = jnp.max(jnp.abs(r), axis=-1, keepdims=True)
    return krylov.cg_start((r / jnp.where(scale > 0, scale, 1)).astype(dtype), system.kl_bound), scale


@bounded_jit()
def _begin(system: System, z: Array) -> tuple[Array, Array, Array, tuple[CGState, Array]]:
    """The right-hand side in float64, x = 0, its KL bound, and the state of a solve that starts there."""
    rhs = system.from_data(z).astype(jnp.float64)
    return rhs, jnp.zeros_like(rhs), in_float64(system).kl_bound(rhs), _from(system, rhs, z.dtype)


_restart = bounded_jit()(_from)


@bounded_jit(donate="all-except-first")
def _advance(system: System, state: CGState, target: Any, steps: Any) -> CGState:
    """Take some more steps of conjugate gradients. The arrays of `state` are donated."""
    return krylov.cg_advance(system.matmul, system.precondition, system.kl_bound, target, state, steps)


@bounded_jit()
def field_of(system: System, alpha: Array) -> Array:
    """The field K W' alpha on the grid."""
    return system.toeplitz.flat_matmul(system.weights.transpose_matmul(alpha))


class _Refined(NamedTuple):
    """The solution, its true residual and its KL bound in float64; alpha and field in the data's precision."""

    x: Float[Array, "B n"]
    residual: Float[Array, "B n"]
    kl_bound: Float[Array, " B"]
    alpha: Float[Array, "B N"]
    field: Float[Array, "B M"]


@bounded_jit()
def _refined(system: System, z: Array, rhs: Array, x: Array, scale: Array, value: Array) -> _Refined:
    """Add the solver's value to x, and compute the true residual in float64."""
    x, exact = x + scale * value.astype(x.dtype), in_float64(system)
    product, field = exact.matvec_and_field(x)
    r, field = rhs - product, field.astype(z.dtype)
    return _Refined(x, r, exact.kl_bound(r), system.alpha(z, x.astype(z.dtype), field), field)


def solve(
    system: System,
    z: Float[Array, "B N"],
    tolerance: float | Float[np.ndarray, " B"],
    max_iterations: int,
    report: Callable[[int, float], None] = lambda steps, nats: None,
    checkpoint: "Checkpoint | None" = None,
    start: Float[Array, "B n"] | None = None,
) -> Solved:
    """A^-1 z to `tolerance` nats (one number, or one per row); the certificate uses the true residual in float64.

    `start` is a first guess of the system's unknowns, zero if it is not given, or if zero is nearer.

    In float32 the recurrence's residual drifts from the true one. The solve is then restarted from the true residual
    (iterative refinement), which costs one product each time.
    """
    target = np.broadcast_to(np.asarray(tolerance, z.dtype), (z.shape[0],))
    rhs, x, bound, (state, scale) = _begin(system, z)
    steps, bound, found = 0, np.asarray(bound), None
    if start is not None:
        found = _refined(system, z, rhs, x, jnp.ones_like(scale), start)
        nearer = np.sum(found.kl_bound) < np.sum(bound)
        found, bound = (found, np.asarray(found.kl_bound)) if nearer else (None, bound)
    if checkpoint is not None and (saved := checkpoint.load(rhs.shape)) is not None:
        x, steps, (state, scale) = saved
        found, bound = None, np.full_like(bound, np.inf)
    for _ in range(REFINEMENTS):
        if np.all(bound <= target) or steps >= max_iterations:
            break
        if found is not None:
            x, (state, scale) = found.x, _restart(system, found.residual, z.dtype)
            found = None  # frees memory during the steps
        before = steps
        value, steps = _run(system, x, state, scale, target, steps, max_iterations, report, checkpoint)
        found = _refined(system, z, rhs, x, scale, value)
        bound, bound_before = np.asarray(found.kl_bound), bound
        if np.all(bound > 0.5 * bound_before) or steps == before:
            break
    if found is None:
        found = _refined(system, z, rhs, x, scale, state.value)
    return Solved(found.alpha, found.field, np.asarray(found.kl_bound), steps, found.residual)


def _run(
    system: System,
    x: Array,
    state: CGState,
    scale: Array,
    target: Float[np.ndarray, " B"],
    steps: int,
    max_iterations: int,
    report: Callable[[int, float], None],
    checkpoint: "Checkpoint | None",
) -> tuple[Array, int]:
    """Advance in portions of about a second, with progress and checkpoints in between; the value and total steps."""
    piece, done, size = 5, int(np.asarray(state.iterations).max()), np.asarray(scale)[:, 0]
    inner = (0.5 * target / np.where(size > 0, size**2, 1)).astype(target.dtype)
    while steps + done < max_iterations:
        began = time.perf_counter()
        state = _advance(system, state, inner, np.asarray(min(piece, max_iterations - steps - done)))
        active = bool(np.asarray(state.active).any())
        spent = time.perf_counter() - began
        done = int(np.asarray(state.iterations).max())
        report(steps + done, float(np.max(np.asarray(state.error) * size**2)))
        if checkpoint is not None:
            checkpoint.save(x, steps, state, scale)
        if not active:
            break
        # by one clock: processes that took different numbers of steps would wait for each other for ever
        piece = int(agreed(int(np.clip(piece * 1.0 / max(spent, 1e-3), 5, 50))))
    return state.value, steps + done
