"""Starlight through a turbulent dust cloud: the density in 3-D, which is positive, from what each star lost on its way to us."""

import pathlib
import time
import warnings
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.stats import norm

import hipgp as hg
from hipgp import display, plots
from hipgp.apps import simulate
from hipgp.apps.demos.outcome import Z95, Outcome, against_truth, facts
from hipgp.model.labels import Labels

SUN = np.zeros(3)
STARS, SHAPE = 1200, (35, 35, 14)
LABELS = Labels.of(3, ("X", "Y", "Z"), "kpc", "dust density", "mag/kpc")
DRAWS = 64
SMOOTHED = 2.0  # pixels of 3 degrees: the sky's variance, of which so few draws are an estimate
WITHIN = 0.95


def run(folder: pathlib.Path, seed: int = 0, progress: bool = True) -> Outcome:
    began = time.perf_counter()
    sky = simulate.dust(stars=STARS, seed=seed)
    test = np.arange(len(sky.stars)) % 10 == 0  # every tenth star is held back, to be predicted
    data = hg.observe(hg.LineIntegrals(SUN, sky.stars[~test]), sky.measured[~test], sky.noise[~test])

    grid = hg.Grid.cover((-1, -1, -0.4), (1, 1, 0.4), shape=SHAPE, margin=0.02)
    gp = hg.GP(hg.Matern32(variance=1.0, lengthscale=0.15), grid, trend="constant", link="exp")
    gp = gp.learn(data, start="kernel", progress=progress)
    post = gp.condition(data, progress=progress)
    draws = post.sample(DRAWS, key=seed, progress=progress)
    band = post.interval(WITHIN)
    lines = hg.LineIntegrals(SUN, sky.stars[test])
    held, new = post.predict(lines), post.predict(lines, noisy=True, noise=sky.noise[test])
    seconds = time.perf_counter() - began

    truth = simulate.interpolate(sky.axes, sky.density, grid.coordinates()).reshape(grid.shape)
    numbers = _against_truth(post.mean, band, truth)
    extinction = _against_truth(held.mean, new.interval(WITHIN), sky.extinction[test], sky.measured[test])
    numbers |= {f"held_out_stars_{k}": v for k, v in extinction.items() if k != "truth_std"}
    level = float(np.mean(data.y / np.linalg.norm(sky.stars[~test], axis=1)))  # mag / kpc
    numbers |= {"least_density": float(np.min(band[0]))} | _without_link(gp, data, level, truth)
    numbers |= facts(gp, post, seconds)
    columns = {"truth": truth, "posterior mean": post.mean, "one draw": draws[0], "std": _std(post, draws)}
    planes = display.planes_of(grid)
    cut = {name: planes.cut(values, 1 if name == "truth" else 3) for name, values in columns.items()}
    slices = plots.slices(cut, planes.grid, LABELS, where=planes.places, title="Dust around the Sun")
    pit = norm.cdf(_scores(band, truth))
    pictures = [
        plots.save(slices, folder / "slices.png"),
        plots.save(_whole_sky(post, draws[:32], sky), folder / "sky.png"),
        plots.save(_line_of_sight(post, draws, band, sky), folder / "line-of-sight.png"),
        plots.save(_held_out(sky, new, test), folder / "residuals.png"),
        plots.save(
            plots.calibration_of(pit.ravel(), "Is the map as sure as it says?"), folder / "calibration.png"
        ),
    ]
    return Outcome("Dust density from starlight", numbers, pictures)


def _against_truth(mean: np.ndarray, band: tuple, truth: np.ndarray, target: Any = None) -> dict[str, float]:
    """The error of the mean, and the share of intervals that contain what was to be predicted, `target` or the truth."""
    target = truth if target is None else target
    within = target >= band[0], target <= band[1]
    numbers = against_truth(mean, np.ones_like(mean), truth)
    return numbers | {"coverage95_percent": float(100 * np.mean(within[0] & within[1]))}


