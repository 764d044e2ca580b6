"""Do all data sets learn without a hand's help, and in what time? Learning and conditioning with nothing given.

    python benchmarks/learning_table.py --data DIR [--only NAME ...] [--count 4000] [--without-grid]

For each: seconds and processor seconds of learning and conditioning, compilation included, evaluations of the likelihood by
stage, parameters with their standard errors, what is not determined, and warnings. `--count` takes that many observations
at random, where there are more; rows are named by it. Results of data sets that were not asked for stay as they are.
"""

import argparse
import json
import pathlib
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np
from datasets import PROBLEMS, Problem
from machine import RESULTS, facts, write_result

import hipgp as hg


def some(data: hg.Data, count: int | None) -> hg.Data:
    """`count` observations at random of data that are one block."""
    if count is None or len(data) <= count or len(data.blocks) != 1:
        return data
    (block,) = data.blocks
    rows = np.sort(np.random.default_rng(0).permutation(len(block.y))[:count])
    noise = None if block.noise is None else np.asarray(block.noise)[rows]
    return hg.observe(block.functional[rows], np.asarray(block.y)[rows], noise)


def run(problem: Problem, data: hg.Data, without_grid: bool) -> dict[str, Any]:
    gp = hg.GP(problem.gp.kernel, trend=problem.gp.trend) if without_grid else problem.gp
    seconds: dict[str, list[float]] = {}

    def timed(name: str, work: Any) -> Any:
        wall, processor = time.perf_counter(), time.process_time()
        found = work()
        seconds[name] = [time.perf_counter() - wall, time.process_time() - processor]
        return found

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        learned = timed("learn", lambda: gp.learn(data, progress=False))
        post = timed("condition", lambda: learned.condition(data, progress=False))
    assert learned.learned is not None
    return {
        "observations": len(data),
        "seconds and processor seconds": seconds,
        "evaluations": Counter(str(step["stage"]) for step in learned.learned.trace),
        "parameters": learned.learned.shown(),
        "undetermined": learned.learned.undetermined,
        "objective": learned.learned.objective,
        "warnings": [str(one.message) for one in told],
        "diagnostics": {
            name: post.diagnostics.get(name)
            for name in (
                "iterations",
                "converged",
                "grid_mean_error",
                "grid_std_error",
                "grid_chosen",
                "engine_chosen",
            )
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--count", type=int)
    parser.add_argument("--without-grid", action="store_true")
    args = parser.parse_args()
    path = RESULTS / "learning-table.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else {}
    for name in args.only:
        problem = PROBLEMS[name](args.data)
        data = some(problem.data, args.count)
        label = f"{name}, {len(data):,} observations" + ", without a grid" * args.without_grid
        rows[label] = run(problem, data, args.without_grid)
        print(label, json.dumps(rows[label], default=str))
        write_result("learning-table", {"machine": facts(), "rows": rows})


if __name__ == "__main__":
    main()
