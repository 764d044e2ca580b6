"""A time series on a grid of a million points: irregular samples, long gaps, two time scales."""

import pathlib
import time

import numpy as np

import hipgp as hg
from hipgp import plots
from hipgp.apps import simulate
from hipgp.apps.demos.outcome import Outcome, against_truth, facts

GRID_POINTS = 1_000_000
SPAN = 1000.0  # days


def run(folder: pathlib.Path, seed: int = 0, progress: bool = True) -> Outcome:
    began = time.perf_counter()
    series = simulate.timeseries(seed=seed, span=SPAN)
    data = hg.observe(hg.Points(series.places), series.measured)

    grid = hg.Grid.cover(0.0, SPAN, shape=GRID_POINTS)
    gp = hg.GP(hg.Matern12(lengthscale=30.0) + hg.Matern32(lengthscale=1.0), grid)
    gp = gp.learn(data, start="kernel", progress=progress)
    post = gp.condition(data, progress=progress)
    places = np.linspace(0, SPAN, 20_001)[:, None]
    p = post.predict(hg.Points(places))
    seconds = time.perf_counter() - began

    numbers = against_truth(p.mean, p.std, series.truth(places)) | facts(gp, post, seconds)
    fig, both = plots.stacked(2, height=3.3)
    for ax, (low, high) in zip(both, ((0.0, SPAN), _zoom(series.places[:, 0])), strict=True):
        part = (places[:, 0] >= low) & (places[:, 0] <= high)
        data_part = (series.places[:, 0] >= low) & (series.places[:, 0] <= high)
        thin = slice(None, None, max(1, int(part.sum()) // 4000))
        shown = places[part][thin]
        whole = high - low == SPAN
        plots.profile(
            shown[:, 0], p.mean[part][thin], p.std[part][thin], ax=ax, xlabel="time [days]", ylabel="signal",
            truth=None if whole else series.truth(shown), title="all of it" if whole else "around the longest gap",
            points=None if whole else (series.places[data_part, 0], series.measured[data_part]),
        )  # fmt: skip
    pictures = [
        plots.save(fig, folder / "series.png"),
        plots.save(plots.calibration(p.mean, p.std, series.truth(places)), folder / "calibration.png"),
    ]
    return Outcome("A signal on a million grid points", numbers, pictures)


def _zoom(t: np.ndarray) -> tuple[float, float]:
    """Forty days around the longest gap."""
    widest = int(np.argmax(np.diff(t)))
    middle = float(np.clip((t[widest] + t[widest + 1]) / 2, 20, SPAN - 20))
    return middle - 20, middle + 20
