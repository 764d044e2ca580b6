"""What an experiment hands back: tables and figures, with the facts of the machine they were made on."""

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image
from scipy.stats import norm

from hipgp import plots

LARGE = 148_000  # bytes of a figure
NOT_RUN = "not run"  # it would take a GPU, or hours
NOT_POSSIBLE = "n/a"  # memory does not allow it


def published(name: str) -> list[dict[str, Any]]:
    """The paper's own numbers of an experiment."""
    return json.loads(Path(__file__).with_name("paper.json").read_text())[name]


class Table:
    """Rows of named values; each is shown as it comes, where progress is wanted."""

    def __init__(self, title: str, shown: bool = False):
        self.title, self.shown = title, shown
        self.rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        if self.shown:
            print(
                "  " + ", ".join(f"{spoken(k)} {said(v)}" for k, v in row.items()),
                file=sys.stderr,
                flush=True,
            )

    @property
    def columns(self) -> list[str]:
        """The names of all rows' values, in the order of their first appearance; those that are empty throughout left out."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in names if any(row.get(name, "") != "" for row in self.rows)]

    def heads(self) -> list[str]:
        return [spoken(c) for c in self.columns]

    def cells(self) -> list[list[str]]:
        return [[said(row.get(c, "")) for c in self.columns] for row in self.rows]

    def markdown(self) -> str:
        rule = ["---"] * len(self.columns)
        lines = ["| " + " | ".join(cells) + " |" for cells in [self.heads(), rule, *self.cells()]]
        return "\n".join([f"**{self.title}**", "", *lines])


class Result:
    """Tables, figures, seconds, and what became of the paper's conclusions."""

    def __init__(self, title: str):
        self.title = title
        self.tables: list[Table] = []
        self.conclusions = Table("The paper's conclusions")
        self.figures: list[Path] = []
        self.began = time.perf_counter(), time.process_time()

    def table(self, title: str, shown: bool) -> Table:
        """A new table of this result."""
        self.tables.append(Table(title, shown))
        if shown:
            print(title, file=sys.stderr, flush=True)
        return self.tables[-1]

    def draw(self, figure: Any, path: Path) -> None:
        """Keep a figure; a large file is reduced to 256 colours, which take a third of the bytes."""
        plots.save(figure, path)
        if path.stat().st_size > LARGE:
            with Image.open(path) as image:
                image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
        self.figures.append(path)

    def conclude(self, conclusion: str, paper: str, here: str, verdict: bool | str) -> None:
        """What the paper says or finds, its figures and ours, and whether it holds here."""
        said_so = (
            {True: "holds", False: "does not hold"}.get(verdict, verdict)
            if isinstance(verdict, bool)
            else verdict
        )
        self.conclusions.add(conclusion=conclusion, paper=paper, here=here, verdict=said_so)

    def all_tables(self) -> list[Table]:
        return [*self.tables, *([self.conclusions] if self.conclusions.rows else [])]

    def markdown(self) -> str:
        return "\n\n".join([f"# {self.title}", *(t.markdown() for t in self.all_tables())]) + "\n"

    def record(self, name: str, size: str) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {
            "experiment": name,
            "size": size,
            "command": command(name, size),
            "seconds": round(time.perf_counter() - self.began[0], 1),
            "cpu_seconds": round(time.process_time() - self.began[1], 1),
            "machine": machine(),
            "tables": {t.title: t.rows for t in self.all_tables()},
            "figures": [f.name for f in self.figures],
        }


def command(name: str, size: str) -> str:
    """What to type for it; DIR is the folder of the data sets."""
    folder = "experiments/results" + ("/small" if size == "small" else "")
    target = folder if name == "all" else f"{folder}/{name}.json"
    return f"hipgp reproduce {name} --size {size} --data DIR --json {target}"


def spoken(name: str) -> str:
    return name.replace("_", " ")


def said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def machine() -> dict[str, Any]:
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": platform.machine(),
        "threads": threads,
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
    }


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def scores(truth: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    """Errors, mean log-likelihood and coverage of Gaussian predictions; `std` with the noise, where truth has it."""
    error = np.asarray(truth, float) - np.asarray(mean, float)
    return {
        "RMSE": float(np.sqrt(np.mean(error**2))),
        "MAE": float(np.mean(np.abs(error))),
        "MSE": float(np.mean(error**2)),
        "log_likelihood": float(np.mean(norm.logpdf(error, scale=std))),
        "coverage_of_95%": float(np.mean(np.abs(error) < 1.959964 * std)),
    }
