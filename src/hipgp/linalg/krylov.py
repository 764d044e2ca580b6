"""Conjugate gradients for many right-hand sides at once, and stochastic Lanczos quadrature from the same steps.

The matrix A is given by its product, a function v -> A v. Vectors are (B, n), a row for each right-hand side.

    >>> import jax.numpy as jnp
    >>> solution = conjugate_gradients(lambda v: 2.0 * v, jnp.ones((1, 3)))
    >>> solution.value.tolist(), solution.iterations.tolist()
    ([[0.5, 0.5, 0.5]], [1])
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hipgp.linalg.matrices import map_matrices

Product = Callable[[Array], Array]

ROUNDING = 10.0  # rounding errors of one product, in units of eps |A| |x|


class CGState(NamedTuple):
    """The state of a solve by conjugate gradients, from which it can be continued."""

    value: Float[Array, "B n"]
    residual: Float[Array, "B n"]
    direction: Float[Array, "B n"]  # of the last step
    rho: Float[Array, " B"]  # residual' preconditioned residual before it; zero before the first
    error: Float[Array, " B"]  # the measure of the residual that decides when to stop
    operator_norm: Float[Array, " B"]  # the largest |A d| / |d| so far: an estimate of |A| from below
    iterations: Int[Array, " B"]
    active: Bool[Array, " B"]


class Solution(NamedTuple):
    """The solution of a solve, and its iterations and error for each right-hand side.

    `error` is the true |b - A x| / |b|, computed from the solution. `converged` is False if the iterations ran out, or if
    rounding prevents the tolerance because A is nearly singular or the dtype too short.
    """

    value: Float[Array, "B n"]
    iterations: Int[Array, " B"]
    error: Float[Array, " B"]
    converged: Bool[Array, " B"]


def squared_norm(residual: Float[Array, "B n"]) -> Float[Array, " B"]:
    """Return |residual|^2 of each row."""
    return jnp.sum(residual**2, axis=-1)


def _norm(v: Array) -> Array:
    return jnp.linalg.norm(v, axis=-1)


def cg_start(rhs: Float[Array, "B n"], measure: Product) -> CGState:
    """Return the state before the first step, at x = 0."""
    zero, error = jnp.zeros_like(rhs), measure(rhs)
    none, count = jnp.zeros_like(rhs[:, 0]), jnp.zeros(rhs.shape[0], jnp.int32)
    return CGState(zero, rhs, zero, none, error, jnp.zeros_like(error), count, jnp.any(rhs != 0, axis=-1))


def cg_advance(
    matmul: Product,
    precondition: Product,
    measure: Product,
    target: Float[Array, " B"],
    state: CGState,
    steps: int | Array,
) -> CGState:
    """Take at most `steps` more steps; a right-hand side whose error is at most `target` is not changed.

    A right-hand side also stops when its residual reaches the rounding error of A x, eps |A| |x|: the recurrence would
    continue to shrink, and the true residual would not.
    """

    def step(s: CGState) -> CGState:
        new, product, go = _step(matmul, precondition, s, s.active)
        error = jnp.where(go, measure(new.residual), s.error)
        norm = jnp.maximum(s.operator_norm, jnp.where(go, _norm(product) / _norm(new.direction), 0.0))
        rounding = ROUNDING * jnp.finfo(new.value.dtype).eps * norm * _norm(new.value)
        active = go & (error > target) & (_norm(new.residual) > rounding)
        vectors = new.value, new.residual, new.direction
        return CGState(*vectors, jnp.where(go, new.rho, s.rho), error, norm, s.iterations + go, active)

    def keep_going(carry: tuple[CGState, Array]) -> Array:
        return jnp.any(carry[0].active) & (carry[1] < steps)

    begin = state._replace(active=state.active & (state.error > target))
    return jax.lax.while_loop(keep_going, lambda c: (step(c[0]), c[1] + 1), (begin, jnp.array(0)))[0]


class _Step(NamedTuple):
    """The vectors after a step of conjugate gradients, and its coefficients."""

    value: Float[Array, "B n"]
    residual: Float[Array, "B n"]
    direction: Float[Array, "B n"]
    rho: Float[Array, " B"]  # residual' preconditioned residual before the step
    alpha: Float[Array, " B"]  # step length, zero if no step was taken
    beta: Float[Array, " B"]  # coefficient of the last direction in the new one


def _step(
    matmul: Product, precondition: Product, s: Any, active: Bool[Array, " B"]
) -> tuple[_Step, Array, Bool[Array, " B"]]:
    """Take one step from the vectors and rho of `s`; also return A times the direction, and which sides took a step."""
    z = precondition(s.residual)
    rho = jnp.sum(s.residual * z, axis=-1)
    beta = jnp.where(s.rho > 0, rho / jnp.where(s.rho > 0, s.rho, 1.0), 0.0)
    direction = jnp.where(active[:, None], z + beta[:, None] * s.direction, s.direction)
    product = matmul(direction)
    curvature = jnp.sum(direction * product, axis=-1)
    go = active & (rho > 0) & (curvature > 0)  # non-positive curvature comes from rounding: stop
    alpha = jnp.where(go, rho / jnp.where(go, curvature, 1.0), 0.0)
    value, residual = s.value + alpha[:, None] * direction, s.residual - alpha[:, None] * product
    return _Step(value, residual, direction, rho, alpha, beta), product, go


def conjugate_gradients(
    matmul: Product,
    rhs: Float[Array, "B n"],
    *,
    precondition: Product = lambda r: r,
    tolerance: float = 1e-10,
    max_iterations: int = 1000,
) -> Solution:
    """Solve A x = b for every row b of `rhs` to |r| <= tolerance |b|; for b = 0 the solution is 0 without a step."""
    largest = jnp.max(jnp.abs(rhs), axis=-1, keepdims=True)
    scale = jnp.where(largest > 0, largest, 1.0)  # squares of tiny numbers would underflow
    unit = rhs / scale
    size = squared_norm(unit)
    state = cg_start(unit, squared_norm)
    state = cg_advance(matmul, precondition, squared_norm, tolerance**2 * size, state, max_iterations)
    error = _norm(unit - matmul(state.value)) / jnp.sqrt(jnp.where(size > 0, size, 1.0))
    return Solution(scale * state.value, state.iterations, error, state.error <= tolerance**2 * size)


def minimal_residuals(
    matmul: Product,
    rhs: Float[Array, "B n"],
    weight: Float[Array, " n"],
    target: Float[Array, " B"],
    *,
    precondition: Product = lambda r: r,
    most: int,
) -> Solution:
    """Solve A x = b for every row b, until the sum of weight r^2 is at most `target`; at most `most` steps.

    Generalised conjugate residuals (Eisenstat, Elman and Schultz 1983): each step minimises that sum, and keeps its direction.
    `error` is that sum, by the recurrence.
    """
    inner = lambda a, b: jnp.sum(weight * a * b, axis=-1)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        i, x, r, directions, products = carry
        p = precondition(r)
        q = matmul(p)
        share = inner(products, q)
        p, q = (a - jnp.einsum("kb,kbn->bn", share, kept) for a, kept in ((p, directions), (q, products)))
        size = jnp.sqrt(inner(q, q))[:, None]
        p, q = (a / jnp.where(size > 0, size, 1.0) for a in (p, q))
        length = inner(r, q)[:, None]
        kept = directions.at[i].set(p), products.at[i].set(q)
        return i + 1, x + length * p, r - length * q, *kept

    going = lambda carry: (carry[0] < most) & jnp.any(inner(carry[2], carry[2]) > target)
    none = jnp.zeros((most, *rhs.shape), rhs.dtype)
    steps, x, r, _, _ = jax.lax.while_loop(going, step, (jnp.array(0), jnp.zeros_like(rhs), rhs, none, none))
    error = inner(r, r)
    return Solution(x, jnp.full(rhs.shape[0], steps), error, error <= target)


class _Tridiagonal(NamedTuple):
    """The tridiagonal Lanczos matrix Q'A Q of each probe, Q the Lanczos basis started at the probe."""

    diagonal: Float[Array, "B k"]
    off_diagonal: Float[Array, "B k-1"]


