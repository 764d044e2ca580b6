"""An experiment of hours in pieces of minutes: the rows that are done, and the state of the fit at hand, in one folder."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hipgp.runtime.archive import atomic

from .outcome import NOT_RUN, machine


class Pieces:
    """What earlier pieces have found. The folder is removed when the experiment has come to its end."""

    def __init__(self, folder: Path):
        self.folder = folder

    def kept(self, name: str, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """What an earlier piece made under this name, or what `make` makes now, given the path of a checkpoint.

        What a machine could not do is not kept: another one may.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        plain = re.sub(r"\W+", "-", name)
        file = self.folder / f"{plain}.json"
        if file.exists():
            return json.loads(file.read_text())["found"]
        found = make(self.folder / f"{plain}.checkpoint")
        if NOT_RUN in json.dumps(found, default=float):
            return found
        with atomic(file) as target:
            target.write(json.dumps({"machine": machine(), "found": found}, default=float).encode())
        return found

    def done(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
