"""Starlight through a turbulent dust cloud: the density in 3-D from what each star lost on its way to us."""

import pathlib
import time

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

import hipgp as hg
from hipgp import display, plots
from hipgp.apps import simulate
from hipgp.apps.demos.outcome import Outcome, against_truth, facts
from hipgp.model.labels import Labels

SUN = np.zeros(3)
LABELS = Labels.of(3, ("X", "Y", "Z"), "kpc", "dust density", "mag/kpc")
DRAWS = 32
SMOOTHED = 2.0  # pixels of 3 degrees: the sky's variance, of which so few draws are an estimate
LEARN_FROM = 400  # stars are plenty for three numbers, and learning from rays is the dearest part


def run(folder: pathlib.Path, seed: int = 0, progress: bool = True) -> Outcome:
    began = time.perf_counter()
    sky = simulate.dust(stars=3000, seed=seed)
    test = np.arange(len(sky.stars)) % 10 == 0  # every tenth star is held back, to be predicted
    train = np.flatnonzero(~test)
    stars = lambda rows: hg.observe(
        hg.LineIntegrals(SUN, sky.stars[rows]), sky.measured[rows], sky.noise[rows]
    )

    grid = hg.Grid.cover((-1, -1, -0.4), (1, 1, 0.4), shape=(61, 61, 25), margin=0.02)
    gp = hg.GP(hg.Matern32(variance=1.0, lengthscale=(0.2, 0.2, 0.2)), grid, trend="constant")
    gp = gp.learn(stars(train[:LEARN_FROM]), start="kernel", progress=progress)
    post = gp.condition(stars(train), hg.Batch(stencil=4), progress=progress)
    # exact draws of the whole map: every uncertainty below comes from them
    draws = post.sample(DRAWS, key=seed, progress=progress)
    std = display.smoothed(np.sqrt(np.mean((draws - post.mean) ** 2, axis=0)), gp.kernel, grid)
    held = post.predict(hg.LineIntegrals(SUN, sky.stars[test]), std="vecchia")
    seconds = time.perf_counter() - began

    truth = simulate.interpolate(sky.axes, sky.density, grid.coordinates()).reshape(grid.shape)
    numbers = against_truth(post.mean, std, truth)
    extinction = against_truth(held.mean, held.std, sky.extinction[test])
    numbers |= {f"held_out_stars_{k}": v for k, v in extinction.items() if k != "truth_std"}
    numbers |= facts(gp, post, seconds)
    columns = {"truth": truth, "posterior mean": post.mean, "one draw": draws[0], "std": std}
    planes = display.planes_of(grid)
    cut = {name: planes.cut(values, 1 if name == "truth" else 3) for name, values in columns.items()}
    slices = plots.slices(cut, planes.grid, LABELS, where=planes.places, title="Dust around the Sun")
    pictures = [
        plots.save(slices, folder / "slices.png"),
        plots.save(_whole_sky(post, draws, sky), folder / "sky.png"),
        plots.save(_line_of_sight(post, draws, std, sky), folder / "line-of-sight.png"),
        plots.save(_held_out(sky, held, test), folder / "residuals.png"),
        plots.save(
            plots.calibration(post.mean, std, truth, "Is the map as sure as it says?"),
            folder / "calibration.png",
        ),
    ]
    return Outcome("Dust density from starlight", numbers, pictures)


def _held_out(sky: simulate.Dust, held: hg.Prediction, test: np.ndarray) -> plots.Figure:
    """Measured against predicted extinctions of the stars in `test`."""
    expected = np.hypot(held.std, sky.noise[test])
    title = f"Extinction of {int(test.sum())} stars that were held back"
    return plots.residuals(sky.measured[test], held.mean, expected, "extinction [mag]", title)


def _to_the_edge(direction: np.ndarray) -> np.ndarray:
    """Where a ray from the Sun leaves the box."""
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
    post: hg.Posterior, draws: np.ndarray, std: np.ndarray, sky: simulate.Dust
) -> plots.Figure:
    """The density along one line from the Sun, with draws and the truth."""
    end = _to_the_edge(np.array([np.cos(0.6), np.sin(0.6), 0.04]))
    places = np.linspace(0, 1, 1000)[:, None] * end
    index = (places - post.grid.lower) / post.grid.spacing
    along = lambda field: map_coordinates(np.asarray(field, float), index.T, order=3)
    each = np.stack([along(d) for d in draws[:5]])
    return plots.profile(
        np.linalg.norm(places, axis=1), along(post.mean), along(std), samples=each,
        truth=simulate.interpolate(sky.axes, sky.density, places), title="One line of sight (l = 34°, near the plane)",
        xlabel="distance from the Sun [kpc]", ylabel=LABELS.value(),
    )  # fmt: skip