class LanczosSolution(NamedTuple):
    """A^-1 times each probe and, from the same steps, the probe's Lanczos coefficients."""

    value: Float[Array, "B n"]
    coefficients: _Tridiagonal


def lanczos_solve(
    matmul: Product, probes: Float[Array, "B n"], steps: int, tolerance: float | Array
) -> LanczosSolution:
    """Solve A x = probe for each probe by at most `steps` of conjugate gradients, until |r| <= tolerance |probe|.

    The coefficients of the steps give those of Lanczos (Golub and Van Loan, section 11.3), so that quadratures need no
    further products, and no basis is stored. After a probe has converged its matrix is extended by the identity, which
    has no weight in the quadrature.
    """
    enough = tolerance**2 * squared_norm(probes)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        i, s, diagonal, off = carry
        new, _, go = _step(matmul, lambda r: r, s, squared_norm(s.residual) > enough)
        inverse, before = (1 / jnp.where(a > 0, a, 1.0) for a in (new.alpha, s.alpha))
        diagonal = diagonal.at[i].set(jnp.where(go, inverse + new.beta * before, 1.0))
        off = off.at[i].set(jnp.where(go, jnp.sqrt(new.beta) * before, 0.0))
        return i + 1, new, diagonal, off

    zero, none = jnp.zeros_like(probes), jnp.zeros(probes.shape[0], probes.dtype)
    table = jnp.zeros((steps, probes.shape[0]), probes.dtype)
    begin = jnp.array(0), _Step(zero, probes, zero, none, none, none), table + 1, table
    going = lambda carry: (carry[0] < steps) & jnp.any(squared_norm(carry[1].residual) > enough)
    _, last, diagonal, off = jax.lax.while_loop(going, step, begin)
    return LanczosSolution(last.value, _Tridiagonal(diagonal.T, off.T[:, 1:]))


def lanczos_quadrature(
    tridiagonal: _Tridiagonal, probes: Float[Array, "B n"], function: Callable[[Array], Array]
) -> Float[Array, " B"]:
    """Return probe' function(A) probe for each probe, by Gauss quadrature on its Lanczos coefficients."""

    def one(diagonal: Array, off: Array, scale: Array) -> Array:
        matrix = jnp.diag(diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1)
        values, vectors = jnp.linalg.eigh(matrix, symmetrize_input=False)
        floor = jnp.finfo(diagonal.dtype).eps * jnp.max(jnp.abs(values))
        used = vectors[0] ** 2
        safe = jnp.where(used > 0, jnp.maximum(values, floor), 1.0)
        return scale * jnp.sum(used * function(safe))

    return map_matrices(one, tridiagonal.diagonal, tridiagonal.off_diagonal, squared_norm(probes))
