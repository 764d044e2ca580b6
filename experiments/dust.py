"""What the dust experiments have in common: stars around the Sun, the systems, and how they are scored."""

import time
import warnings
from typing import Any, NamedTuple

import numpy as np

import hipgp as hg
from hipgp.apps.simulate import interpolate
from hipgp.files.labels import Labels

from . import baselines, systems
from .outcome import NOT_POSSIBLE, NOT_RUN, on_gpu, scores

SUN = np.zeros(3)
BLOCK = (2, 2, 2)
LABELS = Labels.of(3, ("X", "Y", "Z"), "kpc", "dust density", "")
ON_TWO_CORES = 3e6  # stars x grid points that exact weights take in minutes without a GPU
MOST_EXACT = 50_000  # stars with a solve for each one's weights
SAMPLES = 32
EPOCHS = {
    "best": 10, "natural gradients": 40, "natural gradients, kernel learned": 4, "dual ascent": 10
}  # fmt: skip


class Stars(NamedTuple):
    """Measured extinctions with their errors; true ones of stars held out; true densities at some places."""

    ends: np.ndarray
    measured: np.ndarray
    noise: np.ndarray
    held_out: np.ndarray
    truth: np.ndarray
    places: np.ndarray
    density: np.ndarray
    to_scale: bool  # whether the densities are in the unit of the extinctions per length

    @property
    def data(self) -> Any:
        return hg.observe(hg.LineIntegrals(SUN, self.ends), self.measured, self.noise)


def learned(kernel: Any, grid: hg.Grid, stars: Stars, count: int, progress: bool, hold: bool = False) -> Any:
    """The kernel from the first `count` stars: plenty for a few numbers, and learning from rays is dear.

    With `hold` the lengthscale stays as it is, and only the variance is learned.
    """
    few = hg.observe(hg.LineIntegrals(SUN, stars.ends[:count]), stars.measured[:count], stars.noise[:count])
    polish = None if count >= 1000 else False  # in small: compiling it takes longer than all else
    if not hold:
        return hg.GP(kernel, grid).learn(few, polish=polish, progress=progress).kernel
    length = float(kernel.lengthscale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the lengthscale ends at a bound, as it must
        bounds = {"lengthscale": (length, 1.001 * length)}
        gp = hg.GP(kernel, grid)
        return gp.learn(few, start="kernel", bounds=bounds, polish=polish, progress=progress).kernel


def fitted(
    system: str, kernel: Any, grid: hg.Grid, stars: Stars, fit: systems.Fit = "best"
) -> tuple[dict[str, Any], hg.Posterior | None]:
    """Scores and seconds with the posterior, or why there are none."""
    if not systems.fits_memory(system, grid):
        return nothing(NOT_POSSIBLE), None
    if system != "batch engine" and len(stars.ends) * grid.size > ON_TWO_CORES and not on_gpu():
        return nothing(NOT_RUN), None
    began = time.perf_counter()
    post = hg.GP(kernel, grid).condition(stars.data, method_of(system, len(stars.ends), fit), progress=False)
    seconds = time.perf_counter() - began
    drawn: Any = {"samples": SAMPLES} if system == "batch engine" else {}
    mean, std, _ = post.predict(hg.LineIntegrals(SUN, stars.held_out), **drawn)
    latent = interpolate(grid.axes, post.mean, stars.places)
    told = {"fitted_by": systems.fitted_by(post), **scored(stars, mean, std, latent), "fit_seconds": seconds}
    return told | {"nats_short_in_the_mean": post.diagnostics.get("mean_gap_nats", "")}, post


def method_of(system: str, count: int, fit: systems.Fit = "best") -> Any:
    """The paper's settings: blocks of 2 x 2 x 2, PCG limited to 200 and 500 iterations; of very many stars, local weights.

    In closed form, unless another fit is asked for.
    """
    if system == "batch engine":
        return hg.Batch()
    how: dict[str, Any] = {"direct": True} if fit == "best" else {}
    return systems.variational(
        system, fit, family="block", block_shape=BLOCK, batch_size=100 if count < 2000 else 1000, epochs=EPOCHS[fit],
        weights="exact" if count <= MOST_EXACT else "local", stencil=2, max_iterations=200,
        predict_max_iterations=500, **how,
    )  # fmt: skip


def dense(name: str, kernel: Any, stars: Stars, inducing: int) -> dict[str, Any]:
    """The exact GP, or SGPR with random inducing points in the box that the stars fill."""
    theirs = baselines.Kernel("matern32", float(kernel.variance), float(kernel.lengthscale))
    targets = [baselines.line_integrals(SUN, stars.held_out), baselines.points(stars.places)]
    given = [baselines.line_integrals(SUN, stars.ends)], stars.measured, stars.noise, targets
    began = time.perf_counter()
    if name == "exact GP":
        mean, std = baselines.exact_gp(theirs, *given)
    else:
        low, high = stars.ends.min(0), stars.ends.max(0)
        where = np.random.default_rng(1).uniform(low, high, (inducing, 3))
        mean, std = baselines.sgpr(theirs, where, *given)
    count = len(stars.held_out)
    row = scored(stars, mean[:count], std[:count], mean[count:])
    return row | {"fit_seconds": time.perf_counter() - began}


def scored(stars: Stars, mean: np.ndarray, std: np.ndarray, latent: np.ndarray) -> dict[str, Any]:
    found = scores(stars.truth, mean, std)
    keep = {k: found[k] for k in ("MAE", "MSE", "log_likelihood", "coverage_of_95%")}
    off = float(np.sqrt(np.mean((latent - stars.density) ** 2))) if stars.to_scale else ""
    return keep | {
        "density_RMSE": off,
        "density_correlation": float(np.corrcoef(latent, stars.density)[0, 1]),
    }


def nothing(why: str) -> dict[str, Any]:
    names = (
        "fitted_by",
        "MAE",
        "MSE",
        "log_likelihood",
        "coverage_of_95%",
        "density_RMSE",
        "density_correlation",
        "fit_seconds",
    )
    return dict.fromkeys(names, why) | {"fitted_by": ""}


def shape_of(grid: hg.Grid) -> str:
    return " x ".join(str(n) for n in grid.shape)
