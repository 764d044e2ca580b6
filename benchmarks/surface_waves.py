"""Real line integrals between arbitrary ends: mean slowness along great circles, on the given split by station pair.

    python benchmarks/surface_waves.py --data DIR

Rays are great circles, as nodes through hg.Functionals in longitude and latitude. Beside us: the damped least squares
of the data set's README (test RMSE 0.00523 s/km). Slowness in s/km.
"""

import argparse
import pathlib
import time

import numpy as np
from datasets import great_circles
from machine import facts, gaussian_scores, peak_memory, write_result

import hipgp as hg

NODES = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--shape", type=int, nargs=2, default=(240, 120))
    args = parser.parse_args()
    folder = args.data / "surface_wave_tomography"
    file, split = np.load(folder / "usa_rayleigh_10s.npz"), np.load(folder / "usa_rayleigh_10s_split.npz")
    y = file["slowness_s_per_m"].astype(float) * 1000
    paths = great_circles(*(file[k].astype(float) for k in ("lat1", "lon1", "lat2", "lon2")), NODES)
    test = np.zeros(len(y), bool)
    test[split["test_idx"]] = True
    lower, upper = paths.reshape(-1, 2).min(0), paths.reshape(-1, 2).max(0)
    grid = hg.Grid.cover(lower, upper, shape=tuple(args.shape))
    rays = hg.Functionals(paths, np.full(NODES, 1 / NODES))
    data = hg.observe(rays[~test], y[~test])
    began = time.perf_counter()
    gp = hg.GP(hg.Matern32(), grid, trend="constant").learn(data, progress=False)
    seconds = {"learn": time.perf_counter() - began}
    began = time.perf_counter()
    post = gp.condition(data, progress=False)
    seconds["mean"] = time.perf_counter() - began
    began = time.perf_counter()
    found = post.predict(rays[test], samples=16)
    seconds["predict"] = time.perf_counter() - began
    result = {
        "facts": facts(),
        "seconds": seconds,
        "parameters": dict(zip(gp.learned.names, gp.learned.values.tolist(), strict=True)),
        "diagnostics": post.diagnostics,
        "scores": gaussian_scores(y[test], found.mean, np.sqrt(found.std**2 + gp.noise**2)),
        "damped_least_squares_rmse": 0.00523,
        "peak_memory_gib": peak_memory(),
    }
    write_result("surface_waves", result)
    print({k: v for k, v in result.items() if k != "facts"})


if __name__ == "__main__":
    main()