def _scores(band: tuple[np.ndarray, np.ndarray], truth: np.ndarray) -> np.ndarray:
    """The standard scores of the truth's logarithm, which is normal in the posterior."""
    lower, upper = np.log(band[0]), np.log(band[1])
    return (np.log(truth) - 0.5 * (lower + upper)) / ((upper - lower) / (2 * Z95))


def _std(post: hg.Posterior, draws: np.ndarray) -> np.ndarray:
    return display.smoothed(np.sqrt(np.mean((draws - post.mean) ** 2, axis=0)), post.kernel, post.grid)


def _without_link(gp: hg.GP, data: hg.Data, level: float, truth: np.ndarray) -> dict[str, float]:
    """The result of a Gaussian process with the mean and the variance of this density, from the same stars."""
    assert gp.learned is not None
    variance, lengthscale = gp.learned.values
    kernel = hg.Matern32(level**2 * np.expm1(variance), lengthscale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hg.GridTooCoarse)  # its grid is that of the map beside it
        post = hg.GP(kernel, gp.grid, trend="constant").condition(data, progress=False)
    below = float(100 * np.mean(post.mean < 0))
    error = against_truth(post.mean, np.ones_like(truth), truth)["error_rms"]
    return {"without_link_below_zero_percent": below, "without_link_error_rms": error}


def _held_out(sky: simulate.Dust, new: hg.Prediction, test: np.ndarray) -> plots.Figure:
    """Measured against predicted extinctions of the stars in `test`."""
    title = f"Extinction of {int(test.sum())} stars that were held back"
    return plots.residuals(sky.measured[test], new.mean, new.std, "extinction [mag]", title)


def _to_the_edge(direction: np.ndarray) -> np.ndarray:
    """The place where a ray from the Sun leaves the box."""
    reach = np.min(np.array([1.0, 1.0, 0.4]) / np.maximum(np.abs(direction), 1e-9), axis=-1)
    return direction * reach[..., None]


def _whole_sky(post: hg.Posterior, draws: np.ndarray, sky: simulate.Dust) -> plots.Figure:
    """The extinction from the Sun to the edge of the box in every direction: truth, mean and std."""
    longitude, latitude = np.linspace(-180, 180, 121), np.linspace(-90, 90, 61)
    lon, lat = np.meshgrid(np.deg2rad(longitude), np.deg2rad(latitude), indexing="ij")
    direction = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)
    ends = _to_the_edge(direction).reshape(-1, 3)

    def extinction(axes: tuple[np.ndarray, ...], density: np.ndarray) -> np.ndarray:
        along = lambda x: simulate.interpolate(axes, density, x)
        return simulate.line_integral(along, np.zeros_like(ends), ends, 60).reshape(lon.shape)

    panels = {
        "truth": extinction(sky.axes, sky.density),
        "posterior mean": extinction(post.grid.axes, post.mean),
    }
    variance = np.var([extinction(post.grid.axes, d) for d in draws], axis=0, ddof=1)
    panels["std"] = np.sqrt(gaussian_filter(variance, SMOOTHED, mode="nearest"))
    return plots.sky(
        longitude, latitude, panels, "extinction to the edge [mag]", "The sky, as seen from the Sun"
    )


def _line_of_sight(
    post: hg.Posterior, draws: np.ndarray, band: tuple[np.ndarray, np.ndarray], sky: simulate.Dust
) -> plots.Figure:
    """The density along one line from the Sun, with draws and the truth."""
    end = _to_the_edge(np.array([np.cos(0.6), np.sin(0.6), 0.04]))
    places = np.linspace(0, 1, 1000)[:, None] * end
    index = (places - post.grid.lower) / post.grid.spacing
    along = lambda field: np.exp(map_coordinates(np.log(np.asarray(field, float)), index.T, order=3))
    each = np.stack([along(d) for d in draws[:5]])
    return plots.profile(
        np.linalg.norm(places, axis=1), along(post.mean), along(post.mean), band=(along(band[0]), along(band[1])), samples=each,
        truth=simulate.interpolate(sky.axes, sky.density, places), title="One line of sight (l = 34°, near the plane)",
        xlabel="distance from the Sun [kpc]", ylabel=LABELS.value(),
    )  # fmt: skip
