"""Is everything learned from the data past the league of spatial methods? The Heaton satellite data.

    python benchmarks/heaton.py --data DIR [--seed 0] [--kernel m12+m32] [--polish] [--order 1]

Kernel, noise and linear trend are learned by gp.learn from data-driven starting values on the training mask; the test
mask is only scored. `--order` puts the rows into a random order of that number first. Figures of the league: Heaton et al. 2019 (best RMSE 1.53 and CRPS 0.83, SPDE, 120 minutes).
"""

import argparse
import pathlib
import time

import numpy as np
from machine import facts, gaussian_scores, peak_memory, write_result

import hipgp as hg

KERNELS = {
    "m12+m32": lambda: hg.Matern12() + hg.Matern32(),
    "m12": lambda: hg.Matern12(),
    "m32": lambda: hg.Matern32(),
    "m12ard+m32ard": lambda: hg.Matern12(1.0, (1.0, 1.0)) + hg.Matern32(1.0, (1.0, 1.0)),
    "m12ard+m32ard+m32": lambda: hg.Matern12(1.0, (1.0, 1.0)) + hg.Matern32(1.0, (1.0, 1.0)) + hg.Matern32(),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernel", choices=KERNELS, default="m12+m32")
    parser.add_argument("--polish", action="store_true", help="take the last steps on the exact bound")
    parser.add_argument("--order", type=int, help="seed of a random order of the rows; without it the file's")
    args = parser.parse_args()
    file = np.load(args.data / "heaton" / "heaton_satellite.npz")
    truth, train, test = file["true_temp"].astype(float), file["train_mask"], file["test_mask"]
    x, y = np.argwhere(train).astype(float), truth[train]
    if args.order is not None:
        rows = np.random.default_rng(args.order).permutation(len(y))
        x, y = x[rows], y[rows]
    data = hg.observe(hg.Points(x), y)
    gp = hg.GP(KERNELS[args.kernel](), hg.Grid((0, 0), 1.0, truth.shape), trend="linear")

    began = time.perf_counter()
    gp = gp.learn(data, key=args.seed, polish=args.polish or None, progress=False)
    learned = time.perf_counter()
    post = gp.condition(data, progress=False)
    solved = time.perf_counter()
    found = post.predict(hg.Points(np.argwhere(test).astype(float)))
    done = time.perf_counter()
    std = np.sqrt(found.std**2 + gp.noise**2)
    result = {
        "facts": facts(),
        "seed": args.seed,
        "order": args.order,
        "kernel": args.kernel,
        "parameters": dict(zip(gp.learned.names, gp.learned.values.tolist(), strict=True)),
        "objective": gp.learned.objective,
        "seconds": {
            "learn": learned - began,
            "condition": solved - learned,
            "predict": done - solved,
            "total": done - began,
        },
        "diagnostics": post.diagnostics,
        "scores": gaussian_scores(truth[test], found.mean, std),
        "peak_memory_gib": peak_memory(),
    }
    order = "" if args.order is None else f"-order{args.order}"
    write_result(f"heaton-{args.kernel}{'-polished' * args.polish}-seed{args.seed}{order}", result)
    print(args.kernel, args.seed, result["scores"], result["seconds"], result["parameters"])


if __name__ == "__main__":
    main()
