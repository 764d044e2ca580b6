"""How do seconds and memory grow with the data and with the grid? One figure, slopes stated.

    python benchmarks/growth.py [--most 7] [--over N M]

Points uniform in a square, Matern 3/2 with a lengthscale of 8 cells, noise a third of the field's std; set-up and solve of
the posterior mean to 0.01 nats, second run (no compilation), each size in a process of its own so that peak memory is
its own. N from 1e4 up to 10^most at M = 1e5, and M likewise at N = 1e5.
"""

import argparse
import json
import subprocess
import sys
import time

import numpy as np
from machine import RESULTS, facts, peak_memory, write_result
from scipy.stats import linregress

import hipgp as hg


def measure(observations: int, side: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 1.0, (observations, 2))
    grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(side, side))
    y = np.sin(9 * x[:, 0]) * np.cos(7 * x[:, 1]) + 0.3 * rng.standard_normal(observations)
    gp = hg.GP(hg.Matern32(1.0, 8 / side), grid, noise=0.3)
    data = hg.observe(hg.Points(x), y)
    for _ in range(2):
        began = time.perf_counter()
        post = gp.condition(data, progress=False)
        seconds = time.perf_counter() - began
    return {
        "N": observations,
        "M": side**2,
        "seconds": seconds,
        "steps": post.diagnostics["iterations"],
        "space": post.diagnostics["space"],
        "gib": peak_memory()["process"],
    }


def apart(observations: int, side: int) -> dict[str, float]:
    found = subprocess.run(
        [sys.executable, __file__, "--one", str(observations), str(side)], capture_output=True, text=True
    )
    if found.returncode:
        raise RuntimeError(found.stderr)
    row = json.loads(found.stdout.splitlines()[-1])
    print(row, flush=True)
    return row


def slope(rows: list[dict[str, float]], of: str) -> float:
    """The exponent over the upper half of the sizes, where fixed costs no longer show."""
    upper = rows[len(rows) // 2 - 1 :]
    return float(linregress(np.log([r[of] for r in upper]), np.log([r["seconds"] for r in upper])).slope)


def draw(rows: dict[str, list[dict[str, float]]], slopes: dict[str, float]) -> None:
    from matplotlib.figure import Figure

    fig = Figure(figsize=(9, 4), layout="constrained")
    for ax, (name, label) in zip(
        fig.subplots(1, 2, sharey=True),
        (("N", "observations N (M = 1e5)"), ("M", "grid points M (N = 1e5)")),
        strict=True,
    ):
        ax.loglog([r[name] for r in rows[name]], [r["seconds"] for r in rows[name]], "o-", color="#2a6f97")
        ax.set_xlabel(label)
        ax.set_title(f"seconds grow as {name}^{slopes[name]:.2f}")
        ax.grid(alpha=0.3)
    fig.axes[0].set_ylabel("seconds, set-up and solve")
    fig.savefig(RESULTS / "growth.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=float, default=7)
    parser.add_argument("--over", nargs="+", choices=("N", "M"), default=["N", "M"])
    parser.add_argument("--one", type=int, nargs=2)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    sizes = np.arange(4, args.most + 0.01, 0.5)
    of = {"N": lambda p: apart(round(10**p), 316), "M": lambda p: apart(100_000, round(10 ** (p / 2)))}
    for name in args.over:
        rows = [of[name](p) for p in sizes]
        write_result(f"growth-{name}", {"facts": facts(), "rows": rows, "slope": slope(rows, name)})
    found = [RESULTS / f"growth-{name}.json" for name in of]
    if all(path.exists() for path in found):
        both = {name: json.loads(path.read_text()) for name, path in zip(of, found, strict=True)}
        draw({k: v["rows"] for k, v in both.items()}, {k: v["slope"] for k, v in both.items()})
        print({k: v["slope"] for k, v in both.items()})


if __name__ == "__main__":
    main()
