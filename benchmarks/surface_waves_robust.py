"""Surface waves of the USA with Gaussian noise and with Student's t, on the same paths: held-out errors and the lengthscale learned.

    python benchmarks/surface_waves_robust.py --data DIR [--train 3000] [--test 5000] [--shape 120 60]

Random subsets of the given split by station pair. Slowness in s/km; errors of the mean against measurements that have outliers too.
"""

import argparse
import pathlib
import time

import numpy as np
from datasets import great_circles
from machine import facts, write_result

import hipgp as hg

NODES = 48


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--train", type=int, default=3000)
    parser.add_argument("--test", type=int, default=5000)
    parser.add_argument("--shape", type=int, nargs=2, default=(120, 60))
    args = parser.parse_args()
    folder = args.data / "surface_wave_tomography"
    file, split = np.load(folder / "usa_rayleigh_10s.npz"), np.load(folder / "usa_rayleigh_10s_split.npz")
    y = file["slowness_s_per_m"].astype(float) * 1000
    paths = great_circles(*(file[k].astype(float) for k in ("lat1", "lon1", "lat2", "lon2")), NODES)
    rng = np.random.default_rng(0)
    held = np.zeros(len(y), bool)
    held[split["test_idx"]] = True
    train = rng.permutation(np.flatnonzero(~held))[: args.train]
    test = rng.permutation(np.flatnonzero(held))[: args.test]
    corners = paths.reshape(-1, 2)
    grid = hg.Grid.cover(corners.min(axis=0), corners.max(axis=0), shape=tuple(args.shape))
    rays = hg.Functionals(paths, np.full(NODES, 1 / NODES))
    result: dict = {"train": args.train, "test": args.test, "grid": args.shape, "spacing": list(grid.spacing)}
    for name, likelihood in (("gaussian", None), ("student-t", hg.StudentT())):
        data = hg.observe(rays[train], y[train], likelihood=likelihood)
        began = np.array([time.perf_counter(), time.process_time()])
        gp = hg.GP(hg.Matern32(), grid, trend="constant").learn(data, polish=False, progress=False)
        post = gp.condition(data, progress=False)
        error = np.abs(post.predict(rays[test], samples=4, progress=False).mean - y[test])
        spent = np.array([time.perf_counter(), time.process_time()]) - began
        result[name] = {
            "median": float(np.median(error)),
            "rmse": float(np.sqrt(np.mean(error**2))),
            "parameters": dict(zip(gp.learned.names, gp.learned.values.tolist(), strict=True)),
            "noise": gp.noise,
            "others": gp.parameters,
            "undetermined": gp.learned.undetermined,
            "seconds": {"wall": spent[0], "cpu": spent[1]},
        }
        print(name, result[name], flush=True)
    write_result("surface_waves_robust", result | {"machine": facts()})


if __name__ == "__main__":
    main()
