"""Points: hipgp beside GPyTorch, GPflow, scikit-learn and GPBoost, everything learned, on the same machine.

    python benchmarks/beside_points.py --problem heaton --data DIR --peer-python PYTHON [--systems hipgp svgp ...]

Writes benchmarks/results/beside-points-<problem>.json; a system that runs again replaces its own row. RMSE and NLL are
of held-out noisy values. Wall and CPU seconds (all threads) of learning, conditioning and predicting, compilation
included; hipgp's second run in the same process is timed apart. `hipgp-quick` learns from 5,000 of the observations, drawn at
random, and conditions on all; `hipgp-matern32` does so with the one kernel that GPyTorch and scikit-learn have here, a Matern 3/2
with a lengthscale per axis, and `hipgp-small` learns that from 1,000, on a grid of 200 x 200. Peers have their documentation's settings and --seconds of CPU time to train; what else was tried is
in their files.
"""

import argparse
import pathlib
from typing import Any

import jax
import numpy as np
from beside import keep, run_peer, timed
from machine import gaussian_scores

import hipgp as hg

PEERS = {
    "svgp": ("gpytorch_svgp", ["--seconds", "{}"]),
    "svgp-512": ("gpytorch_svgp", ["--inducing", "512", "--seconds", "{}"]),
    "svgp-2048": ("gpytorch_svgp", ["--inducing", "2048", "--seconds", "{}"]),
    "svgp-natural": ("gpytorch_svgp", ["--optimizer", "natural", "--seconds", "{}"]),
    "gpflow": ("gpflow_svgp", ["--seconds", "{}"]),
    "kissgp": ("gpytorch_kissgp", ["--seconds", "{}"]),
    "kissgp-fine": ("gpytorch_kissgp", ["--grid", "300", "--seconds", "{}"]),
    "sklearn": ("sklearn_subset", []),
    "gpboost-1/2": ("gpboost_vecchia", ["--shape", "0.5"]),
    "gpboost-3/2": ("gpboost_vecchia", ["--shape", "1.5"]),
}
LEAGUE = {  # Heaton et al. 2019, on their own machines
    "heaton": {"system": "SPDE, best of the published league", "wall_s": 7200.0, "rmse": 1.53, "crps": 0.83}
}


def heaton(folder: pathlib.Path) -> tuple[dict, hg.GP]:
    file = np.load(folder / "heaton" / "heaton_satellite.npz")
    truth, train, test = file["true_temp"].astype(float), file["train_mask"], file["test_mask"]
    x, x_test = (np.argwhere(mask).astype(float) for mask in (train, test))
    kernel = hg.Matern12(1.0, (1.0, 1.0)) + hg.Matern32(1.0, (1.0, 1.0)) + hg.Matern32()
    gp = hg.GP(kernel, hg.Grid((0, 0), 1.0, truth.shape), trend="linear")
    return {"x": x, "y": truth[train], "x_test": x_test, "y_test": truth[test], "trend": "linear"}, gp


def prices(folder: pathlib.Path) -> tuple[dict, hg.GP]:
    file = np.load(folder / "uk_house_prices" / "uk_prices_2018_update.npz")
    x = np.stack([file["lon"], file["lat"]], axis=1).astype(float)
    return split(x, np.log(file["price"]).astype(float), 20_000)


