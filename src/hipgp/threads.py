"""One BLAS thread for many small matrices.

JAX runs batches of small factorisations side by side on its own threads; a BLAS that splits each of them over all cores
again makes them wait for one another (128 x 128, two cores: up to 15 times slower).
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

P = ParamSpec("P")
T = TypeVar("T")


def one_blas_thread(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, run with a single BLAS thread."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with threadpool_limits(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return wrapped
