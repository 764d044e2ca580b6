"""A map of the dust around the Sun from real extinctions of star clusters (section 5.5, on real data).

Hunt & Reffert 2023: A_V from the colours of clusters, distances from Gaia. Errors of A_V are a network's, and too small
for many: residuals are heavy-tailed, and a Gaussian model cannot say so. What it can do is done here: the noise of each
cluster is that of the catalogue plus a floor, and is widened for those that fit badly, as a Student-t likelihood of four
degrees of freedom would (its EM algorithm: noise^2 -> noise^2 (nu + r^2) / (nu + 1), r the residual in units of the noise).
Distances are taken as exact. Held-out clusters are scored by both models, with the catalogue's errors and the floor.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm, t

import hipgp as hg
from hipgp import plots

from . import dust
from .outcome import Result

DEGREES = 4.0
FLOOR = 0.15  # mag: errors of the catalogue below it are not believed
LEAST_QUALITY = 0.5  # of CMDCl50, as the catalogue advises


class Setting(NamedTuple):
    half: tuple[float, float, float]  # kpc
    shape: tuple[int, int, int]
    clusters: int | None  # at most so many are used; None: all
    learn_from: int
    rounds: int


SETTINGS = {
    "small": Setting((1.0, 1.0, 0.3), (20, 20, 6), 500, 200, 2),
    "paper": Setting((2.0, 2.0, 0.4), (81, 81, 17), None, 800, 5),
}


class Clusters(NamedTuple):
    ends: np.ndarray
    extinction: np.ndarray  # A_V, mag
    error: np.ndarray

    def rows(self, some: np.ndarray) -> "Clusters":
        return Clusters(self.ends[some], self.extinction[some], self.error[some])


def run(size: str, data: Path | None, folder: Path, progress: bool) -> Result:
    assert data is not None
    setting = SETTINGS[size]
    clusters = load(data / "dust_clusters_hunt2023" / "hunt2023_clusters.csv.gz", setting)
    test = np.arange(len(clusters.error)) % 10 == 0
    seen, held_out = clusters.rows(~test), clusters.rows(test)
    grid = hg.Grid.cover(-np.array(setting.half), setting.half, shape=setting.shape)
    few = np.arange(min(setting.learn_from, len(seen.error)))
    kernel = hg.Matern32(1.0, (0.3, 0.3, 0.1))
    gp = hg.GP(kernel, grid, trend="constant").learn(
        observe(seen.rows(few), seen.error[few]), progress=progress
    )
    result = Result("Interstellar dust: real clusters")
    table = result.table(f"{test.sum():,} clusters held out, {(~test).sum():,} seen", progress)
    plain, seconds = condition(gp, seen, seen.error)
    table.add(noise="Gaussian", **judged(plain, held_out, "gaussian"), fit_seconds=seconds)
    noise = seen.error
    robust = plain
    for _ in range(setting.rounds):
        noise = widened(robust, seen)
        robust, more = condition(gp, seen, noise)
        seconds += more
    table.add(noise="Student-t by EM", **judged(robust, held_out, "student"), fit_seconds=seconds)
    facts = result.table("What the widened errors say", progress)
    ratio = noise / seen.error
    facts.add(clusters_widened_twofold=float(np.mean(ratio > 2)), largest_widening=float(ratio.max()))
    scored = ", ".join(f"{r['noise']} {r['log_likelihood']:.2f}" for r in table.rows)
    result.conclude("real clusters", "not in the paper", f"log-likelihood: {scored}", "nothing to compare")
    density_std = np.std(robust.sample(dust.SAMPLES, key=0), axis=0, ddof=1)
    labels = dust.LABELS._replace(unit="mag/kpc")
    figure = plots.slices(
        {"posterior mean": robust.mean, "std": density_std}, grid, labels,
        title="Dust around the Sun, A_V per kpc, from star clusters",
    )  # fmt: skip
    result.draw(figure, folder / "dust-clusters-map.png")
    result.draw(picture(plain, robust, held_out), folder / "dust-clusters-residuals.png")
    return result


def load(path: Path, setting: Setting) -> Clusters:
    table = pd.read_csv(path)
    ends = table[["x_pc", "y_pc", "z_pc"]].to_numpy(float) / 1000
    inside = np.all(np.abs(ends) < setting.half, axis=1) & (table["CMDCl50"].to_numpy() > LEAST_QUALITY)
    error = np.hypot(FLOOR, (table["AV84"] - table["AV16"]).to_numpy(float) / 2)
    every = Clusters(ends, table["AV50"].to_numpy(float), error).rows(np.flatnonzero(inside))
    order = np.random.default_rng(0).permutation(len(every.error))
    return every.rows(order[: setting.clusters])


def observe(clusters: Clusters, noise: np.ndarray) -> Any:
    return hg.observe(hg.LineIntegrals(dust.SUN, clusters.ends), clusters.extinction, noise)


def condition(gp: hg.GP, clusters: Clusters, noise: np.ndarray) -> tuple[hg.Posterior, float]:
    began = time.perf_counter()
    post = hg.GP(gp.kernel, gp.grid, trend=gp.trend).condition(observe(clusters, noise), progress=False)
    return post, time.perf_counter() - began


def predicted(post: hg.Posterior, clusters: Clusters) -> tuple[np.ndarray, np.ndarray]:
    found = post.predict(hg.LineIntegrals(dust.SUN, clusters.ends), samples=dust.SAMPLES)
    return found.mean, found.std


def widened(post: hg.Posterior, clusters: Clusters) -> np.ndarray:
    """The noise that a Student-t likelihood amounts to, given what the map says of each cluster."""
    mean, std = predicted(post, clusters)
    square = ((clusters.extinction - mean) ** 2 + std**2) / clusters.error**2
    return clusters.error * np.sqrt((DEGREES + square) / (DEGREES + 1))


def judged(post: hg.Posterior, clusters: Clusters, likelihood: str) -> dict[str, float]:
    """Errors, log-likelihood and coverage on clusters that were held out.

    The Student-t predictive is taken as one Student-t of the whole spread; exactly it is a convolution.
    """
    mean, std = predicted(post, clusters)
    off, spread = clusters.extinction - mean, np.hypot(std, clusters.error)
    law = norm(scale=spread) if likelihood == "gaussian" else t(DEGREES, scale=spread)
    return {
        "MAE": float(np.mean(np.abs(off))),
        "RMSE": float(np.sqrt(np.mean(off**2))),
        "median_error": float(np.median(np.abs(off))),
        "log_likelihood": float(np.mean(law.logpdf(off))),
        "coverage_of_95%": float(np.mean(np.abs(off) < law.ppf(0.975))),
    }


@plots.styled
def picture(plain: hg.Posterior, robust: hg.Posterior, clusters: Clusters) -> plots.Figure:
    """Residuals of held-out clusters in units of their expected size: the tails are plain to see."""
    fig = plots.figure(8.6, 3.6)
    for ax, (name, post) in zip(
        fig.subplots(1, 2, sharey=True), (("Gaussian", plain), ("Student-t", robust)), strict=True
    ):
        mean, std = predicted(post, clusters)
        pull = (clusters.extinction - mean) / np.hypot(std, clusters.error)
        ax.hist(np.clip(pull, -8, 8), bins=48, range=(-8, 8), density=True, color=plots.SECOND, alpha=0.75)
        x = np.linspace(-8, 8, 300)
        law = norm() if name == "Gaussian" else t(DEGREES)
        ax.plot(x, law.pdf(x), color=plots.ACCENT, lw=1.4, label="expected")
        ax.set(title=f"{name} noise", xlabel="residual / its expected std")
        ax.legend(fontsize=9)
    fig.axes[0].set_ylabel("density")
    return fig
