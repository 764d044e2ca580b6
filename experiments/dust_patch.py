"""Dust in a patch of 4 x 4 x 2 kpc, the size of the paper's, simulated (section 5.5).

The paper's Ananke stars are not to be had at this size; the density here is a log-normal field with a Kolmogorov-like
spectrum in a disc, which no system's model is drawn from. Stars are spread evenly, extinctions measured to 0.02 mag plus
3 per cent; those held out are predicted, without noise, and the density is compared at random places. Matern 3/2.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hipgp as hg
from hipgp import plots
from hipgp.apps import simulate
from hipgp.model.labels import Labels

from . import dust, systems
from .dust import Way
from .outcome import NOT_RUN, Result, machine, on_gpu, published
from .pieces import Pieces

HALF = np.array([2.0, 2.0, 1.0])  # kpc
PLANE = (80, 80)  # places of a drawn plane; even, so that none is the Sun
LARGEST_RUN = 2e4  # stars that the batch engine takes in minutes without a GPU
PAPER = {  # on 500,000 stars of the Ananke simulation
    (r["system"], r["M"]): (r["MAE"], r["MSE"], r["log_likelihood"]) for r in published("dust-patch")
}


class Row(NamedTuple):
    """A row of the table: a system on a grid, fitted in some way."""

    system: str
    shape: tuple[int, int, int]
    way: Way = dust.BEST
    stars: int | None = None  # seen, where not all of them are


class Setting(NamedTuple):
    stars: tuple[int, ...]
    held_out: int
    learn_from: int
    cells: tuple[int, int, int]  # of the true density
    rows: tuple[Row, ...]


FIGURES = ("figure-5a.png", "figure-5b.png")
FULL, SPARSE = (50, 50, 25), (32, 32, 16)
LEARNED: systems.Fit = "closed form, kernel learned"


DUAL: systems.Fit = "dual ascent"
NATURAL: systems.Fit = "natural gradients"
FALLING: systems.Fit = "natural gradients, falling step"

SETTINGS = {
    "small": Setting(
        (800,),
        200,
        200,
        (60, 60, 30),
        (
            Row("HIP-GP", (12, 12, 6)),
            Row("HIP-GP", (12, 12, 6), Way("natural gradients")),
            Row("HIP-GP", (12, 12, 6), Way(rule="monte-carlo")),
            Row("SVGP", (8, 8, 4)),
            Row("batch engine", (20, 20, 10)),
        ),
    ),
    "paper": Setting(
        (500_000,),
        20_000,
        1000,
        (256, 256, 128),
        (
            # fits that share a pass for the weights stand together
            Row("HIP-GP", FULL, Way("best", "block", "gauss")),
            Row("HIP-GP", FULL, Way(NATURAL, "block", "gauss", 2)),
            Row("HIP-GP", FULL, Way(NATURAL, "mean-field", "gauss", 2)),
            Row("HIP-GP", FULL, Way("best", "block", "monte-carlo")),
            Row("HIP-GP", FULL, Way(FALLING, "block", "monte-carlo", 2)),
            Row("HIP-GP", FULL, Way(DUAL, "block", "monte-carlo", 1)),
            Row("HIP-GP", FULL, Way(LEARNED, "block", "monte-carlo", 2), 3000),
            Row("HIP-GP", FULL, Way(FALLING, "block", "gauss", 2)),
            Row("HIP-GP", FULL, Way(DUAL, "block", "gauss", 1)),
            Row("batch engine", FULL),
            Row("SVGP", SPARSE),
            Row("batch engine", SPARSE),
            Row("batch engine", (128, 128, 64)),
            Row("batch engine", (256, 256, 128)),
        ),
    ),
}


class Patch(NamedTuple):
    axes: tuple[np.ndarray, ...]
    density: np.ndarray  # mag / kpc


def run(size: str, data: Path | None, folder: Path, progress: bool) -> Result:
    """In pieces: what an earlier run of this size has done in this folder is not done again."""
    setting, pieces = SETTINGS[size], Pieces(folder / f"pieces-{size}")
    patch = functools.cache(lambda: simulated(setting.cells))
    result = Result("Interstellar dust: a simulated patch")
    kernel, held = None, dust.HeldWeights()
    for count in setting.stars:
        stars = observed(patch, count, setting.held_out, pieces)
        table = result.table(f"{setting.held_out:,} stars held out, {count:,} seen", progress)
        for row in setting.rows:
            grid = hg.Grid.cover(-HALF, HALF, shape=row.shape)
            kernel = kernel or learned(grid, stars, setting, pieces, progress)
            draw = functools.partial(figures, result, patch, folder)
            some = stars if row.stars is None else stars.few(row.stars)
            make = functools.partial(attempt, row, kernel, grid, some, draw, held)
            way = " ".join(str(w) for w in row.way if w is not None)
            found = pieces.kept(f"{len(some.ends)} {row.system} {dust.shape_of(grid)} {way}", make)
            known = PAPER.get((row.system, grid.size), ("",) * 3) if count == 500_000 else ("",) * 3
            theirs = dict(zip(("paper_MAE", "paper_MSE", "paper_log_likelihood"), known, strict=True))
            seen = {"stars": row.stars or ""}
            table.add(system=row.system, grid=dust.shape_of(grid), M=grid.size, **seen, **found, **theirs)
    assert kernel is not None
    facts = {"variance": float(kernel.variance), "lengthscale": float(kernel.lengthscale)}
    result.table("The kernel", progress).add(learned_from=setting.learn_from, **facts)
    conclude(result)
    result.figures = [folder / name for name in FIGURES]  # an earlier piece may have drawn them
    pieces.done()
    return result


def learned(
    grid: hg.Grid, stars: dust.Stars, setting: Setting, pieces: Pieces, progress: bool
) -> hg.Matern32:
    """The kernel of all rows (some learn their own from there), learned once: a checkpoint is of one kernel."""

    def make(_: Path) -> dict[str, Any]:
        found = dust.learned(hg.Matern32(), grid, stars, setting.learn_from, progress)
        return {"variance": float(found.variance), "lengthscale": float(found.lengthscale)}

    return hg.Matern32(**pieces.kept("kernel", make))


def conclude(result: Result) -> None:
    """Of the largest number of stars, HIP-GP's first row and SVGP's."""
    found = {r["system"]: r["MAE"] for r in reversed(result.tables[0].rows) if isinstance(r["MAE"], float)}
    if {"HIP-GP", "SVGP"} <= found.keys():
        ours, theirs = found["HIP-GP"], found["SVGP"]
        here = f"MAE {ours:.3g} and {theirs:.3g} (other data)"
        result.conclude(
            "HIP-GP, with more inducing points, beats SVGP", "MAE 0.0101 and 0.0153", here, ours < theirs
        )


def attempt(
    row: Row,
    kernel: Any,
    grid: hg.Grid,
    stars: dust.Stars,
    draw: Callable[[Any], None],
    held: dust.HeldWeights,
    checkpoint: Path,
) -> dict[str, Any]:
    """Scores and seconds. What the batch engine finds is drawn. Without a GPU the largest problems are left out."""
    work = len(stars.ends) * max(1.0, grid.size / 62_500)
    if row.system == "batch engine" and work > LARGEST_RUN and not on_gpu():
        return dust.nothing(NOT_RUN)
    found, post = dust.fitted(row.system, kernel, grid, stars, row.way, checkpoint, held)
    if row.system == "batch engine" and post is not None:
        draw(post)
    return found | {"device": machine()["device"]}


def figures(result: Result, patch: Callable[[], Patch], folder: Path, post: hg.Posterior) -> None:
    """The paper's figure 5, over those of a smaller grid."""
    for name, figure in zip(FIGURES, (extinctions(post, patch()), densities(post, patch())), strict=True):
        result.draw(figure, folder / name)


