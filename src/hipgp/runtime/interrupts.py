"""Ctrl-C while modules are imported: it waits for the end of the import.

An interrupt inside an import is lost where it strikes a callback or a destructor of the import system, and otherwise leaves modules
half imported behind it. Nothing slow is imported here.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Raise a KeyboardInterrupt of this block at its end; a second Ctrl-C raises one at once.

    Where something else handles SIGINT, and in threads, which do not, nothing is changed.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = []

    def remember(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt
