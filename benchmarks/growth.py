"""How do seconds and memory grow with the data and with the grid? One figure, slopes stated.

    python benchmarks/growth.py [--most 7] [--over N M] [--peer-python PYTHON]
    python benchmarks/growth.py --stream 10000000 --peer-python PYTHON

Points uniform in a square, Matern 3/2 with a lengthscale of 8 cells, noise a third of the field's std; set-up and solve of
the posterior mean to 0.01 nats, second run (no compilation), each size in a process of its own so that peak memory is
its own. N from 1e4 up to 10^most at M = 1e5, and M likewise at N = 1e5. With --peer-python also, with the same kernel, EFGP (to
1e-3) over both, its modes in place of grid points, and scikit-learn's exact GP over N, as far as each gets in PEER_SECONDS of CPU time.
With --stream so many points are fitted by `observe_from` alone, both runs, and by EFGP after it: results/growth-stream.json.
"""

import argparse
import json
import subprocess
import sys
import time

import numpy as np
from beside import run_peer
from machine import RESULTS, facts, peak_memory, write_result
from scipy.stats import linregress

import hipgp as hg

SIDE, NOISE, PEER_SECONDS = 316, 0.3, 150
PEERS = {
    "EFGP": ("efgp", ["--epsilon", "1e-3"], {"N": 4.0, "M": 4.0}),
    "scikit-learn, exact": ("sklearn_exact", [], {"N": 3.0}),
}  # log10 of the first size
SIZES = {  # observations, and grid points per axis
    "N": lambda power: (round(10**power), SIDE),
    "M": lambda power: (100_000, round(10 ** (power / 2))),
}


def simulate(observations: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 1.0, (observations, 2))
    return x, np.sin(9 * x[:, 0]) * np.cos(7 * x[:, 1]) + NOISE * rng.standard_normal(observations)


def measure(observations: int, side: int) -> dict[str, float]:
    x, y = simulate(observations)
    grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(side, side))
    gp = hg.GP(hg.Matern32(1.0, 8 / side), grid, noise=NOISE)
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


