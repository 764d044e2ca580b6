"""An experiment of hours in pieces of minutes: the rows that are done, and the state of the fit at hand, in one folder."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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
        plain = _plain(name)
        file = self.folder / f"{plain}.json"
        if file.exists():
            return json.loads(file.read_text())["found"]
        found = make(self.folder / f"{plain}.checkpoint")
        if NOT_RUN in json.dumps(found, default=float):
            return found
        with atomic(file) as target:
            target.write(json.dumps({"machine": machine(), "found": found}, default=float).encode())
        return found

    def array(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """An array as an earlier piece made it, or as `make` makes it now: rounded to float32, and in float64."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{_plain(name)}.npy"
        if not file.exists():
            with atomic(file) as target:
                np.save(target, make().astype(np.float32))
        return np.load(file).astype(float)

    def done(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _plain(name: str) -> str:
    """A name as that of a file."""
    return re.sub(r"\W+", "-", name)
