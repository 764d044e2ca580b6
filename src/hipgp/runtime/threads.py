"""Threads: all cores for NumPy's work on pieces, and one BLAS thread for many small matrices.

JAX runs batches of small factorisations side by side on its own threads; a BLAS that splits each of them over all cores
again makes them wait for one another (128 x 128, two cores: up to 15 times slower).
"""

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import jax
from threadpoolctl import threadpool_limits

from hipgp.runtime.precision import float64_available

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def one_blas_thread(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, run with a single BLAS thread."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with _OneBlasThread():
            return function(*args, **kwargs)

    return wrapped


class _OneBlasThread:
    """Limit BLAS to one thread while any thread is inside; the limit is the whole process's.

    The first to enter sets it and the last to leave lifts it. Entering and leaving in any other order, each caller
    would restore what it found, and the limit could stay for ever.
    """

    lock = threading.Lock()
    inside = 0
    limits: Any = None

    def __enter__(self) -> None:
        with self.lock:
            if _OneBlasThread.inside == 0:
                _OneBlasThread.limits = threadpool_limits(limits=1, user_api="blas")
            _OneBlasThread.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            _OneBlasThread.inside -= 1
            if _OneBlasThread.inside == 0:
                _OneBlasThread.limits.restore_original_limits()


def thread_count() -> int:
    """How many threads there are to work with."""
    return min(os.cpu_count() or 1, 16)


def map_in_threads(function: Callable[..., Any], items: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
    """function(*item) of each, in order, by all cores; no more items are asked for than are worked on."""
    workers, run = thread_count(), _on_same_device(function)
    pool = ThreadPoolExecutor(workers)
    try:
        waiting: deque[Any] = deque()
        for item in items:
            waiting.append(pool.submit(run, *item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # after an error or Ctrl-C nothing more is begun
        pool.shutdown(cancel_futures=True)


def run_both(here: Callable[[], T], there: Callable[[], S]) -> tuple[T, S]:
    """What both functions return, the second of them run by another thread."""
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(_on_same_device(there))
        return here(), other.result()


def _on_same_device(function: Callable[..., T]) -> Callable[..., T]:
    """`function`, with this thread's device: a thread begins with JAX's own defaults."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]

    @float64_available
    def run(*args: Any) -> T:
        with jax.default_device(device):
            return function(*args)

    return run
