"""What the comparisons with peers share: run one peer in its own Python, put rows together, print them.

A peer's script (`peers/*.py`) reads the problem from an .npz, and writes one JSON row: wall and CPU seconds of its phases,
scores, and a trace of (wall, CPU, RMSE, NLL) while it trains, taken with the clock stopped.
"""

import json
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from machine import RESULTS, facts, write_result

PEERS = pathlib.Path(__file__).parent / "peers"
COLUMNS = ("system", "wall_s", "cpu_s", "to_1pct_wall_s", "to_1pct_cpu_s", "rmse", "nll", "note")


def timed(function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What `function` returns, and its wall seconds and CPU seconds of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = function()
    return found, {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def run_peer(
    python: str, script: str, problem: dict[str, Any], options: list[str], most: float
) -> dict[str, Any]:
    """One row from a peer's script; where it fails or runs past `most` CPU seconds, a row that says so."""
    name = " ".join([script, *options])
    with tempfile.TemporaryDirectory() as folder:
        given, found = pathlib.Path(folder) / "problem.npz", pathlib.Path(folder) / "row.json"
        np.savez(given, **problem)
        command = [python, str(PEERS / f"{script}.py"), str(given), str(found), *options]
        limited = ["sh", "-c", f'ulimit -t {int(most)}; exec "$@"', "sh", *command]
        done = subprocess.run(limited, capture_output=True, text=True)
        if done.returncode < 0:  # ended by a signal: of the limit, unless memory ran out
            return {"system": name, "failed": f"not done after {most:g} CPU s (signal {-done.returncode})"}
        if not found.exists():
            return {"system": name, "failed": done.stderr.strip()[-500:]}
        return with_time_to_accuracy(json.loads(found.read_text()))


def with_time_to_accuracy(row: dict[str, Any]) -> dict[str, Any]:
    """Seconds from which RMSE and NLL both stay within 1% of their last values (NLL: or 0.01)."""
    trace = row.get("trace", [])
    if len(trace) < 2:
        return row
    wall, cpu, rmse, nll = np.array(trace, float).T
    far = (np.abs(rmse / rmse[-1] - 1) > 0.01) | (np.abs(nll - nll[-1]) > max(0.01 * abs(nll[-1]), 0.01))
    first = int(np.flatnonzero(far)[-1]) + 1 if far.any() else 0
    return row | {"to_1pct_wall_s": wall[first], "to_1pct_cpu_s": cpu[first]}


def keep(
    name: str,
    problem: dict[str, Any],
    rows: list[dict[str, Any]],
    columns: tuple[str, ...] = COLUMNS,
) -> None:
    """Write the rows beside those of earlier runs; a system that ran again replaces its own."""
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    again = {row["system"] for row in rows}
    together = [row for row in before if row["system"] not in again] + rows
    write_result(name, {"facts": facts(), "problem": problem, "rows": together})
    table(together, columns)


def table(rows: list[dict[str, Any]], columns: tuple[str, ...] = COLUMNS) -> None:
    """The rows as a Markdown table."""
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")
    for row in rows:
        cells = [row.get(c, row.get("failed", "") if c == "note" else "") for c in columns]
        print(
            "| " + " | ".join(f"{c:.4g}" if isinstance(c, float) else str(c) for c in cells) + " |",
            flush=True,
        )
