"""Compiled programs of shapes that follow the data, a bounded number of them.

XLA compiles a program for each new shape, and JAX keeps it for as long as its function lives. A process that fits one
data set after the other would grow by some megabytes with each whose sparse matrices have another layout. `bounded_jit`
keeps the programs that were used last and lets the others go.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax

P = ParamSpec("P")
T = TypeVar("T")

MOST_PROGRAMS = 8  # of each function


def bounded_jit(
    donate: Any = "none", most: int = MOST_PROGRAMS
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function like `equinox.filter_jit`, and keep at most `most` compiled programs of it."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        programs: OrderedDict[Any, Callable[P, T]] = OrderedDict()
        lock = threading.Lock()

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            leaves, structure = jax.tree.flatten((args, kwargs))
            key = structure, *((a.shape, a.dtype) if eqx.is_array(a) else a for a in leaves)
            with lock:
                program = programs.pop(key, None)
                if program is None:  # a function of its own: what JAX keeps for it goes with it
                    program = eqx.filter_jit(lambda *a, **k: function(*a, **k), donate=donate)
                programs[key] = program
                while len(programs) > most:
                    programs.popitem(last=False)
            return program(*args, **kwargs)

        return call

    return decorate
