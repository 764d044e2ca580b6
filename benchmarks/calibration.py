"""Calibration by simulation: small data sets drawn from the prior, for each link and likelihood.

    python benchmarks/calibration.py [--sets 200] [--only NAME ...] [--corrected 64]

The field at four held-out places, and the next observation at each of them: the probability integral transforms at one place are
uniform (chi-square in ten classes), and 95% intervals hold 95% at all four. Of counts a transform is drawn between those of two
counts. `--corrected` draws from the true posterior.
"""

import argparse
import time

import numpy as np
import scipy.stats as st
from machine import facts, write_result

import hipgp as hg

GRID = hg.Grid.cover(0.0, 1.0, shape=24)
KERNEL = hg.Matern52(1.0, 0.35)
X, AT = np.linspace(0.02, 0.98, 14), np.array([0.4, 0.06, 0.65, 0.91])
FINE = np.linspace(0.0, 1.0, 401)  # of the lines' midpoint sums
STARTS = np.linspace(0.0, 0.85, 14)
LENGTH = 0.15
CLASSES = 10
share = lambda f: 1 / (1 + np.exp(-f))
soft = lambda f: np.logaddexp(0, f)


def root(places: np.ndarray) -> np.ndarray:
    gram = np.asarray(KERNEL(places[:, None], places[:, None]), float)
    value, vector = np.linalg.eigh(gram)
    return vector * np.sqrt(np.maximum(value, 0.0))


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
    rng = np.random.default_rng(0)
    method = hg.Linearised(hg.Batch() if corrected else hg.Exact(), corrected=corrected)
    gp, began = hg.GP(KERNEL, GRID, link=link), time.process_time()
    chol, field, new = root(np.concatenate([X, AT])), [], []
    for number in range(sets):
        f = chol @ rng.standard_normal(len(X) + len(AT))
        y = draw(rng, f)
        data = hg.observe(hg.Points(X), y[: len(X)], noise, likelihood)
        post = gp.condition(data, method, progress=False)
        field.append(field_pit(post.predict(hg.Points(AT)), f[len(X) :]))
        noisy = post.predict(hg.Points(AT), noisy=True)
        y = y[len(X) :]
        if hasattr(noisy, "pit"):
            new.append(noisy.pit(y, key=number))
        elif link is None:
            new.append(st.norm.cdf((y - noisy.mean) / noisy.std))
        else:
            new.append(noisy.cdf(y))
    censored = np.array([]) if name == "censored" else np.array(new)
    return summary(np.array(field), censored) | {"cpu_seconds": time.process_time() - began}


def lines(sets: int, corrected: int) -> dict:
    """Integrals of exp(f) over lines that overlap, with Gaussian noise."""
    rng, chol = np.random.default_rng(0), root(np.concatenate([FINE, AT]))
    weights = [(start <= FINE) & (start + LENGTH >= FINE) for start in STARTS]
    weights = np.array([w * LENGTH / w.sum() for w in weights])
    method = hg.Linearised(hg.Batch() if corrected else hg.Exact(), corrected=corrected)
    gp, began, field = hg.GP(KERNEL, GRID, link="exp"), time.process_time(), []
    for _ in range(sets):
        f = chol @ rng.standard_normal(len(FINE) + len(AT))
        y = weights @ np.exp(f[: len(FINE)]) + 0.02 * rng.standard_normal(len(STARTS))
        functional = hg.LineIntegrals(STARTS[:, None], STARTS[:, None] + LENGTH)
        post = gp.condition(hg.observe(functional, y, 0.02), method, progress=False)
        field.append(field_pit(post.predict(hg.Points(AT)), f[len(FINE) :]))
    return summary(np.array(field), np.array([])) | {"cpu_seconds": time.process_time() - began}


def field_pit(found: hg.Prediction, f: np.ndarray) -> np.ndarray:
    mean, std = getattr(found, "zeta_mean", found.mean), getattr(found, "zeta_std", found.std)
    return st.norm.cdf((f - mean) / std)


def summary(field: np.ndarray, new: np.ndarray) -> dict:
    """Of the transforms of the field, and of new observations; those of data with limits do not exist."""
    out = {}
    for label, pit in (("field", field), ("new", new)):
        if pit.size:
            counts = np.histogram(pit[:, 0], bins=CLASSES, range=(0, 1))[0]
            out[label] = {
                "coverage_95": float(np.mean(np.abs(pit - 0.5) <= 0.475)),
                "uniform_p": float(st.chisquare(counts).pvalue),
                "counts": counts.tolist(),
            }
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=[*CASES, "lines"], default=[*CASES, "lines"])
    parser.add_argument("--corrected", type=int, default=0)
    args = parser.parse_args()
    result = {}
    for name in args.only:
        of_lines = name == "lines"
        result[name] = (
            lines(args.sets, args.corrected) if of_lines else simulated(name, args.sets, args.corrected)
        )
        print(name, result[name], flush=True)
    name = "calibration" + "-corrected" * bool(args.corrected)
    write_result(name, {"sets": args.sets, "cases": result, "machine": facts()})


if __name__ == "__main__":
    main()
