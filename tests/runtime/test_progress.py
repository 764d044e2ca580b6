"""The line that shows what a long job is at."""

import io
import sys
import time

import pytest
from rich.console import Console

from hipgp.runtime import progress
from hipgp.runtime.progress import Progress


@pytest.fixture
def terminal(monkeypatch):
    """What a terminal would have been sent, with next to no patience."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=120)
    monkeypatch.setattr("rich.console.Console", lambda **given: console)
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    return written


def _until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_a_long_job_shows_by_itself_what_it_is_at(terminal):
    with Progress("solving", shown=True) as line:
        line.done(30, 120)
        assert _until(lambda: "solving" in terminal.getvalue())
        assert "30 of 120" in terminal.getvalue()
        assert "━" * 6 + "╌" * 18 in terminal.getvalue()
        line.update("step 7")
        assert _until(lambda: "step 7" in terminal.getvalue())


def test_a_notebook_needs_no_widgets(monkeypatch):
    """A line of text there, too, that is erased in the end."""
    written = io.StringIO()
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr("builtins.get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    with Progress("solving", shown=True) as line:
        line.done(30, 120)
        assert _until(lambda: "30 of 120" in written.getvalue())
    assert written.getvalue().rstrip().endswith("\x1b[2K") and "ipywidgets" not in written.getvalue()


def test_a_short_job_shows_nothing(terminal, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 60.0)
    with Progress("solving", shown=True) as line:
        line.done(1, 2)
    assert terminal.getvalue() == ""


def test_nothing_shows_where_nothing_is_to_be_shown(terminal):
    with Progress("solving", shown=False) as line:
        line.done(1, 2)
        time.sleep(0.3)
    assert terminal.getvalue() == ""


def test_nothing_shows_after_the_end(terminal):
    with Progress("solving", shown=True):
        pass
    time.sleep(0.3)
    assert terminal.getvalue() == ""


def test_a_solve_is_shown_on_a_logarithmic_bar():
    line = Progress("solving", shown=False)
    report = line.nats(target=0.01)
    report(1, 100.0)
    assert line.fraction == 0.0
    report(5, 1.0)
    assert line.fraction == pytest.approx(0.5)
    assert line.detail == "step 5, 1 nats to go to 0.01"
    report(9, 0.01)
    assert line.fraction == pytest.approx(1.0)
