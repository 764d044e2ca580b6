"""Pictures: maps and slices, lines of sight with bands, calibration, convergence, learning.

Every function returns a matplotlib `Figure` outside pyplot, which opens no window: save it with `save(figure, path)`.
Colours are perceptually uniform and survive printing in grey.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import matplotlib.dates
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from scipy.stats import norm

from hipgp.apps.histories import convergence as convergence
from hipgp.apps.histories import learning as learning
from hipgp.apps.histories import rounds as rounds
from hipgp.apps.style import ACCENT, INK, SECOND, figure, styled
from hipgp.apps.style import STYLE as STYLE
from hipgp.apps.style import save as save
from hipgp.apps.style import stacked as stacked
from hipgp.files.labels import Labels
from hipgp.model import dates
from hipgp.model.grid import Grid

Array = np.ndarray
VALUE, SPREAD, SIGNED = "inferno", "viridis", "PuOr_r"  # colour maps: the field, its uncertainty, differences
BARS: dict[str, Any] = {"density": True, "color": SECOND, "alpha": 0.75, "edgecolor": "white"}


def limits(*images: Array, share: float = 0.995) -> tuple[float, float]:
    """A common colour range that a few extreme pixels do not stretch."""
    together = np.concatenate([np.ravel(i) for i in images])
    low, high = np.nanquantile(together, [1 - share, share])
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)


def image(
    ax: Any,
    values: Float[Array, "a b"],
    grid: Grid,
    labels: Labels,
    axes: tuple[int, int] = (0, 1),
    **options: Any,
) -> Any:
    """One map on given axes: the first of `axes` across, the second up."""
    a, b = axes
    half = [0.5 * grid.spacing[i] for i in axes]
    extent = (
        grid.lower[a] - half[0],
        grid.upper[a] + half[0],
        grid.lower[b] - half[1],
        grid.upper[b] + half[1],
    )
    square = (
        0.2 < (extent[3] - extent[2]) / (extent[1] - extent[0]) < 5
        and labels.axis_units[a] == labels.axis_units[b]
    )
    settings = {"cmap": VALUE, "aspect": "equal" if square else "auto", "interpolation": "nearest"} | options
    edges = (*across(extent[:2], labels.axis_units[a]), *across(extent[2:], labels.axis_units[b]))
    drawn = ax.imshow(values.T, origin="lower", extent=edges, **settings)
    ax.set(xlabel=labels.on_ticks(a), ylabel=labels.on_ticks(b))
    for side, unit in ((ax.xaxis, labels.axis_units[a]), (ax.yaxis, labels.axis_units[b])):
        if dates.origin(unit):
            side.axis_date()
            side.set_major_formatter(_of_dates(side))
    for side in ax.spines.values():
        side.set_visible(False)
    return drawn


def across(values: Any, unit: str) -> Array:
    """Coordinates as matplotlib takes them: days since its own epoch along an axis of dates."""
    moments = dates.moments(values, unit)
    return np.asarray(values, float) if moments is None else np.asarray(matplotlib.dates.date2num(moments))


def _of_dates(side: Any) -> Any:
    locator = matplotlib.dates.AutoDateLocator(maxticks=6)
    side.set_major_locator(locator)
    return matplotlib.dates.ConciseDateFormatter(locator)


@styled
def maps(
    panels: Mapping[str, Float[Array, "a b"]],
    grid: Grid,
    labels: Labels,
    *,
    spread: Sequence[str] = ("std",),
    points: Float[Array, "N 2"] | None = None,
    title: str = "",
) -> Figure:
    """Two-dimensional maps side by side; those named in `spread` have a colour scale of their own."""
    fig = figure(4.1 * len(panels) + 0.6, 4.2)
    if title:
        fig.suptitle(title, fontweight="bold")
    shared = limits(*[v for k, v in panels.items() if k not in spread])
    for number, (name, values) in enumerate(panels.items()):
        ax = fig.add_subplot(1, len(panels), number + 1)
        own = name in spread
        low, high = (0.0, limits(values)[1]) if own else shared
        drawn = image(ax, values, grid, labels, vmin=low, vmax=high, cmap=SPREAD if own else VALUE)
        if points is not None:
            ax.plot(*points.T, ".", ms=1.2, color="white", alpha=0.5, mew=0)
        ax.set_title(name)
        fig.colorbar(drawn, ax=ax, shrink=0.8, label=labels.value("std of" if own else ""), extend="both")
    return fig


@styled
def slices(
    columns: Mapping[str, Float[Array, "a b c"]],
    grid: Grid,
    labels: Labels,
    *,
    axis: int = 2,
    count: int = 3,
    spread: Sequence[str] = ("std",),
    title: str = "",
) -> Figure:
    """Slices of a volume across `axis`: a row for each place, a column for each quantity."""
    first, second = (i for i in range(3) if i != axis)
    where = np.unique(np.linspace(0, grid.shape[axis] - 1, count + 2).round().astype(int)[1:-1])
    bars = len(set(columns) & set(spread)) + (len(set(columns) - set(spread)) > 0)
    fig = figure(3.1 * len(columns) + 1.4 * bars, 3.2 * len(where) + 0.9)
    if title:
        fig.suptitle(title, fontweight="bold")
    cut = {k: [np.take(v, i, axis=axis) for i in where] for k, v in columns.items()}
    shared = limits(*[s for k, v in cut.items() if k not in spread for s in v])
    table = np.atleast_2d(fig.subplots(len(where), len(columns), sharex=True, sharey=True, squeeze=False))
    for column, (name, parts) in enumerate(cut.items()):
        own = name in spread
        low, high = (0.0, limits(*parts)[1]) if own else shared
        for row, part in enumerate(parts):
            ax = table[row, column]
            style = {"vmin": low, "vmax": high, "cmap": SPREAD if own else VALUE}
            drawn = image(ax, part, grid, labels, (first, second), **style)
            ax.label_outer()
            if row == 0:
                ax.set_title(name)
            if column == 0:
                unit = labels.axis_units[axis]
                place = dates.place(float(grid.axes[axis][where[row]]), unit)
                ax.annotate(
                    f"{labels.axes[axis]} = {place} {'' if dates.origin(unit) else unit}".strip(), (0.03, 0.93), xycoords="axes fraction", va="top",
                    color="white", fontsize=9, fontweight="bold",
                )  # fmt: skip
        if own or name == [k for k in columns if k not in spread][-1]:
            bar = fig.colorbar(drawn, ax=table[:, column].tolist(), shrink=0.7, extend="max")
            bar.set_label(labels.value("std of" if own else ""))
    return fig


def overview(fields: Mapping[str, Array], grid: Grid, labels: Labels) -> Figure | None:
    """The one picture of a map, given its "mean" and, where they are known, "std" and "samples"; None in 4 dimensions.

    "lower" and "upper", the ends of 95% intervals, are those of the band around a curve that is not as far below as above.
    """
    if grid.ndim == 1:
        thin = slice(None, None, max(1, grid.size // 5000))
        mean = fields["mean"][thin]
        std = fields["std"][thin] if "std" in fields else np.zeros_like(mean)
        draws = fields["samples"][:5, thin] if "samples" in fields else None
        band = (fields["lower"][thin], fields["upper"][thin]) if "lower" in fields else None
        names = {"xlabel": labels.on_ticks(0), "ylabel": labels.value()}
        along, unit = grid.axes[0][thin], labels.axis_units[0]
        fig = profile(across(along, unit), mean, std, samples=draws, band=band, **names)
        if dates.origin(unit):
            side = fig.axes[0].xaxis
            side.set_major_formatter(_of_dates(side))
        return fig
    panels = {"posterior mean": fields["mean"]}
    if "samples" in fields:
        panels["one draw"] = fields["samples"][0]
    if "std" in fields:
        panels["std"] = fields["std"]
    draw = {2: maps, 3: slices}.get(grid.ndim)
    return None if draw is None else draw(panels, grid, labels)


@styled
def profile(
    x: Float[Array, " n"],
    mean: Float[Array, " n"],
    std: Float[Array, " n"],
    *,
    xlabel: str,
    ylabel: str,
    samples: Float[Array, "s n"] | None = None,
    truth: Float[Array, " n"] | None = None,
    points: tuple[Array, Array] | None = None,
    band: tuple[Array, Array] | None = None,
    title: str = "",
    ax: Any = None,
) -> Figure:
    """A curve: the mean with its 95% band, and draws, the truth and the data where they are given.

    `band` are the ends of the band where it is not mean ± 1.96 std, such as `found.interval(0.95)` of a positive field.
    """
    lower, upper = (mean - 1.96 * std, mean + 1.96 * std) if band is None else band
    fig = figure(8.2, 3.8) if ax is None else ax.figure
    ax = fig.add_subplot() if ax is None else ax
    ax.fill_between(x, lower, upper, color=SECOND, alpha=0.22, lw=0, label="95% interval")
    if samples is not None:
        ax.plot(x, samples.T, color=SECOND, lw=0.6, alpha=0.55)
    ax.plot(x, mean, color=SECOND, lw=1.8 if len(x) < 1500 else 0.7, label="posterior mean")
    if truth is not None:
        ax.plot(x, truth, color=ACCENT, lw=1.2, ls=(0, (4, 2)), label="truth")
    if points is not None:
        ax.plot(*points, ".", color=INK, ms=3, alpha=0.6, mew=0, label="data", zorder=1)
    ax.set(xlabel=xlabel, ylabel=ylabel, title=title, xlim=(x[0], x[-1]))
    ax.legend(loc="best", fontsize=9)
    return fig


def calibration(
    mean: Float[Array, " n"], std: Float[Array, " n"], truth: Float[Array, " n"], title: str = ""
) -> Figure:
    """Coverage of every central interval, and the histogram of PIT values: whether the error bars are right."""
    return calibration_of(norm.cdf((np.ravel(truth) - np.ravel(mean)) / np.ravel(std)), title)


@styled
def calibration_of(pit: Float[Array, " n"], title: str = "") -> Figure:
    """The same from PIT values, the posterior probabilities below the truth, of any distribution."""
    fig = figure(8.6, 3.9)
    if title:
        fig.suptitle(title, fontweight="bold")
    left, right = fig.subplots(1, 2)
    nominal = np.linspace(0.01, 0.99, 99)
    reached = [np.mean(np.abs(pit - 0.5) <= p / 2) for p in nominal]
    left.plot([0, 100], [0, 100], color="#9aa3af", lw=1)
    left.plot(100 * nominal, 100 * np.array(reached), color=SECOND, lw=2.2)
    left.set(
        xlabel="interval [% of posterior probability]",
        ylabel="truth inside [%]",
        xlim=(0, 100),
        ylim=(0, 100),
    )
    at95 = 100 * float(np.mean(np.abs(pit - 0.5) <= 0.475))
    left.plot(95, at95, "o", color=ACCENT, zorder=3)
    left.annotate(
        f"95% intervals hold\nthe truth {at95:.1f}% of the time", (95, at95), (98, 14), ha="right", color=ACCENT,
        arrowprops={"arrowstyle": "-", "color": ACCENT, "lw": 0.8},
    )  # fmt: skip
    left.set_aspect("equal")
    right.hist(pit, bins=20, range=(0, 1), lw=0.6, **BARS)
    right.axhline(1, color="#9aa3af", lw=1)
    right.set(xlabel="posterior probability below the truth (PIT)", ylabel="density", xlim=(0, 1))
    right.set_title("flat is right; a hump: too wide, a bowl: too narrow", fontsize=9, color="#4b5563")
    return fig


@styled
def residuals(
    measured: Float[Array, " n"],
    predicted: Float[Array, " n"],
    noise: Float[Array, " n"],
    label: str,
    title: str = "",
) -> Figure:
    """Measured against predicted values, and the residuals in units of their expected standard deviation."""
    fig = figure(8.6, 3.9)
    if title:
        fig.suptitle(title, fontweight="bold")
    left, right = fig.subplots(1, 2)
    low, high = limits(measured, predicted, share=1.0)
    left.plot([low, high], [low, high], color="#9aa3af", lw=1)
    left.plot(predicted, measured, ".", ms=5, color=SECOND, alpha=0.45, mew=0)
    left.set(xlabel=f"predicted {label}", ylabel=f"measured {label}")
    left.set_aspect("equal")
    pull = (measured - predicted) / noise
    _beside_a_standard_normal(right, pull, "residual / its expected std")
    right.set_title(f"standard deviation {np.std(pull):.2f}, expected 1", fontsize=9, color="#4b5563")
    return fig


@styled
def standardised(values: Float[Array, " n"]) -> Figure:
    """The histogram of residuals in units of their noise, beside a standard normal."""
    fig = figure(5.6, 3.4)
    _beside_a_standard_normal(fig.add_subplot(), values, "residual / noise")
    return fig


def _beside_a_standard_normal(ax: Any, values: Float[Array, " n"], xlabel: str) -> None:
    x = np.linspace(-5, 5, 200)
    ax.hist(np.clip(values, -5, 5), bins=40, range=(-5, 5), **BARS)
    ax.plot(x, norm.pdf(x), color=ACCENT, lw=1.4, label="standard normal")
    ax.set(xlabel=xlabel, ylabel="density", xlim=(-5, 5))
    ax.legend(fontsize=9)


@styled
def sky(
    longitude: Float[Array, " a"], latitude: Float[Array, " b"], panels: Mapping[str, Float[Array, "a b"]], label: str,
    title: str = "",
) -> Figure:  # fmt: skip
    """Whole-sky maps in the Mollweide projection; angles in degrees, the galactic centre in the middle."""
    fig = figure(5.6 * len(panels), 4.3)
    if title:
        fig.suptitle(title + "\n", fontweight="bold")  # the empty line keeps it off the panels' titles
    shared = limits(*[v for k, v in panels.items() if k != "std"])
    for number, (name, values) in enumerate(panels.items()):
        ax = fig.add_subplot(1, len(panels), number + 1, projection="mollweide")
        # longitude grows to the left, as seen from inside
        own = name == "std"
        low, high = (0.0, limits(values)[1]) if own else shared
        drawn = ax.pcolormesh(
            -np.deg2rad(longitude), np.deg2rad(latitude), values.T, cmap=SPREAD if own else VALUE, vmin=low, vmax=high,
            shading="auto", rasterized=True,
        )  # fmt: skip
        ax.grid(color="white", alpha=0.25, lw=0.5)
        ax.set_xticks(np.deg2rad([-120, -60, 0, 60, 120]), ["120°", "60°", "0°", "300°", "240°"], fontsize=8)
        ax.tick_params(axis="x", colors="#e5e7eb")
        ax.tick_params(axis="y", labelsize=8)
        ax.set_title(name, pad=12)
        fig.colorbar(
            drawn,
            ax=ax,
            orientation="horizontal",
            shrink=0.6,
            pad=0.06,
            label=f"std of {label}" if own else label,
        )
    return fig
