"""Tomography: a slice from what parallel beams lose on their way through it."""

import pathlib
import time

import numpy as np
from scipy.ndimage import uniform_filter

import hipgp as hg
from hipgp import display, plots
from hipgp.apps import simulate
from hipgp.apps.demos.outcome import Outcome, against_truth, facts
from hipgp.model.labels import Labels

LABELS = Labels.of(2, ("x", "y"), "cm", "attenuation", "1/cm")
DRAWS, DIRECTIONS, NOISE = 16, 36, 0.02


def run(folder: pathlib.Path, seed: int = 0, progress: bool = True) -> Outcome:
    began = time.perf_counter()
    beams = simulate.phantom(DIRECTIONS, noise=NOISE, seed=seed)
    data = hg.observe(hg.LineIntegrals(beams.start, beams.end), beams.measured, noise=NOISE)

    grid = hg.Grid.cover((-1, -1), (1, 1), shape=(72, 72), margin=0.03)
    # A sharp-edged slice is no Gaussian process: a rough kernel with a short lengthscale serves, and is given here.
    gp = hg.GP(hg.Matern32(variance=0.15, lengthscale=0.15), grid)
    # Beams cross each other everywhere, so that none is predicted by its neighbours: the plain preconditioner is best.
    post = gp.condition(data, method=hg.Batch(neighbours=0), progress=progress)
    draws = post.sample(DRAWS, key=seed, progress=progress)
    std = np.sqrt(uniform_filter(np.mean((draws - post.mean) ** 2, axis=0), 3))
    seconds = time.perf_counter() - began

    truth = beams.truth(grid.coordinates()).reshape(grid.shape)
    inside = np.linalg.norm(grid.coordinates(), axis=1).reshape(grid.shape) < 0.9
    numbers = against_truth(post.mean[inside], std[inside], truth[inside]) | facts(gp, post, seconds)
    fine = display.refined(grid)
    shown = lambda values: display.interpolated(values, grid, fine, 3)
    panels = {
        "truth": beams.truth(fine.coordinates()).reshape(fine.shape),
        "posterior mean": shown(post.mean),
        "one draw": shown(draws[0]),
        "std": shown(display.smoothed(std, gp.kernel, grid)),
    }
    title = f"{len(beams.measured):,} beams from {DIRECTIONS} directions"
    pictures = [
        plots.save(plots.maps(panels, fine, LABELS, title=title), folder / "maps.png"),
        plots.save(
            plots.calibration(post.mean[inside], std[inside], truth[inside]), folder / "calibration.png"
        ),
    ]
    return Outcome("A slice from parallel beams", numbers, pictures)
