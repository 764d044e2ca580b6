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

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def one_blas_thread(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that is to run with a single BLAS thread."""

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
    """How many threads this machine's cores are good for, at most 16."""
    return min(os.cpu_count() or 1, 16)


def map_in_threads(function: Callable[..., Any], items: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield function(*item) of each item, in order, computed on all cores; items are taken one by one as threads get free."""
    workers, run = thread_count(), _with_same_settings(function)
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
    """Run both functions at the same time, `there` in a second thread, and return both results."""
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(_with_same_settings(there))
        return here(), other.result()


def _with_same_settings(function: Callable[..., T]) -> Callable[..., T]:
    """Give `function` this thread's device and precision: another thread starts with JAX's own defaults."""
    config: Any = jax.config
    device, x64 = config.jax_default_device, config.jax_enable_x64
    precision = config.jax_default_matmul_precision

    def run(*args: Any) -> T:
        with jax.default_device(device), jax.enable_x64(x64), jax.default_matmul_precision(precision):
            return function(*args)

    return run
