"""Conjugate gradients for many right-hand sides at once, and what can be read off them.

Algorithms take a product (a function v -> A v) and know nothing of kernels. Vectors are (B, n): one side a row.

    >>> import jax.numpy as jnp
    >>> solution = conjugate_gradients(lambda v: 2.0 * v, jnp.ones((1, 3)))
    >>> solution.value.tolist(), solution.iterations.tolist()
    ([[0.5, 0.5, 0.5]], [1])
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hipgp.linalg.matrices import map_matrices

Product = Callable[[Array], Array]

ROUNDING = 10.0  # rounding errors of one product, in units of eps |A| |x|


class CGState(NamedTuple):
    """Where a solve stands; enough to go on from."""

    value: Float[Array, "B n"]
    residual: Float[Array, "B n"]
    direction: Float[Array, "B n"]  # of the last step
    rho: Float[Array, " B"]  # residual' preconditioned residual before it; zero before the first
    error: Float[Array, " B"]  # what `measure` says of the residual
    operator_norm: Float[Array, " B"]  # the largest |A d| / |d| seen: as much of |A| as this solve has met
    iterations: Int[Array, " B"]
    active: Bool[Array, " B"]


class Solution(NamedTuple):
    """A solve's value and what happened, per right-hand side.

    `error` is |b - A x| / |b|, computed anew from the answer. Not `converged` means that the iterations ran out, or
    that the tolerance is beyond this arithmetic: A is too nearly singular, or the dtype too short.
    """

    value: Float[Array, "B n"]
    iterations: Int[Array, " B"]
    error: Float[Array, " B"]
    converged: Bool[Array, " B"]


def squared_norm(residual: Float[Array, "B n"]) -> Float[Array, " B"]:
    return jnp.sum(residual**2, axis=-1)


def _norm(v: Array) -> Array:
    return jnp.linalg.norm(v, axis=-1)


def cg_start(rhs: Float[Array, "B n"], measure: Product) -> CGState:
    """The state before the first step, from zero."""
    nothing, error = jnp.zeros_like(rhs), measure(rhs)
    none, count = jnp.zeros_like(rhs[:, 0]), jnp.zeros(rhs.shape[0], jnp.int32)
    return CGState(
        nothing, rhs, nothing, none, error, jnp.zeros_like(error), count, jnp.any(rhs != 0, axis=-1)
    )


def cg_advance(
    matmul: Product,
    precondition: Product,
    measure: Product,
    target: Float[Array, " B"],
    state: CGState,
    steps: int | Array,
) -> CGState:
    """At most `steps` more steps; a side whose error is at most `target` is left as it is.

    So is one whose residual has come down to what rounding leaves in A x, eps |A| |x|: from there on the recurrence
    would go on to shrink, and the true residual would not.
    """

    def step(s: CGState) -> CGState:
        z = precondition(s.residual)
        rho = jnp.sum(s.residual * z, axis=-1)
        beta = jnp.where(s.rho > 0, rho / jnp.where(s.rho > 0, s.rho, 1.0), 0.0)[:, None]
        direction = jnp.where(s.active[:, None], z + beta * s.direction, s.direction)
        product = matmul(direction)
        curvature = jnp.sum(direction * product, axis=-1)
        go = s.active & (rho > 0) & (curvature > 0)  # no curvature left: rounding has taken over
        alpha = jnp.where(go, rho / jnp.where(go, curvature, 1.0), 0.0)[:, None]
        value = s.value + alpha * direction
        residual = s.residual - alpha * product
        error = jnp.where(go, measure(residual), s.error)
        gain = jnp.maximum(s.operator_norm, jnp.where(go, _norm(product) / _norm(direction), 0.0))
        rounding = ROUNDING * jnp.finfo(value.dtype).eps * gain * _norm(value)
        active = go & (error > target) & (_norm(residual) > rounding)
        return CGState(
            value, residual, direction, jnp.where(go, rho, s.rho), error, gain, s.iterations + go, active
        )

    def keep_going(carry: tuple[CGState, Array]) -> Array:
        return jnp.any(carry[0].active) & (carry[1] < steps)

    begin = state._replace(active=state.active & (state.error > target))
    return jax.lax.while_loop(keep_going, lambda c: (step(c[0]), c[1] + 1), (begin, jnp.array(0)))[0]


def conjugate_gradients(
    matmul: Product,
    rhs: Float[Array, "B n"],
    *,
    precondition: Product = lambda r: r,
    tolerance: float = 1e-10,
    max_iterations: int = 1000,
) -> Solution:
    """Solve A x = b for every row b, each to |r| <= tolerance |b|; a zero right-hand side has a zero answer at once."""
    largest = jnp.max(jnp.abs(rhs), axis=-1, keepdims=True)
    scale = jnp.where(largest > 0, largest, 1.0)  # squares of tiny numbers would underflow
    unit = rhs / scale
    size = squared_norm(unit)
    state = cg_start(unit, squared_norm)
    state = cg_advance(matmul, precondition, squared_norm, tolerance**2 * size, state, max_iterations)
    error = _norm(unit - matmul(state.value)) / jnp.sqrt(jnp.where(size > 0, size, 1.0))
    return Solution(scale * state.value, state.iterations, error, state.error <= tolerance**2 * size)


class Tridiagonal(NamedTuple):
    """Lanczos coefficients per probe: Q' A Q with Q started at the probe."""

    diagonal: Float[Array, "B k"]
    off_diagonal: Float[Array, "B k-1"]