def aeromagnetic(folder: pathlib.Path) -> tuple[dict, hg.GP]:
    file = np.load(folder / "gb_aeromagnetic" / "gb_aeromagnetic.npz")
    lon, lat = file["lon"].astype(float), file["lat"].astype(float)
    x, y = np.stack([lon * np.cos(np.radians(lat.mean())), lat], axis=1), file["tfa_nt"].astype(float)
    return split(x, y, len(y) // 5)


def split(x: np.ndarray, y: np.ndarray, held_out: int) -> tuple[dict, hg.GP]:
    """Some held out at random, and a rough and a smooth part on 1000 x 1000."""
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[:held_out], order[held_out:]
    grid = hg.Grid.cover(x.min(axis=0), x.max(axis=0), shape=(1000, 1000))
    gp = hg.GP(hg.Matern12() + hg.Matern32(), grid, trend="constant")
    seen = {"x": x[train], "y": y[train], "trend": "constant"}
    return seen | {"x_test": x[test], "y_test": y[test]}, gp


PROBLEMS = {"heaton": heaton, "prices": prices, "aeromagnetic": aeromagnetic}


# observations that it learns from
HIPGP = {"hipgp": None, "hipgp-quick": 5000, "hipgp-matern32": 5000, "hipgp-small": 1000}


def run_hipgp(name: str, problem: dict, gp: hg.GP) -> dict:
    if name in ("hipgp-matern32", "hipgp-small"):
        coarse = hg.Grid.cover(gp.grid.lower, gp.grid.upper, shape=(200, 200))
        grid = coarse if name == "hipgp-small" else gp.grid
        gp = hg.GP(hg.Matern32(1.0, (1.0, 1.0)), grid, trend=problem["trend"])
    data = hg.observe(hg.Points(problem["x"]), problem["y"])
    count = HIPGP[name]
    some = slice(None) if count is None else np.random.default_rng(0).permutation(len(data))[:count]
    fewer = hg.observe(hg.Points(problem["x"][some]), problem["y"][some])

    def run(gp: hg.GP) -> tuple[Any, ...]:
        gp, learn = timed(lambda: gp.learn(fewer, progress=False))
        post, condition = timed(lambda: gp.condition(data, progress=False))
        found, predict = timed(lambda: post.predict(hg.Points(problem["x_test"])))
        return gp, post, found, {"learn": learn, "condition": condition, "predict": predict}

    start = gp
    gp, post, found, phases = run(start)
    again = run(start)[-1]
    scores = gaussian_scores(problem["y_test"], found.mean, np.sqrt(found.std**2 + gp.noise**2))
    return {
        "system": f"{name} {hg.__version__}",
        "wall_s": sum(p["wall"] for p in phases.values()),
        "cpu_s": sum(p["cpu"] for p in phases.values()),
        "rmse": scores["rmse"],
        "nll": -scores["log_likelihood"],
        "crps": scores["crps"],
        "coverage_95": scores["coverage_95"],
        "phases": phases,
        "again_wall_s": sum(p["wall"] for p in again.values()),
        "again_phases": again,
        "parameters": dict(zip(gp.learned.names, gp.learned.values.tolist(), strict=True)),
        "note": f"float64 on {jax.default_backend()}, {type(gp.kernel).__name__} learned from {len(fewer)}, grid "
        f"{gp.grid.shape}, {post.diagnostics['iterations']} steps, residuals {post.diagnostics['residual']}",
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problem", choices=tuple(PROBLEMS), required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument(
        "--systems", nargs="+", choices=(*HIPGP, *PEERS, "league"), default=[*HIPGP, *PEERS, "league"]
    )
    parser.add_argument("--seconds", type=float, default=480, help="CPU seconds of SVGP and KISS-GP training")
    parser.add_argument("--most", type=float, default=900, help="CPU seconds before a peer is stopped")
    args = parser.parse_args()
    problem, gp = PROBLEMS[args.problem](args.data)
    about = {"name": args.problem, "observations": len(problem["y"]), "held out": len(problem["y_test"])}
    for name in args.systems:
        if name in HIPGP:
            row = run_hipgp(name, problem, gp)
        elif name == "league":
            row = LEAGUE.get(args.problem)
        else:
            script, options = PEERS[name]
            options = [o.format(args.seconds) for o in options]
            row = run_peer(args.peer_python, script, problem, options, most=args.most)
        if row is not None:
            keep(f"beside-points-{args.problem}", about, [row])


if __name__ == "__main__":
    main()
