"""The paper's experiments from the command line: found beside the package, run, shown and written down."""

import importlib
import importlib.util
import json
import pathlib
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

import hipgp
from hipgp.apps.cli.console import BadInput, Voice

NAME = "hipgp.experiments"


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


def reproduce(
    name: str, size: str, data: pathlib.Path | None, folder: pathlib.Path, target: pathlib.Path | None, voice: Voice
) -> None:  # fmt: skip
    """Run it; tables go to the screen, to `folder` and, as JSON, to `target`."""
    experiments = package()
    found = experiments.run(name, size, data, folder, voice.progress)
    (folder / "tables.md").write_text(found.markdown())
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(found.record(name, size), indent=1, default=str) + "\n")
    if not voice.quiet:
        for table in found.tables:
            _show(table)
    written = [folder / "tables.md", *found.figures, *([] if target is None else [target])]
    voice.note("written: " + "  ".join(str(p) for p in written))


def _show(table: Any) -> None:
    drawn = Table(*table.heads(), title=table.title, title_justify="left", title_style="bold")
    for row in table.cells():
        drawn.add_row(*row)
    Console(highlight=False).print(drawn)
