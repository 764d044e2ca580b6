"""Real extinctions of open clusters, with errors of their distances: Gaussian, positive, and positive with uncertain places.

    python benchmarks/dust_clusters.py --data DIR [--count 1200] [--shape 40 40 14]

Clusters of good quality within 2 kpc of the Sun and 0.4 kpc of the plane (Hunt and Reffert 2023), `--count` of them at random, a fifth held
out. Matern 3/2, level and noise are learned; half of the interval from dist16 to dist84 is the error of a distance. Scores of the
held-out extinctions, noise included; with uncertain places their density is a mean over PLACES possible ones of each cluster.
"""

import argparse
import gzip
import pathlib
import time

import numpy as np
import pandas as pd
from machine import facts, write_result
from scipy.special import logsumexp
from scipy.stats import norm

import hipgp as hg

PLACES = 5
WAYS = ("gaussian", "positive", "positive, uncertain places")


def clusters(folder: pathlib.Path, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places in kpc, errors of their distances, and extinctions in magnitudes."""
    with gzip.open(folder / "dust_clusters_hunt2023" / "hunt2023_clusters.csv.gz") as file:
        table = pd.read_csv(file)
    x = table[["x_pc", "y_pc", "z_pc"]].to_numpy(float) / 1000
    near = (np.abs(x[:, :2]).max(axis=1) < 2) & (np.abs(x[:, 2]) < 0.4) & (table["CMDCl50"].to_numpy() > 0.5)
    some = np.random.default_rng(0).permutation(np.flatnonzero(near))[:count]
    error = (table["dist84"] - table["dist16"]).to_numpy(float)[some] / 2000
    return x[some], error, table["AV50"].to_numpy(float)[some]


def run(way: str, x: np.ndarray, error: np.ndarray, y: np.ndarray, held: np.ndarray, grid: hg.Grid) -> dict:
    uncertain = way == WAYS[2]
    far = np.linalg.norm(x, axis=1)
    rays = lambda rows, z=0.0: hg.LineIntegrals(np.zeros(3), x[rows] * (1 + z * error / far)[rows, None])
    observed = rays(~held)
    if uncertain:
        observed = hg.LineIntegrals(np.zeros(3), x[~held], end_std=error[~held])
    link = None if way == WAYS[0] else "exp"
    gp, began = hg.GP(hg.Matern32(1.0, 0.2), grid, trend="constant", link=link), clock()
    data = hg.observe(observed, y[~held])
    gp = gp.learn(data, progress=False)
    learned = clock()
    post = gp.condition(data, progress=False)
    z, share = np.polynomial.hermite_e.hermegauss(PLACES) if uncertain else (np.zeros(1), np.ones(1))
    all_found = [post.predict(rays(held, one), noisy=True, progress=False) for one in z]
    found, done = all_found[len(z) // 2], clock()
    share = share[:, None] / np.sum(share)
    log_density = logsumexp([log_densities(one, y[held]) for one in all_found], axis=0, b=share)
    pit = np.sum(share * [one.cdf(y[held]) for one in all_found], axis=0)
    return {
        "log_score": float(np.mean(log_density)),
        "rmse": float(np.sqrt(np.mean((found.mean - y[held]) ** 2))),
        "coverage_95": float(np.mean(np.abs(pit - 0.5) < 0.475)),
        "parameters": gp.learned.shown(),
        "noise": gp.noise,
        "below zero": float(np.mean(np.asarray(post.mean) < 0)),
        "seconds": {"learn": learned - began, "condition and predict": done - learned},
        "trace": [step for step in gp.learned.trace][-1:],
    }


def log_densities(found: hg.Prediction, y: np.ndarray) -> np.ndarray:
    """Of new values, under a prediction that has their noise."""
    if hasattr(found, "log_density"):
        return found.log_density(y)
    return norm.logpdf(y, found.mean, found.std)


def clock() -> np.ndarray:
    """Wall time and CPU time, in seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--count", type=int, default=1200)
    parser.add_argument("--shape", type=int, nargs=3, default=(40, 40, 14))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    args = parser.parse_args()
    x, error, y = clusters(args.data, args.count)
    held = np.arange(len(y)) % 5 == 0
    grid = hg.Grid.cover((-2, -2, -0.4), (2, 2, 0.4), shape=args.shape, margin=0.25)
    result: dict = {"clusters": int(np.sum(~held)), "held out": int(np.sum(held)), "grid": args.shape}
    for way in args.ways:
        result[way] = run(way, x, error, y, held, grid)
        print(way, result[way], flush=True)
        write_result("dust_clusters", {"machine": facts(), **result})


if __name__ == "__main__":
    main()
