"""Compiled programs: compiled once by any number of threads, and the oldest let go."""

import threading
import time

import jax.numpy as jnp
import numpy as np

from hipgp.runtime.programs import bounded_jit


def test_it_is_the_function_and_compiled_once_per_shape():
    traced = []

    @bounded_jit()
    def double(x, factor=2):
        traced.append(x.shape)
        return factor * x

    for size in (2, 3, 2, 3):
        np.testing.assert_array_equal(double(np.ones(size)), np.full(size, 2.0))
    np.testing.assert_array_equal(double(jnp.ones(2), factor=3), np.full(2, 3.0))
    assert traced == [(2,), (3,), (2,)]


def test_the_oldest_programs_are_let_go():
    traced = []

    @bounded_jit(most=2)
    def first(x):
        traced.append(x.shape)
        return x[0]

    for size in (1, 2, 3, 2, 3, 1):  # 1 is forgotten when 3 comes, and compiled again at the end
        first(np.ones(size))
    assert traced == [(1,), (2,), (3,), (1,)]


def test_threads_that_come_together_compile_once():
    traced = []

    @bounded_jit()
    def slow(x):
        traced.append(threading.get_ident())
        time.sleep(0.2)  # while it is traced
        return x + 1

    threads = [threading.Thread(target=slow, args=(np.ones(4),)) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(traced) == 1
