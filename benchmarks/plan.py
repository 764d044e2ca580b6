"""Do fits take what `gp.plan` says? Predicted beside measured seconds and bytes: points, rays and grid space, three sizes each.

    python benchmarks/plan.py [--case points-1] [--most 3]

Each case runs in a process of its own: the plan, a first fit, which compiles, a second one, which does not, standard deviations
on the grid, and a draw. Measured bytes are the rise of the process' peak memory during the first fit. Where other work shares
the cores, compare with processor seconds, which lie between the seconds on an idle machine and these times its cores. Writes
benchmarks/results/plan-<device>.json.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
from machine import facts, write_result

import hipgp as hg

POINTS = ((10_000, 100), (50_000, 300), (100_000, 600))  # observations, grid points per axis
MANY = ((20_000, 50), (60_000, 100), (200_000, 200))
RAYS = ((500, 16), (2_000, 24), (8_000, 32))  # in three dimensions, from one place


def problem(kind: str, size: int) -> tuple[hg.GP, hg.Data]:
    rng = np.random.default_rng(0)
    count, side = {"points": POINTS, "grid": MANY, "rays": RAYS}[kind][size - 1]
    ndim = 3 if kind == "rays" else 2
    x = rng.uniform(-1, 1, (count, ndim))
    grid = hg.Grid.cover((-1,) * ndim, (1,) * ndim, shape=side)
    at = hg.LineIntegrals(np.zeros((count, ndim)), x) if kind == "rays" else hg.Points(x)
    gp = hg.GP(hg.Matern32(lengthscale=0.1 if kind == "points" else 0.4), grid)
    return gp, hg.observe(at, np.sin(5 * x[:, 0]), noise=0.1)


def resident(which: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(which))
    return float(line.split()[1]) * 1024


def timed(run) -> tuple[dict[str, float], object]:
    began, cpu = time.perf_counter(), time.process_time()
    found = run()
    return {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - cpu}, found


def case(name: str) -> dict[str, object]:
    kind, size = name.split("-")
    gp, data = problem(kind, int(size))
    planning, plan = timed(lambda: gp.plan(data, progress=False))
    by_name = {part.name: part.seconds for part in plan.parts}
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    first, post = timed(lambda: gp.condition(data, progress=False))
    peak = resident("VmHWM") - before
    again, post = timed(lambda: gp.condition(data, progress=False))
    post.std(progress=False)
    of_std, _ = timed(lambda: post.std(progress=False))
    post.sample(1, key=0, progress=False)
    of_draw, _ = timed(lambda: post.sample(1, key=1, progress=False))
    compiled = by_name["compilation"]
    return {
        "case": name, "observations": len(data), "grid": gp.grid.shape, "space": post.diagnostics["space"],
        "steps": post.diagnostics["iterations"], "planning": planning,
        "predicted": {
            "first": plan.seconds, "again": plan.seconds - compiled, "bytes": plan.bytes,
            "std": by_name["mean and std on the grid"], "draw": by_name["a draw"],
            "parts": {part.name: part.seconds for part in plan.parts},
        },
        "measured": {"first": first, "again": again, "std": of_std, "draw": of_draw, "bytes": peak,
                     "setup_seconds": post.diagnostics["setup_seconds"], "solve_seconds": post.diagnostics["solve_seconds"]},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case")
    parser.add_argument("--most", type=int, default=3, help="largest size")
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(case(asked.case)))
        return
    rows = []
    for size in range(1, asked.most + 1):
        for kind in ("points", "grid", "rays"):
            done = subprocess.run(
                [sys.executable, __file__, "--case", f"{kind}-{size}"], stdout=subprocess.PIPE, check=True
            )
            row = json.loads(done.stdout.splitlines()[-1])
            rows.append(row)
            told = {k: (round(v, 2), {n: round(s, 2) for n, s in row["measured"][k].items()})
                    for k, v in row["predicted"].items() if k not in ("bytes", "parts")}  # fmt: skip
            print(
                row["case"],
                told,
                [round(row[w]["bytes"] / 2**20) for w in ("predicted", "measured")],
                flush=True,
            )
            device = "cpu" if jax.default_backend() == "cpu" else "gpu"
            write_result(f"plan-{device}", {"rows": rows, "machine": facts()})


if __name__ == "__main__":
    main()
