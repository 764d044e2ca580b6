"""Leave-one-out scores and averaging over kernels on real data: do they say what held-out data say, and at what cost?

    python benchmarks/averaging_real.py --data DIR [--only heaton texas_wind]

- heaton: 105,569 points with the test mask of the data set, Matern 1/2 + Matern 3/2 learned; the kernel known well.
- texas_wind: two components of the wind at 186 stations, Matern 3/2 with a lengthscale per axis; the kernel hardly known. Each
  component in five folds, learned anew without each.

For each: seconds and scores of leave-one-out with the best kernel, and of held-out data with the best and averaged.
"""

import argparse
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from datasets import heaton, plane
from machine import facts, gaussian_scores, write_result

import hipgp as hg

FOLDS = 5
WAYS = ("best", "average")


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    wall, processor = time.perf_counter(), time.process_time()
    found = work()
    return found, {"wall": time.perf_counter() - wall, "cpu": time.process_time() - processor}


def of_heaton(folder: pathlib.Path) -> dict[str, Any]:
    gp, data = heaton(folder)
    file = np.load(folder / "heaton" / "heaton_satellite.npz")
    truth, test = file["true_temp"].astype(float), file["test_mask"]
    at = hg.Points(np.argwhere(test).astype(float))
    gp, learning = timed(lambda: gp.learn(data, polish=False, progress=False))
    out: dict[str, Any] = {"observations": len(data), "held out": int(test.sum()), "learn": learning}
    for way in WAYS:
        post, conditioning = timed(lambda w=way: gp.condition(data, hyperparameters=w, progress=False))
        found, predicting = timed(lambda p=post: p.predict(at, progress=False))
        scores = gaussian_scores(truth[test], found.mean, np.sqrt(found.std**2 + gp.noise**2))
        out[way] = {"condition": conditioning, "predict": predicting, "held out": scores}
        if way == "average":
            out[way]["how"] = post.diagnostics.get("hyperparameters")
        else:
            left, seconds = timed(post.leave_out)
            out["leave-one-out"] = {"seconds": seconds, **left.scores(), "std_error": left.std_error}
    return out


def of_wind(folder: pathlib.Path) -> dict[str, Any]:
    table = pd.read_csv(folder / "verde" / "texas_wind.csv")
    x = plane(*(table[name].to_numpy(float) for name in ("longitude", "latitude")))
    fold = np.random.default_rng(0).permutation(len(x)) % FOLDS
    out: dict[str, Any] = {"observations": len(x), "folds": FOLDS}
    model = hg.GP(hg.Matern32(1.0, (1.0, 1.0)), trend="constant")
    for name in ("east", "north"):
        y = table[f"wind_speed_{name}_knots"].to_numpy(float)
        data = hg.observe(hg.Points(x), y)
        gp, learning = timed(lambda d=data: model.learn(d, progress=False))
        left, seconds = timed(gp.condition(data, progress=False).leave_out)
        pits = {way: np.empty(len(y)) for way in WAYS}
        means = {way: np.empty(len(y)) for way in WAYS}
        spent = dict.fromkeys(WAYS, 0.0)
        for k in range(FOLDS):
            some = hg.observe(hg.Points(x[fold != k]), y[fold != k])
            without = model.learn(some, progress=False)
            for way in WAYS:
                began = time.process_time()
                post = without.condition(some, hyperparameters=way, progress=False)
                found = post.predict(hg.Points(x[fold == k]), noisy=True, progress=False)
                pits[way][fold == k], means[way][fold == k] = found.cdf(y[fold == k]), found.mean
                spent[way] += time.process_time() - began
        out[name] = {
            "learn": learning,
            "learned": gp.learned.shown(),
            "leave-one-out": {"seconds": seconds, **left.scores()},
        }
        for way in WAYS:
            out[name][way] = {
                "coverage_95": float(np.mean(np.abs(pits[way] - 0.5) < 0.475)),
                "coverage_50": float(np.mean(np.abs(pits[way] - 0.5) < 0.25)),
                "rmse": float(np.sqrt(np.mean((means[way] - y) ** 2))),
                "cpu_seconds": spent[way],
            }
    return out


PROBLEMS = {"heaton": of_heaton, "texas_wind": of_wind}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    args = parser.parse_args()
    for name in args.only:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = PROBLEMS[name](args.data)
        found["warnings"] = sorted({str(one.message) for one in told})
        print(name, found, flush=True)
        write_result(f"averaging-{name}", {"machine": facts(), **found})


if __name__ == "__main__":
    main()
