"""Ctrl-C during an import: never lost, and nothing half imported."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from hipgp.runtime.interrupts import postponed

# The interrupt strikes where the import system ignores exceptions, as in its callbacks.
STRUCK = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    def find_spec(name, path, target=None):
        if name == "hipgp.model.grid":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass
            except KeyboardInterrupt:
                pass
sys.meta_path.insert(0, Finder)
import hipgp
try:
    hipgp.Grid
except KeyboardInterrupt:
    print("told", "hipgp.model.grid" in sys.modules, hipgp.Grid.__name__)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_an_interrupt_during_an_import_is_told_after_it():
    done = subprocess.run([sys.executable, "-c", STRUCK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["told", "True", "Grid", "True"], done.stdout


def test_it_waits_for_the_end_once():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    reached = []
    try:
        with pytest.raises(KeyboardInterrupt), postponed():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the end")
        with pytest.raises(KeyboardInterrupt), postponed():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("too far")
        with pytest.raises(KeyboardInterrupt), postponed():
            os.kill(os.getpid(), signal.SIGINT)
            raise ImportError("what was to be imported is missing")
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached == ["the end"]


def test_other_handlers_and_threads_are_left_alone():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with postponed():
            os.kill(os.getpid(), signal.SIGINT)
            assert seen == [signal.SIGINT]
        thread = threading.Thread(target=lambda: postponed().__enter__() or seen.append("in a thread"))
        thread.start()
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT, "in a thread"]
