"""A curve from values and slopes (the paper's section 5.3): where there are no values, slopes carry it across."""

import pathlib
import time

import numpy as np

import hipgp as hg
from hipgp import plots
from hipgp.apps import simulate
from hipgp.apps.demos.outcome import Outcome, against_truth, facts


def run(folder: pathlib.Path, seed: int = 0, progress: bool = True) -> Outcome:
    began = time.perf_counter()
    measured = simulate.sinusoidal_network(seed=seed)
    values = hg.observe(hg.Points(measured.x), measured.values, noise=0.05)
    slopes = hg.observe(hg.Derivatives(measured.slope_x), measured.slopes, noise=0.1)

    grid = hg.Grid.cover(-3.0, 3.0, shape=300, margin=0.1)
    gp = hg.GP(hg.SquaredExponential(lengthscale=0.5), grid, trend="constant")
    gp = gp.learn(values + slopes, start="kernel", progress=progress)
    both, alone = gp.condition(values + slopes, progress=progress), gp.condition(values, progress=progress)
    x = np.linspace(-3, 3, 400)
    places, steepness = hg.Points(x), hg.Derivatives(x)
    with_slopes, without, slope = both.predict(places), alone.predict(places), both.predict(steepness)
    seconds = time.perf_counter() - began

    truth = measured.truth(x)
    numbers = against_truth(with_slopes.mean, with_slopes.std, truth)
    numbers |= {"values_only_error_rms": against_truth(without.mean, without.std, truth)["error_rms"]}
    numbers |= facts(gp, both, seconds)
    fig, (upper, middle, lower) = plots.stacked(3, sharex=True)
    curve = {"truth": truth, "xlabel": "", "ylabel": "f(x)", "points": (measured.x, measured.values)}
    plots.profile(x, *without[:2], ax=upper, title="100 values only: the gap is a guess", **curve)
    plots.profile(x, *with_slopes[:2], ax=middle, title="100 values and 20 slopes: the gap is known", **curve)
    plots.profile(
        x, *slope[:2], ax=lower, title="the slope itself", truth=measured.derivative(x), xlabel="x", ylabel="f '(x)",
        points=(measured.slope_x, measured.slopes),
    )  # fmt: skip
    return Outcome("A curve from values and slopes", numbers, [plots.save(fig, folder / "curve.png")])
