"""What the peers' scripts share: a clock that stops while scores are taken, and the scores."""

import json
import resource
import sys
import time

import numpy as np


class Clock:
    """Wall seconds and CPU seconds (all threads) while it runs."""

    def __init__(self):
        self.wall = self.cpu = 0.0
        self.trace = []
        self.start()

    def start(self):
        self.began = time.perf_counter(), time.process_time()

    def stop(self):
        self.wall += time.perf_counter() - self.began[0]
        self.cpu += time.process_time() - self.began[1]

    def so_far(self):
        """CPU seconds: a busy machine stretches the other ones."""
        return self.cpu + time.process_time() - self.began[1]

    def score(self, truth, predict):
        """Add to the trace what `predict` gives now, off the clock."""
        self.stop()
        found = scores(truth, *predict())
        self.trace.append((self.wall, self.cpu, found["rmse"], found["nll"]))
        print(self.trace[-1], file=sys.stderr, flush=True)
        self.start()


def scores(truth, mean, std):
    """Scores of predictions of noisy values; `std` includes the noise."""
    from scipy.stats import norm

    error = truth - mean
    u = error / std
    crps = std * (u * (2 * norm.cdf(u) - 1) + 2 * norm.pdf(u) - 1 / np.sqrt(np.pi))
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "nll": float(-np.mean(norm.logpdf(error, scale=std))),
        "crps": float(np.mean(crps)),
        "coverage_95": float(np.mean(np.abs(u) < 1.959964)),
    }


def timed_twice(fit, truth):
    """Scores of what `fit` predicts, with the seconds of its first call and of its second."""
    clocks = []
    for _ in range(2):
        clocks.append(Clock())
        mean, std = fit()
        clocks[-1].stop()
    first, again = clocks
    found = scores(truth, np.asarray(mean), np.asarray(std))
    seconds = {"wall_s": first.wall, "cpu_s": first.cpu, "again_wall_s": again.wall, "again_cpu_s": again.cpu}
    return seconds | {name: found[name] for name in ("rmse", "nll", "coverage_95")}


def write(path, row):
    row = row | {"peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    with open(path, "w") as file:
        json.dump(row, file, default=float)
