"""Threads: all cores for chunks of NumPy work, and a single BLAS thread for many small matrices.

JAX runs batches of small factorisations in parallel on its own threads. If BLAS then splits each factorisation over all
cores again, they wait for one another (128 x 128, two cores: up to 15 times slower).
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
    """Limit BLAS to one thread, in the whole process, while any thread is inside this context.

    The first thread to enter sets the limit and the last to leave lifts it. If each thread restored the limit it found,
    overlapping contexts could leave it set for good.
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
    """The number of threads to use: the number of cores that this process may run on, at most 16."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, 16)


def map_in_threads(function: Callable[..., Any], items: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield function(*item) for each item in order, computed on all cores; an item is taken when a thread is free."""
    workers, run = thread_count(), with_same_settings(function)
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


def run_both(first: Callable[[], T], second: Callable[[], S]) -> tuple[T, S]:
    """Run both functions at the same time, `second` in another thread, and return both results."""
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(with_same_settings(second))
        return first(), other.result()


def with_same_settings(function: Callable[..., T]) -> Callable[..., T]:
    """Wrap `function` to run with this thread's device and precision, since other threads have JAX's defaults."""
    config: Any = jax.config
    device, x64 = config.jax_default_device, config.jax_enable_x64
    precision = config.jax_default_matmul_precision

    def run(*args: Any) -> T:
        with jax.default_device(device), jax.enable_x64(x64), jax.default_matmul_precision(precision):
            return function(*args)

    return run