def streamed(observations: int) -> dict[str, float]:
    x, y = simulate(observations)
    grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(SIDE, SIDE))
    gp, seconds = hg.GP(hg.Matern32(1.0, 8 / SIDE), grid, noise=NOISE), []
    for _ in range(2):
        began = time.perf_counter()
        post = gp.condition(hg.observe_from([(x, y)]), progress=False)
        seconds.append(time.perf_counter() - began)
    at = np.random.default_rng(1).uniform(0.0, 1.0, (32, 2))
    began = time.perf_counter()
    found = post.predict(at, "exact", progress=False)
    truth = np.sin(9 * at[:, 0]) * np.cos(7 * at[:, 1])
    return {
        "N": observations,
        "M": SIDE**2,
        "seconds": seconds[1],
        "first_seconds": seconds[0],
        "std_at_32_places_seconds": time.perf_counter() - began,
        "rmse": float(np.sqrt(np.mean((post.engine.mean(hg.Points(at)) - truth) ** 2))),
        "mean_std": float(np.mean(found.std)),
        "gib": peak_memory()["process"],
        **{k: v for k, v in post.diagnostics.items() if k in ("iterations", "kl_nats", "reading_seconds")},
        **{k: v for k, v in post.diagnostics.items() if k in ("setup_seconds", "solve_seconds")},
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


def peers(python: str, over: str, most: float, least: float = 0.0) -> dict[str, list[dict[str, float]]]:
    """Rows of each peer, up to the first size that it does not do in time."""
    at, _ = simulate(1000)
    given = {"variance": 1.0, "noise": NOISE, "kernel": "Matern32", "hipgp": np.zeros(1000)}
    given |= {"x_test": at, "f_test": np.sin(9 * at[:, 0]) * np.cos(7 * at[:, 1])}
    out: dict[str, list[dict[str, float]]] = {}
    for name, (script, options, first) in PEERS.items():
        if over not in first:
            continue
        out[name] = []
        for power in np.arange(max(first[over], least), most + 0.01, 0.5):
            observations, side = SIZES[over](power)
            x, y = simulate(observations)
            problem = given | {"x": x, "y": y, "lengthscale": 8 / side}
            row = run_peer(python, script, problem, options, PEER_SECONDS)
            if "failed" in row:
                print(name, observations, side, row["failed"])
                break
            found = {"seconds": row["again_wall_s"], "gib": row["peak_gib"], "rmse": row["rmse"]}
            out[name].append({"N": observations, "M": side**2} | found)
            print(name, out[name][-1], flush=True)
    return out


def slope(rows: list[dict[str, float]], of: str) -> float:
    """The exponent over the upper half of the sizes, where fixed costs no longer show."""
    upper = rows[len(rows) // 2 - 1 :]
    return float(linregress(np.log([r[of] for r in upper]), np.log([r["seconds"] for r in upper])).slope)


def draw(
    rows: dict[str, list[dict[str, float]]],
    slopes: dict[str, float],
    beside: dict[str, dict[str, list[dict[str, float]]]],
) -> None:
    from matplotlib.figure import Figure

    fig = Figure(figsize=(9, 4), layout="constrained")
    for ax, (name, label) in zip(
        fig.subplots(1, 2, sharey=True),
        (("N", "observations N (M = 1e5)"), ("M", "grid points M (N = 1e5)")),
        strict=True,
    ):
        lines = {"hipgp": rows[name]} | beside.get(name, {})
        for (who, some), colour in zip(lines.items(), ("#2a6f97", "#c1666b", "#8d99ae"), strict=False):
            ax.loglog([r[name] for r in some], [r["seconds"] for r in some], "o-", color=colour, label=who)
        if len(lines) > 1:
            ax.legend(frameon=False)
        ax.set_xlabel(label)
        ax.set_title(f"seconds grow as {name}^{slopes[name]:.2f}")
        ax.grid(alpha=0.3)
    fig.axes[0].set_ylabel("seconds, set-up and solve")
    fig.savefig(RESULTS / "growth.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=float, default=7)
    parser.add_argument("--over", nargs="+", choices=("N", "M"), default=["N", "M"])
    parser.add_argument("--peer-python")
    parser.add_argument("--one", type=int, nargs=2)
    parser.add_argument("--stream", type=int)
    args = parser.parse_args()
    if args.stream:
        row = streamed(args.stream)
        print(row, flush=True)
        power = float(np.log10(args.stream))
        del PEERS["scikit-learn, exact"]
        beside = peers(args.peer_python, "N", power, power) if args.peer_python else {}
        write_result("growth-stream", {"facts": facts(), "hipgp": row, "peers": beside})
        return
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    for name in args.over:
        rows = [apart(*SIZES[name](power)) for power in np.arange(4, args.most + 0.01, 0.5)]
        write_result(f"growth-{name}", {"facts": facts(), "rows": rows, "slope": slope(rows, name)})
    if args.peer_python:
        beside = {name: peers(args.peer_python, name, args.most) for name in args.over}
        slopes = {
            name: {who: slope(some, name) for who, some in lines.items()} for name, lines in beside.items()
        }
        write_result("growth-peers", {"facts": facts(), "rows": beside, "slopes": slopes})
        print(slopes)
    found = [RESULTS / f"growth-{name}.json" for name in SIZES]
    if all(path.exists() for path in found):
        both = {name: json.loads(path.read_text()) for name, path in zip(SIZES, found, strict=True)}
        path = RESULTS / "growth-peers.json"
        beside = json.loads(path.read_text())["rows"] if path.exists() else {}
        draw({k: v["rows"] for k, v in both.items()}, {k: v["slope"] for k, v in both.items()}, beside)
        print({k: v["slope"] for k, v in both.items()})


if __name__ == "__main__":
    main()
