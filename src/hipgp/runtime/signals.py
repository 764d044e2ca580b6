"""How the command ends on SIGINT and SIGTERM: at once, at any moment, with one line and no half-written file.

A KeyboardInterrupt would do only between two Python instructions of the main thread, seconds late while JAX compiles,
and it can be swallowed, or turned into another error, by whatever is being imported. So a thread waits for the signal and
ends the process without unwinding: no destructor of a thread pool or of JAX can then crash or wait. It imports nothing
and takes no lock, since the main thread may hold any.
"""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

PATIENCE = 3.0  # seconds that the main thread waits to be ended, in case the other one cannot run any more

# What is said at the end, and the folders that may hold temporary files of this process.
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
    """Keep the main thread from doing more while the process is ended."""
    time.sleep(PATIENCE)
    os._exit(128 + number)


def _watch(reader: int) -> None:
    while True:
        for number in os.read(reader, 16):
            if number in (signal.SIGINT, signal.SIGTERM):
                leave(number)


def leave(number: int) -> None:
    """End the process as after the signal `number`."""
    finish(128 + number)


def finish(code: int) -> None:
    """End the process with this exit code: say the last words, and leave no half-written file."""
    with contextlib.suppress(Exception):
        cursor = b"\x1b[?25h\r\n" if os.isatty(2) else b""  # a progress bar hides it
        os.write(2, cursor + last_words().encode() + b"\n")
    with contextlib.suppress(Exception):
        _remove_temporary_files()
    os._exit(code)


def _remove_temporary_files() -> None:
    """Remove what this process has begun to write: `.NAME.PID.tmp` and the like."""
    own = re.compile(rf"^\..*[.-]{os.getpid()}([.-].*)?\.(tmp|probe)$")
    for folder in folders:
        for name in os.listdir(folder):
            if own.match(name):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, name))
