"""Factorisations of many small matrices without deadlocks.

In jaxlib 0.10 a batched LAPACK call on a CPU splits its batch over XLA's own thread pool, and blocks a thread of that
pool until the parts are done. If as many such calls run at once as the pool has threads, in one program or in several,
they wait for one another and never return. A call on a single matrix is not split and cannot block. So every
factorisation of a batch goes through `map_matrices`, and no other module calls LAPACK on more than one matrix at a time.

    >>> import jax.numpy as jnp
    >>> map_matrices(cholesky, jnp.array([[[4.0]], [[9.0]]])).ravel().tolist()
    [2.0, 3.0]
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def map_matrices(function: Callable[..., Any], *arrays: Array) -> Any:
    """Apply `function`, which takes one matrix, along the first axis of `arrays`, like `jax.vmap`.

    On a CPU it takes the matrices in sequence, which is as fast as a batched call on one core and cannot deadlock. To use
    more cores, call the compiled program from several threads. Elsewhere it is `jax.vmap`.
    """
    one_by_one = lambda *each: jax.lax.map(lambda one: function(*one), each)
    return jax.lax.platform_dependent(*arrays, cpu=one_by_one, default=jax.vmap(function))


def cholesky(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return the lower Cholesky factor; only the lower triangle of `matrix` is read."""
    return jnp.linalg.cholesky(matrix, symmetrize_input=False)


def solve_lower(factor: Float[Array, "n n"], rhs: Float[Array, "n *m"]) -> Float[Array, "n *m"]:
    """Solve L x = rhs for a lower triangular L."""
    return jax.scipy.linalg.solve_triangular(factor, rhs, lower=True)


def solve_lower_transposed(factor: Float[Array, "n n"], rhs: Float[Array, "n *m"]) -> Float[Array, "n *m"]:
    """Solve L' x = rhs for a lower triangular L."""
    return jax.scipy.linalg.solve_triangular(factor, rhs, lower=True, trans=1)
