"""The paper's experiments from the command line: found beside the package, run, shown and written down."""

import importlib
import importlib.util
import json
import pathlib
import sys
import threading
from typing import Any

from rich.console import Console
from rich.table import Table

import hipgp
from hipgp.apps.cli.console import BadInput, Voice
from hipgp.runtime import signals

NAME = "hipgp.experiments"
UNFINISHED = 75  # exit code of a piece that was not the last: "try again later" in sysexits.h


def package() -> Any:
    """The experiments: installed with the package, or in the checkout that the package is run from."""
    if NAME in sys.modules or importlib.util.find_spec(NAME) is not None:
        return importlib.import_module(NAME)
    start = pathlib.Path(hipgp.__file__).parents[2] / "experiments" / "__init__.py"
    if not start.is_file():
        raise BadInput(f"reproduce: the experiments are not installed, and there are none in {start.parent}")
    spec = importlib.util.spec_from_file_location(NAME, start)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


def listed() -> dict[str, str]:
    """Name and purpose of every experiment, and the data it needs."""
    return {
        name: one.about + (f"; needs the data set {one.data}" if one.data else "")
        for name, one in package().EXPERIMENTS.items()
    }


def end_after(minutes: float, name: str) -> None:
    """End this process after so many minutes: an experiment that runs in pieces goes on with the same command."""
    known = [key for key, one in package().EXPERIMENTS.items() if one.pieces]
    if name not in known:
        raise BadInput(
            f"minutes: expected an experiment that runs in pieces ({', '.join(known)}), got {name!r}"
        )
    if not minutes > 0:
        raise BadInput(f"minutes: expected a number above 0, got {minutes:g}")
    signals.last_words = lambda: f"{minutes:g} minutes are over: go on with the same command"
    timer = threading.Timer(60 * minutes, signals.finish, args=(UNFINISHED,))
    timer.daemon = True
    timer.start()


def reproduce(
    name: str, size: str, data: pathlib.Path | None, folder: pathlib.Path, target: pathlib.Path | None, voice: Voice
) -> None:  # fmt: skip
    """Run it; tables go to the screen, to `folder` and, as JSON, to `target`."""
    found = _run(name, size, data, folder, target, voice)
    if not voice.quiet:
        for table in found.all_tables():
            _show(table)
    written = [folder / "tables.md", *found.figures, *([] if target is None else [target])]
    voice.note("written: " + "  ".join(str(p) for p in written))


def reproduce_all(
    size: str, data: pathlib.Path | None, folder: pathlib.Path, target: pathlib.Path | None, voice: Voice
) -> None:  # fmt: skip
    """Run every experiment whose data are at hand, and show what became of the paper's conclusions.

    Figures and tables of each go to a folder of its name in `folder`; the JSON of each to the folder `target`.
    """
    experiments = package()
    summary = experiments.Table("The paper's conclusions")
    for name in experiments.EXPERIMENTS:
        if reason := experiments.missing(name, data):
            voice.note(reason)
            summary.add(
                experiment=name, conclusion="", paper="", here="", verdict="not run: its data are missing"
            )
            continue
        voice.note(f"{name} ...")
        file = None if target is None else target / f"{name}.json"
        found = _run(name, size, data, folder / name, file, voice)
        for row in found.conclusions.rows:
            summary.add(experiment=name, **row)
    (folder / "summary.md").write_text(summary.markdown() + "\n")
    if target is not None:
        kept = {"command": experiments.command("all", size), "conclusions": summary.rows}
        (target / "summary.json").write_text(json.dumps(kept, indent=1) + "\n")
    if not voice.quiet:
        _show(summary)
    voice.note(f"written: {folder / 'summary.md'}, and a folder for each experiment beside it")


def _run(
    name: str, size: str, data: pathlib.Path | None, folder: pathlib.Path, target: pathlib.Path | None, voice: Voice
) -> Any:  # fmt: skip
    """One experiment's result, its tables in `folder` and, as JSON, in `target`."""
    found = package().run(name, size, data, folder, voice.progress)
    (folder / "tables.md").write_text(found.markdown())
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(found.record(name, size), indent=1, default=str) + "\n")
    return found


def _show(table: Any) -> None:
    drawn = Table(*table.heads(), title=table.title, title_justify="left", title_style="bold")
    for row in table.cells():
        drawn.add_row(*row)
    Console(highlight=False).print(drawn)