def simulated(cells: tuple[int, int, int]) -> Patch:
    """Turbulent sheets in a disc, thinner away from the plane."""
    rng = np.random.default_rng(0)
    axes = tuple(np.linspace(-h, h, n) for h, n in zip(HALF, cells, strict=True))
    turbulence, folds = (simulate.power_law_field(cells, 11 / 3, rng, 0.5, 0.12) for _ in range(2))
    sheets = np.exp(-((folds / 0.6) ** 2))
    density = (0.05 + 0.75 * sheets) * np.exp(0.5 * turbulence) / np.cosh(axes[2] / 0.5) ** 2
    return Patch(axes, density)


def observed(patch: Callable[[], Patch], count: int, held_out: int, pieces: Pieces) -> dust.Stars:
    """The stars; what is true of them is kept for later pieces, in float32."""
    rng = np.random.default_rng(1)
    ends = rng.uniform(-0.99, 0.99, (count + held_out, 3)) * HALF
    ends *= np.maximum(1.0, 0.1 / np.linalg.norm(ends, axis=1))[:, None]  # none nearer than 0.1 kpc
    truth = pieces.array(f"extinctions {count}", lambda: true_extinction(patch(), ends))
    noise = 0.02 + 0.03 * truth
    measured = truth + noise * rng.standard_normal(len(truth))
    places = rng.uniform(-1, 1, (20_000, 3)) * HALF
    density = pieces.array("densities", lambda: simulate.interpolate(patch().axes, patch().density, places))
    seen, rest = slice(0, count), slice(count, None)
    return dust.Stars(ends[seen], measured[seen], noise[seen], ends[rest], truth[rest], places, density, True)


def true_extinction(patch: Patch, ends: np.ndarray) -> np.ndarray:
    return simulate.line_integral(
        lambda x: simulate.interpolate(patch.axes, patch.density, x), np.zeros_like(ends), ends, 200
    )


def extinctions(post: hg.Posterior, patch: Patch) -> plots.Figure:
    """The paper's figure 5a: the extinction to every place of the middle plane, with the truth beside it."""
    plane = hg.Grid.cover(-HALF[:2], HALF[:2], shape=PLANE)
    ends = np.column_stack([plane.coordinates(), np.zeros(plane.size)])
    mean = post.predict(hg.LineIntegrals(dust.SUN, ends), std="vecchia").mean
    labels = Labels.of(2, ("X", "Y"), "kpc", "extinction", "mag")
    panels = {"truth": true_extinction(patch, ends), "posterior mean": mean}
    panels = {k: v.reshape(PLANE) for k, v in panels.items()}
    return plots.maps(
        panels, plane, labels, spread=(), title="Extinction from the Sun to the plane Z = 0, batch engine"
    )


def densities(post: hg.Posterior, patch: Patch) -> plots.Figure:
    """The paper's figure 5b: the density in the middle plane, with the truth beside it."""
    plane = hg.Grid.cover(-HALF[:2], HALF[:2], shape=PLANE)
    places = np.column_stack([plane.coordinates(), np.zeros(plane.size)])
    panels = {
        "truth": simulate.interpolate(patch.axes, patch.density, places),
        "posterior mean": simulate.interpolate(post.grid.axes, post.mean, places),
    }
    panels = {k: v.reshape(PLANE) for k, v in panels.items()}
    labels = Labels.of(2, ("X", "Y"), "kpc", "dust density", "mag/kpc")
    return plots.maps(panels, plane, labels, spread=(), title="Dust density in the plane Z = 0, batch engine")
