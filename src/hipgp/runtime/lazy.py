"""A value that is computed when it is first needed."""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Lazy(Generic[Value]):
    """A function that is called once, by the first thread that needs its value, while other threads wait.

    A value known from the start may be given. Pickling keeps the function and drops the value.

    >>> Lazy(list).get()
    []
    """

    def __init__(self, make: Callable[..., Value], *made: Value):
        self._make, self._made, self._lock = make, made, threading.Lock()

    def get(self, *arguments: Any) -> Value:
        """The value, the same object each time; if there is none yet, the function is called with these arguments."""
        with self._lock:
            if not self._made:
                self._made = (self._make(*arguments),)
            return self._made[0]

    @property
    def is_made(self) -> bool:
        """Whether the value is there already."""
        return bool(self._made)

    def forget(self) -> None:
        """Drop the value to free its memory; it is computed again if it is asked for again."""
        with self._lock:
            self._made = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lazy, (self._make,)
