"""A bounded cache of compiled programs, each of which is compiled by one thread only.

XLA compiles a program for each new shape, and JAX keeps it for the life of the function. A process that fits many data
sets would grow by some megabytes with each new layout of sparse matrices. If several threads call a function for the
first time, JAX compiles it in each of them.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax

P = ParamSpec("P")
T = TypeVar("T")

MOST_PROGRAMS = 8  # programs kept of a function whose shapes depend on the data


class _Program:
    """A function to be compiled for one shape of its arguments."""

    def __init__(self, function: Callable[..., Any], donate: Any):
        @functools.wraps(function)
        def copy(
            *args: Any, **kwargs: Any
        ) -> Any:  # JAX's caches are freed together with this copy of the function
            return function(*args, **kwargs)

        self.compiled = eqx.filter_jit(copy, donate=donate)
        self.ready, self.first = False, threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.ready:
            return self.compiled(*args, **kwargs)
        with self.first:  # other threads wait here, and find it compiled
            if not self.ready:
                found = self.compiled(*args, **kwargs)
                self.ready = True
                return found
        return self.compiled(*args, **kwargs)


def bounded_jit(
    donate: Any = "none", most: int = MOST_PROGRAMS
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function like `equinox.filter_jit`, but keep only the `most` recently used of its programs."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        programs: OrderedDict[Any, _Program] = OrderedDict()
        lock = threading.Lock()

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            leaves, structure = jax.tree.flatten((args, kwargs))
            key = structure, *((a.shape, a.dtype) if eqx.is_array(a) else a for a in leaves)
            with lock:
                program = programs.pop(key, None) or _Program(function, donate)
                programs[key] = program
                while len(programs) > most:
                    programs.popitem(last=False)
            return program(*args, **kwargs)

        return call

    return decorate
