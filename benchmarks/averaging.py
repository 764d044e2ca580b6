"""Do intervals hold what they say where the kernel must be learned from 30 values? Averaged over kernels, and with the best one.

    PYTHONPATH=tests python benchmarks/averaging.py [--count 300]

Matern 3/2 in one dimension; variance, lengthscale and noise are drawn from a prior that is flat in their logarithms (its ends are
`WITH_NOISE` of tests/test_averaging.py), and the field at 20 places is held against its intervals. The true kernel is the reference.
"""

import argparse
import time
import warnings

import jax
import numpy as np
from machine import facts, write_result

import hipgp as hg
import test_averaging as problems

LEVELS = (0.5, 0.8, 0.95, 0.99)


def one(seed: int, at: np.ndarray) -> dict[str, np.ndarray]:
    """The probability integral transforms of the field at 20 places."""
    x, y, f = problems.drawn(seed, 30, at)
    truth = np.random.default_rng(seed)  # which draws the parameters first
    variance, length, std = (np.exp(truth.uniform(*np.log(pair))) for pair in problems.WITH_NOISE.values())
    gp, data = problems.learned(x, y, None, problems.WITH_NOISE)
    known = hg.GP(hg.Matern32(variance, length), noise=std)
    posts = {
        "best": gp.condition(data, progress=False),
        "average": gp.condition(data, hyperparameters="average", progress=False),
        "true kernel": known.condition(data, progress=False),
    }
    return {name: post.predict(at, progress=False).cdf(f) for name, post in posts.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=300)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    at = np.random.default_rng(99).uniform(0.0, 1.0, (20, 1))
    began = time.process_time()
    pits = [one(seed, at) for seed in range(args.count)]
    table = {}
    for name in pits[0]:
        away = np.abs(np.array([pit[name] for pit in pits]) - 0.5)
        shares = {level: np.mean(away < level / 2, axis=1) for level in LEVELS}
        table[name] = {
            str(level): {"coverage": float(np.mean(s)), "error": float(np.std(s) / np.sqrt(len(s)))}
            for level, s in shares.items()
        }
        print(name, table[name])
    write_result(
        "averaging",
        {
            "machine": facts(),
            "problems": args.count,
            "observations": 30,
            "cpu_seconds": time.process_time() - began,
            "coverage": table,
        },
    )


if __name__ == "__main__":
    main()
