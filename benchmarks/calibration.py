"""Calibration by simulation: small data sets drawn from the prior, for each link and likelihood.

    python benchmarks/calibration.py [--sets 200] [--only NAME ...] [--corrected 64]

The field at a held-out place and the next observation there: their probability integral transforms should be uniform
(chi-square in ten classes), and 95% intervals hold 95%. `--corrected` draws from the true posterior.
"""

import argparse
import time

import numpy as np
import scipy.stats as st
from machine import facts, write_result

import hipgp as hg

GRID = hg.Grid.cover(0.0, 1.0, shape=24)
KERNEL = hg.Matern52(1.0, 0.35)
X, AT = np.linspace(0.02, 0.98, 14), np.array([0.4])
PLACES = np.concatenate([X, AT])
ROOT = np.linalg.cholesky(np.asarray(KERNEL(PLACES[:, None], PLACES[:, None])) + 1e-10 * np.eye(15))
CLASSES = 10
share = lambda f: 1 / (1 + np.exp(-f))
soft = lambda f: np.logaddexp(0, f)

# Link, likelihood, noise, and y given f.
CASES = {
    "exp, Gaussian": ("exp", None, 0.2, lambda r, f: np.exp(f) + 0.2 * r.standard_normal(len(f))),
    "softplus, Gaussian": ("softplus", None, 0.15, lambda r, f: soft(f) + 0.15 * r.standard_normal(len(f))),
    "Student's t": (None, hg.StudentT(3.0), 0.3, lambda r, f: f + 0.3 * r.standard_t(3.0, len(f))),
    "Poisson": ("exp", hg.Poisson(3.0), None, lambda r, f: r.poisson(3 * np.exp(f)).astype(float)),
    "negative binomial": (
        "exp",
        hg.NegativeBinomial(4.0, 3.0),
        None,
        lambda r, f: r.negative_binomial(4.0, 4 / (4 + 3 * np.exp(f))).astype(float),
    ),
    "binomial": ("logistic", hg.Binomial(5), None, lambda r, f: r.binomial(5, share(f)).astype(float)),
    "Bernoulli": ("logistic", hg.Bernoulli(), None, lambda r, f: r.binomial(1, share(f)).astype(float)),
    "gamma": ("exp", hg.Gamma(4.0), None, lambda r, f: np.exp(f) * r.gamma(4.0, 0.25, len(f))),
    "log-normal": (
        "exp",
        hg.LogNormal(0.3),
        None,
        lambda r, f: np.exp(f + 0.3 * r.standard_normal(len(f))),
    ),
    "beta": ("logistic", hg.Beta(10.0), None, lambda r, f: r.beta(10 * share(f), 10 * (1 - share(f)))),
    "censored": (
        None,
        hg.Censored(lower=-0.5),
        0.3,
        lambda r, f: np.maximum(f + 0.3 * r.standard_normal(len(f)), -0.5),
    ),
}


def simulated(name: str, sets: int, corrected: int) -> dict:
    link, likelihood, noise, draw = CASES[name]
    rng, method = (
        np.random.default_rng(0),
        hg.Linearised(hg.Batch() if corrected else hg.Exact(), corrected=corrected),
    )
    gp, pit = hg.GP(KERNEL, GRID, link=link), []
    began = time.process_time()
    for _ in range(sets):
        f = ROOT @ rng.standard_normal(15)
        data = hg.observe(hg.Points(X), draw(rng, f[:14]), noise, likelihood)
        found = gp.condition(data, method, progress=False).predict(hg.Points(AT))
        mean, std = getattr(found, "zeta_mean", found.mean), getattr(found, "zeta_std", found.std)
        pit.append(st.norm.cdf((f[14:] - mean) / std)[0])
    counts = np.histogram(pit, bins=CLASSES, range=(0, 1))[0]
    inside = np.mean(np.abs(np.array(pit) - 0.5) <= 0.475)
    return {
        "coverage_95": float(inside),
        "uniform_p": float(st.chisquare(counts).pvalue),
        "counts": counts.tolist(),
        "cpu_seconds": time.process_time() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--corrected", type=int, default=0)
    args = parser.parse_args()
    result = {}
    for name in args.only:
        result[name] = simulated(name, args.sets, args.corrected)
        print(name, result[name], flush=True)
    name = "calibration" + "-corrected" * bool(args.corrected)
    write_result(name, {"sets": args.sets, "cases": result, "machine": facts()})


if __name__ == "__main__":
    main()
