"""Dust from the extinctions of 5,000 simulated stars within 0.5 x 0.5 x 0.1 kpc (section 5.5, the authors' sample).

Noise of 0.0025 to 0.0075 is added to the extinctions of 4,000 stars; those of 1,000 are predicted, without noise, and the
density at all 5,000 (at 1,000 in small) is compared with the truth, which comes in another unit: by its correlation. Matern 3/2, one kernel for
all systems: lengthscale 0.1 kpc, as the authors' script has it, with the variance of best likelihood. The last row is the
batch engine as one would use it, with the lengthscale learned too. In small HIP-GP is fitted in every way: in closed form, by
the paper's natural gradients (with the kernel as it is, and learned with q), and by dual ascent.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

import hipgp as hg
from hipgp import plots
from hipgp.apps.simulate import interpolate

from . import dust, systems
from .outcome import Result

HALF = np.array([0.25, 0.25, 0.05])  # kpc
LENGTHSCALE = 0.1


class Setting(NamedTuple):
    stars: int
    held_out: int
    learn_from: int
    grids: tuple[tuple[int, int, int], ...]
    inducing: int
    every_way: bool


SETTINGS = {
    "small": Setting(400, 200, 150, ((8, 8, 3),), 100, True),
    "paper": Setting(4000, 1000, 1000, ((10, 10, 5), (26, 26, 6), (51, 51, 11)), 512, False),
}


def run(size: str, data: Path | None, folder: Path, progress: bool) -> Result:
    assert data is not None
    setting = SETTINGS[size]
    stars = load(data / "dust_hipgp_domain" / "domain_subsample.npz", setting)
    grids = [hg.Grid.cover(-HALF, HALF, shape=shape) for shape in setting.grids]
    start = hg.Matern32(float(np.var(stars.measured)) / LENGTHSCALE**2, LENGTHSCALE)
    kernel = dust.learned(start, grids[-1], stars, setting.learn_from, progress, hold=True)
    result = Result("Interstellar dust: the authors' 5,000 stars")
    table = result.table(f"{len(stars.truth):,} stars held out, {len(stars.ends):,} seen", progress)
    for grid in grids:
        for system in ("HIP-GP", "SVGP", "batch engine"):
            ways = systems.EVERY_WAY if setting.every_way and system == "HIP-GP" else systems.EVERY_WAY[:1]
            for fit in ways:
                row, _ = dust.fitted(system, kernel, grid, stars, dust.Way(fit))
                table.add(system=system, grid=dust.shape_of(grid), M=grid.size, **row)
    for system, m in (("SGPR", setting.inducing), ("exact GP", len(stars.ends))):
        table.add(system=system, grid="", M=m, **dust.dense(system, kernel, stars, setting.inducing))
    batch = [r for r in table.rows if r["system"] == "batch engine"][-1]
    here = f"MAE {batch['MAE']:.2g}, correlation with the density {batch['density_correlation']:.3f}"
    result.conclude("the authors' 5,000 stars", "no table", here, "nothing to compare")
    kernel = dust.learned(hg.Matern32(), grids[-1], stars, setting.learn_from, progress)
    row, best = dust.fitted("batch engine", kernel, grids[-1], stars)
    table.add(
        system="batch engine, lengthscale learned", grid=dust.shape_of(grids[-1]), M=grids[-1].size, **row
    )
    assert best is not None
    figure = plots.slices(
        {"posterior mean": best.mean, "std": std_of(best)}, best.grid, dust.LABELS,
        title="Dust density, batch engine",
    )  # fmt: skip
    result.draw(figure, folder / "dust-domain-map.png")
    result.draw(against_truth(best, stars), folder / "dust-domain-truth.png")
    return result


def load(path: Path, setting: Setting) -> dust.Stars:
    file = np.load(path)
    places = np.stack([file[c] for c in "xyz"], axis=1).astype(float)
    extinction, rng = file["e"].astype(float), np.random.default_rng(0)
    order = rng.permutation(len(places))
    train, test = order[: setting.stars], order[-setting.held_out :]
    noise = rng.uniform(0.0025, 0.0075, len(train))
    measured = extinction[train] + noise * rng.standard_normal(len(train))
    density, some = file["density"].astype(float), slice(0, 5 * setting.held_out)
    known = places[some], density[some]
    return dust.Stars(places[train], measured, noise, places[test], extinction[test], *known, False)


def std_of(post: hg.Posterior) -> np.ndarray:
    """Of draws, which are exact whatever was observed."""
    draws = post.sample(dust.SAMPLES, key=0)
    return np.std(draws, axis=0, ddof=1)


@plots.styled
def against_truth(post: hg.Posterior, stars: dust.Stars) -> plots.Figure:
    fig = plots.figure(4.6, 4.2)
    ax = fig.add_subplot()
    found = interpolate(post.grid.axes, post.mean, stars.places)
    high = float(np.quantile(stars.density, 0.999))
    ax.plot([0, high], [0, high], color="#9aa3af", lw=1)
    ax.plot(stars.density, found, ".", ms=3, color=plots.SECOND, alpha=0.3, mew=0)
    ax.set(xlabel="true density at the star", ylabel="posterior mean", xlim=(0, high), ylim=(None, high))
    return fig
