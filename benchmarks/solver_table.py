"""Which preconditioner, with how many neighbours? Every real data set at its learned hyperparameters.

    python benchmarks/solver_table.py --data DIR [--only NAME ...] [--method "grid space" ...]

For each: steps to 0.01 nats, set-up and solve seconds, of the batch engine as it comes, without a preconditioner, in grid space (in two dimensions), and with
Vecchia factors of several sizes. At most 400 steps. Learned parameters and methods that were not asked for stay as they
are in an earlier result; each method has the facts of the machine that it ran on.
"""

import argparse
import json
import pathlib
import time
import warnings
from typing import Any

import jax
import numpy as np
from datasets import PROBLEMS, Problem
from machine import RESULTS, facts, write_result

import hipgp as hg

LIMIT = 400


def methods(problem: Problem) -> dict[str, hg.Batch]:
    single = all(block.functional.single for block in problem.data.blocks)
    sizes = (10, 20, 40) if single else (32, 96, 192)
    out = {"as it comes": hg.Batch(max_iterations=LIMIT)}
    out |= {"none": hg.Batch(neighbours=0, space="data", max_iterations=LIMIT)}
    if problem.data.ndim == 2:
        out["grid space"] = hg.Batch(space="grid", max_iterations=LIMIT)
    return out | {f"Vecchia {k}": hg.Batch(neighbours=k, space="data", max_iterations=LIMIT) for k in sizes}


def earlier(name: str) -> dict[str, Any]:
    path = RESULTS / f"solver-{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def learned(name: str, problem: Problem) -> tuple[hg.GP, float]:
    """The model with its parameters, from an earlier result or from the data."""
    began = time.perf_counter()
    if found := earlier(name):
        structure = jax.tree.structure(problem.gp.kernel)
        kernel = jax.tree.unflatten(structure, [np.asarray(a) for a in found["kernel"]])
        return hg.GP(kernel, problem.gp.grid, found["noise"], problem.gp.trend), found["learn_seconds"]
    return problem.gp.learn(problem.data, progress=False), time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--method", nargs="+")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # solves that stop at the limit are rows of the table
    for name in args.only:
        problem = PROBLEMS[name](args.data)
        gp, seconds = learned(name, problem)
        rows = earlier(name).get("rows", {})
        for label, method in methods(problem).items():
            if args.method and label not in args.method:
                continue
            found = gp.condition(problem.data, method, progress=False).diagnostics
            keys = ("iterations", "kl_nats", "setup_seconds", "solve_seconds", "preconditioner")
            rows[label] = {key: found[key] for key in keys} | {"facts": facts()}
            print(name, label, rows[label], flush=True)
        result = {
            "facts": earlier(name).get("facts", facts()),
            "observations": len(problem.data),
            "grid": gp.grid.shape,
            "rows": rows,
        }
        write_result(
            f"solver-{name}",
            result | {"kernel": jax.tree.leaves(gp.kernel), "noise": gp.noise, "learn_seconds": seconds},
        )


if __name__ == "__main__":
    main()
