"""The end of the command on SIGINT and SIGTERM: immediate, with a one-line message and no half-written file.

A KeyboardInterrupt acts only between two Python instructions of the main thread, seconds late while JAX compiles, and an
import may swallow it or turn it into another error. So a thread waits for the signal and ends the process without
unwinding, so that no destructor of a thread pool or of JAX can crash or wait. The thread imports nothing and takes no
lock, because the main thread may hold any.
"""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

PATIENCE = 3.0  # seconds after which the main thread ends the process itself, if the other thread does not run any more

# The message at the end, and the folders that may hold temporary files of this process.
last_words: Callable[[], str] = lambda: "stopped; nothing was written"
folders: set[str] = set()


def install() -> None:
    """Let SIGINT and SIGTERM end this process, with exit codes 130 and 143. Called once, from the main thread."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), name="signals", daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup, or in the background of a script
            signal.signal(number, _stand_still)


def _stand_still(number: int, frame: FrameType | None) -> None:
    """Stop the main thread while the other thread ends the process."""
    time.sleep(PATIENCE)
    os._exit(128 + number)


def _watch(reader: int) -> None:
    while True:
        for number in os.read(reader, 16):
            if number in (signal.SIGINT, signal.SIGTERM):
                leave(number)


def leave(number: int) -> None:
    """End the process with the exit code of the signal `number`."""
    finish(128 + number)


def finish(code: int) -> None:
    """End the process with this exit code after printing the last words and removing half-written files."""
    with contextlib.suppress(Exception):
        cursor = b"\x1b[?25h\r\n" if os.isatty(2) else b""  # a progress bar hides it
        os.write(2, cursor + last_words().encode() + b"\n")
    with contextlib.suppress(Exception):
        _remove_temporary_files()
    os._exit(code)


def _remove_temporary_files() -> None:
    """Remove this process's temporary files, such as `.NAME.PID.tmp`."""
    pattern = re.compile(rf"^\..*[.-]{os.getpid()}([.-].*)?\.(tmp|probe)$")
    for folder in folders:
        for name in os.listdir(folder):
            if pattern.match(name):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, name))
