"""House prices: points crowded into towns, and a map of what a house costs, with how sure that is."""

import pathlib
import time

import numpy as np

import hipgp as hg
from hipgp import plots
from hipgp.apps import simulate
from hipgp.apps.demos.outcome import Outcome, against_truth, facts
from hipgp.model.labels import Labels

LABELS = Labels.of(2, ("Easting", "Northing"), "100 km", "log price", "")


def run(folder: pathlib.Path, seed: int = 0, progress: bool = True) -> Outcome:
    began = time.perf_counter()
    houses = simulate.prices(seed=seed)
    test = np.arange(len(houses.places)) % 10 == 0
    data = hg.observe(hg.Points(houses.places[~test]), houses.measured[~test])  # noise not known: learned

    grid = hg.Grid.cover((0, 0), (1, 1), shape=(320, 320))
    gp = hg.GP(hg.Matern32() + hg.Matern12(), grid, trend="constant").learn(data, progress=progress)
    post = gp.condition(data, progress=progress)
    std = post.std(progress=progress)
    held = post.predict(hg.Points(houses.places[test]))
    seconds = time.perf_counter() - began

    truth = houses.truth(grid.coordinates()).reshape(grid.shape)
    numbers = against_truth(post.mean, std, truth) | facts(gp, post, seconds)
    panels = {"truth": truth, "posterior mean": post.mean, "std": std}
    expected = np.hypot(held.std, gp.noise or 0.0)
    pictures = [
        plots.save(
            plots.maps(panels, grid, LABELS, points=houses.places[::4], title="House prices"),
            folder / "maps.png",
        ),
        plots.save(
            plots.residuals(
                houses.measured[test], held.mean, expected, "log price", f"{test.sum()} houses held back"
            ),
            folder / "residuals.png",
        ),
        plots.save(plots.calibration(post.mean, std, truth), folder / "calibration.png"),
    ]
    return Outcome("House prices from sales", numbers, pictures)
