"""Maps side by side, and slices of volumes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hipgp.model import dates
from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.labels import Labels
from hipgp.plots.graticule import draw_graticule
from hipgp.plots.images import height_to_width, image, scale, spread_scale
from hipgp.plots.observed import draw_observed
from hipgp.plots.style import figure, styled

Array = np.ndarray
PANEL = 3.6  # inches: the root of a panel's area
LONGEST = 5.4  # inches: of its sides


@styled
def maps(
    panels: Mapping[str, Float[Array, "a b"]],
    grid: Grid,
    labels: Labels,
    *,
    spread: Sequence[str] = ("std",),
    points: Float[Array, "N 2"] | None = None,
    data: Data | None = None,
    crs: str = "",
    title: str = "",
    fig: Figure | None = None,
) -> Figure:
    """Two-dimensional maps side by side; those named in `spread` have a colour scale of their own.

    `points` are marked on all of them; where `data` were taken is drawn on top, on the field's panels with their values. Maps
    of a plane `crs` on the Earth get meridians and parallels.
    """
    wide, high = _panel_size(PANEL, height_to_width(grid, labels))
    fig = figure((wide + 1.3) * len(panels), high + (0.85 if title else 0.7), fig, title)
    fields = [v for k, v in panels.items() if k not in spread]
    shared = scale(*fields) if fields else {}
    for number, (name, values) in enumerate(panels.items()):
        ax = fig.add_subplot(1, len(panels), number + 1)
        is_spread = name in spread
        style = spread_scale(values) if is_spread else shared
        drawn = image(ax, values, grid, labels, **style)
        if points is not None:
            ax.plot(*points.T, ".", ms=1.2, color="white", alpha=0.5, mew=0)
        if data is not None:
            draw_observed(ax, data, labels, {} if is_spread else style)
        if crs:
            draw_graticule(ax, crs, labels.axis_units[0])
        ax.set_title(name)
        _add_bar(fig, drawn, ax, labels, is_spread, shrink=0.8, aspect=25)
    return fig


@styled
def slices(
    columns: Mapping[str, Float[Array, "a b c"]],
    grid: Grid,
    labels: Labels,
    *,
    axis: int = 2,
    count: int = 3,
    where: Sequence[float] | None = None,
    spread: Sequence[str] = ("std",),
    title: str = "",
    fig: Figure | None = None,
) -> Figure:
    """Slices of a volume across `axis`: a row for each place, a column for each quantity.

    `count` places of the whole volumes; with `where`, the columns hold planes at these places and nothing else.
    """
    first, second = (i for i in range(3) if i != axis)
    at = cuts(grid.shape[axis], count) if where is None else np.arange(len(where))
    places = grid.axes[axis][at] if where is None else np.asarray(where)
    wide, high = _panel_size(0.8 * PANEL, height_to_width(grid, labels, (first, second)))
    bars = len(set(columns) & set(spread)) + (len(set(columns) - set(spread)) > 0)
    fig = figure(wide * len(columns) + 1.2 * bars + 0.6, (high + 0.15) * len(at) + 0.9, fig, title)
    cut = {k: [np.take(v, i, axis=axis) for i in at] for k, v in columns.items()}
    fields = [k for k in columns if k not in spread]
    shared = scale(*[s for k in fields for s in cut[k]]) if fields else {}
    table = fig.subplots(len(at), len(columns), sharex=True, sharey=True, squeeze=False)
    for column, (name, parts) in enumerate(cut.items()):
        is_spread = name in spread
        style = spread_scale(*parts) if is_spread else shared
        for row, part in enumerate(parts):
            ax = table[row, column]
            drawn = image(ax, part, grid, labels, (first, second), **style)
            ax.label_outer()
            if not dates.origin(labels.axis_units[first]):  # so that those of neighbours do not meet
                ax.xaxis.set_major_locator(MaxNLocator(4, prune="both"))
            if column == 0:
                _name_slice(ax, labels, axis, float(places[row]))
        table[0, column].set_title(name)
        if is_spread or name == fields[-1]:
            _add_bar(fig, drawn, table[:, column].tolist(), labels, is_spread, shrink=0.7, aspect=35)
    return fig


def _add_bar(fig: Figure, drawn: Any, axes: Any, labels: Labels, is_spread: bool, **size: Any) -> None:
    """A colour bar beside the axes, with the name of the field or of its standard deviation."""
    label, extend = labels.value("std of" if is_spread else ""), "max" if is_spread else "both"
    fig.colorbar(drawn, ax=axes, label=label, extend=extend, **size)


def _panel_size(root: float, ratio: float | None) -> tuple[float, float]:
    """Width and height of a panel with this root of its area and this ratio of height to width, in inches."""
    ratio = ratio or 1.0
    return min(LONGEST, root * ratio**-0.5), min(LONGEST, root * ratio**0.5)


def cuts(count: int, rows: int) -> np.ndarray:
    """The numbers of the `rows` planes among `count` that are shown, evenly spaced and none at an end."""
    return np.unique(np.linspace(0, count - 1, rows + 2).round().astype(int)[1:-1])


def _name_slice(ax: Any, labels: Labels, axis: int, place: float) -> None:
    unit = labels.axis_units[axis]
    label = f"{labels.axes[axis]} = {dates.place(place, unit)} {'' if dates.origin(unit) else unit}".strip()
    ax.annotate(
        label, (0.03, 0.96), xycoords="axes fraction", va="top", fontsize=9, fontweight="bold",
        bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "alpha": 0.8, "edgecolor": "none"},
    )  # fmt: skip