class LanczosSolution(NamedTuple):
    """A^-1 of each probe and, from the same steps, its Lanczos coefficients."""

    value: Float[Array, "B n"]
    coefficients: Tridiagonal


def lanczos_solve(
    matmul: Product, probes: Float[Array, "B n"], steps: int, tolerance: float | Array
) -> LanczosSolution:
    """At most `steps` of conjugate gradients on each probe, until |r| <= tolerance |probe|.

    Their step lengths are the Lanczos coefficients (Golub and Van Loan, section 11.3), so that quadratures cost no
    product of their own, and no basis is kept. A probe that is done leaves ones and zeros behind, of no weight.
    """
    enough = tolerance**2 * squared_norm(probes)

    def step(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        i, value, residual, direction, size, before, diagonal, off = carry
        product = matmul(direction)
        curvature = jnp.sum(direction * product, axis=-1)
        go = (size > enough) & (curvature > 0)
        length = jnp.where(go, size / jnp.where(go, curvature, 1.0), 1.0)
        move = jnp.where(go, length, 0.0)[:, None]
        residual = residual - move * product
        after = jnp.where(go, squared_norm(residual), 0.0)
        ratio = jnp.where(go, after / jnp.where(go, size, 1.0), 0.0)
        diagonal = diagonal.at[i].set(jnp.where(go, 1 / length + before, 1.0))
        off = off.at[i].set(jnp.where(after > enough, jnp.sqrt(ratio) / length, 0.0))
        value, direction = value + move * direction, residual + ratio[:, None] * direction
        return i + 1, value, residual, direction, after, ratio / length, diagonal, off

    nothing = jnp.zeros(probes.shape[0], probes.dtype)
    table = jnp.zeros((steps, probes.shape[0]), probes.dtype)
    begin = (
        jnp.array(0),
        jnp.zeros_like(probes),
        probes,
        probes,
        squared_norm(probes),
        nothing,
        table + 1,
        table,
    )
    going = lambda carry: (carry[0] < steps) & jnp.any(carry[4] > enough)
    _, value, *_, diagonal, off = jax.lax.while_loop(going, step, begin)
    return LanczosSolution(value, Tridiagonal(diagonal.T, off.T[:, :-1]))


def lanczos_quadrature(
    tridiagonal: Tridiagonal, probes: Float[Array, "B n"], function: Callable[[Array], Array]
) -> Float[Array, " B"]:
    """probe' function(A) probe for each probe, by Gauss quadrature on its Lanczos coefficients."""

    def one(diagonal: Array, off: Array, scale: Array) -> Array:
        matrix = jnp.diag(diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1)
        values, vectors = jnp.linalg.eigh(matrix, symmetrize_input=False)
        floor = jnp.finfo(diagonal.dtype).eps * jnp.max(jnp.abs(values))
        used = vectors[0] ** 2
        safe = jnp.where(used > 0, jnp.maximum(values, floor), 1.0)
        return scale * jnp.sum(used * function(safe))

    return map_matrices(one, tridiagonal.diagonal, tridiagonal.off_diagonal, squared_norm(probes))
