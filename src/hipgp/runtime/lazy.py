"""A value that is computed when it is first asked for."""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Lazy(Generic[Value]):
    """Holds a function, and what it returned once it was called: by one thread, while others that ask wait.

    A value that is there from the start may be given. Copies by pickle keep the function and not the value.

    >>> Lazy(list).get()
    []
    """

    def __init__(self, make: Callable[..., Value], *made: Value):
        self._make, self._made, self._lock = make, made, threading.Lock()

    def get(self, *given: Any) -> Value:
        """The value, the same object each time. The function is called with `given` where there is no value yet."""
        with self._lock:
            if not self._made:
                self._made = (self._make(*given),)
            return self._made[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Lazy, (self._make,)
