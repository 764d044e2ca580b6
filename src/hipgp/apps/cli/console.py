"""What the command prints: results on stdout (a table, or JSON), all else on stderr, one line for an error."""

import contextlib
import json
import os
import pathlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hipgp.runtime import signals

BAD_INPUT, INTERRUPTED = 2, 130


class BadInput(Exception):
    """An error in what the user gave; the message says how to correct it."""


class Voice:
    """Prints notes, results and errors as --quiet and --json ask."""

    def __init__(self, quiet: bool, as_json: bool):
        self.quiet, self.as_json = quiet, as_json
        self.progress = not (quiet or as_json)
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print what is being done, unless quiet or in JSON."""
        if self.progress:
            self.errors.print(text, style="dim", markup=False)

    def result(self, title: str, rows: Mapping[str, Any]) -> None:
        """Print the result: a table, or one JSON object."""
        if self.as_json:
            print(json.dumps(rows, default=str))
        elif not self.quiet:
            console = Console(highlight=False)
            console.print(Text(title, style="bold"), soft_wrap=True)
            table = Table("", "", show_header=False)
            for name, value in rows.items():
                if value is not None:
                    table.add_row(Text(_spoken(name)), Text(_shown(value)))
            console.print(table)

    @contextlib.contextmanager
    def guarded(self, resume: str = "", checkpoints: Iterable[pathlib.Path] = ()) -> Iterator[None]:
        """Turn what goes wrong into one clear line and an exit code."""
        checkpoints = list(checkpoints)
        signals.last_words = lambda: self._last_words(resume, checkpoints)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.simplefilter(
                    "ignore", ResourceWarning
                )  # of readers that stumble over a damaged file
                warnings.showwarning = lambda message, *_, **__: self.errors.print(
                    f"warning: {message}", style="yellow", markup=False
                )
                yield
        except KeyboardInterrupt:
            self.errors.print(self._last_words(resume, checkpoints), markup=False)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # nobody reads on
            raise typer.Exit(1) from None
        except (BadInput, ValueError, ImportError, OSError, MemoryError) as error:
            self._fail(_explained(error))

    def _fail(self, message: str) -> None:
        if self.as_json:
            print(json.dumps({"error": message}))
        self.errors.print(f"error: {message}", style="red", markup=False)
        raise typer.Exit(BAD_INPUT)

    def _last_words(self, resume: str, checkpoints: Iterable[pathlib.Path]) -> str:
        kept = [str(path) for path in checkpoints if path.exists()]
        if kept:
            return f"stopped; the work so far is kept in {' and '.join(kept)}. Go on with: {resume}"
        return "stopped; nothing was written"


def _explained(error: BaseException) -> str:
    """An error message in one line, with what to do about it."""
    if isinstance(error, PermissionError):
        return f"{error.filename}: may not be written here; choose another place with --output"
    if isinstance(error, OSError) and error.errno == 28:
        return f"the disk is full ({error.filename or 'while writing'}); nothing half written was left"
    if isinstance(error, MemoryError):
        return "out of memory; use a coarser grid (--spacing)"
    return str(error)


def _spoken(name: str) -> str:
    """A key as a heading: "error_rms" becomes "error (rms)"."""
    words = name.replace("coverage95", "coverage of 95% intervals").replace("_rms", " (rms)")
    return (
        words.replace("_percent", " [%]")
        .replace("_nats", " [nats]")
        .replace("_", " ")
        .replace(" seconds", " [s]")
    )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "\n".join(str(v) for v in value.values())
    if isinstance(value, list | tuple):
        return " x ".join(str(v) for v in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def check_output(path: pathlib.Path, overwrite: bool) -> None:
    """Raise BadInput, before any work is done, where this file cannot be written."""
    folder = path.parent if str(path.parent) else pathlib.Path(".")
    signals.folders.add(str(folder.absolute()))
    if path.is_dir():
        raise BadInput(f"{path}: is a folder; name a file with --output")
    if path.exists() and not overwrite:
        raise BadInput(f"{path}: exists already; give --overwrite to replace it, or another --output")
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; make it first, or choose another --output")
    probe = folder / f".hipgp-{os.getpid()}.probe"
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        raise BadInput(f"{folder}: may not be written to; choose another --output") from None
