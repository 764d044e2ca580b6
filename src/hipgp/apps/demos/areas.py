"""Two kinds of data in one map: averages over the cells of a coarse grid, and a few stations that see single points."""

import pathlib
import time

import numpy as np

import hipgp as hg
from hipgp import display, plots
from hipgp.apps import simulate
from hipgp.apps.demos.outcome import Outcome, against_truth, facts
from hipgp.model.labels import Labels

LABELS = Labels.of(2, ("x", "y"), "km", "field")
DRAWS = 32


def run(folder: pathlib.Path, seed: int = 0, progress: bool = True) -> Outcome:
    began = time.perf_counter()
    areas = simulate.areas(seed=seed)
    cells = hg.observe(hg.BoxAverages(areas.lower, areas.upper), areas.averages, noise=0.02)
    stations = hg.observe(hg.Points(areas.places), areas.values, noise=0.1)

    grid = hg.Grid.cover((0, 0), (1, 1), shape=(72, 72))
    gp = hg.GP(hg.Matern32(variance=1.0, lengthscale=0.2), grid, trend="constant")
    gp = gp.learn(cells + stations, start="kernel", progress=progress)
    fused = gp.condition(cells + stations, progress=progress)
    draws = fused.sample(DRAWS, key=seed, progress=progress)
    std = np.sqrt(np.mean((draws - fused.mean) ** 2, axis=0))
    seconds = time.perf_counter() - began

    truth = areas.truth(grid.coordinates()).reshape(grid.shape)
    coarse = simulate.nearest_cell(areas, grid.coordinates()).reshape(grid.shape)
    numbers = against_truth(fused.mean, std, truth)
    numbers |= {"cells_as_given_error_rms": float(np.sqrt(np.mean((coarse - truth) ** 2)))}
    numbers |= facts(gp, fused, seconds)
    fine = display.refined(grid)
    shown = lambda values: display.interpolated(values, grid, fine, 3)
    panels = {
        "truth": areas.truth(fine.coordinates()).reshape(fine.shape),
        "the cells as given": simulate.nearest_cell(areas, fine.coordinates()).reshape(fine.shape),
        "posterior mean": shown(fused.mean),
        "std": shown(display.smoothed(std, gp.kernel, grid)),
    }
    title = f"{len(areas.averages)} cell averages and {len(areas.places)} stations, fused"
    pictures = [
        plots.save(plots.maps(panels, fine, LABELS, title=title), folder / "maps.png"),
        plots.save(plots.calibration(fused.mean, std, truth), folder / "calibration.png"),
    ]
    return Outcome("Averages and points, fused", numbers, pictures)
