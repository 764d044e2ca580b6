"""One image on given axes: where it lies, its colours, and coordinates that are dates."""

from typing import Any

import matplotlib.dates
import numpy as np
from jaxtyping import Float

from hipgp.model import dates
from hipgp.model.grid import Grid
from hipgp.model.labels import Labels

Array = np.ndarray
VALUE, SPREAD, SIGNED = (
    "inferno",
    "viridis",
    "PuOr_r",
)  # colour maps: the field, its uncertainty, signed fields
EVEN = 0.2  # the smaller side of zero must reach so far, as a share of the larger, for a field to count as signed


def limits(*images: Array, share: float = 0.995) -> tuple[float, float]:
    """A common colour range that a few extreme pixels do not stretch."""
    together = np.concatenate([np.ravel(i) for i in images])
    low, high = np.nanquantile(together, [1 - share, share])
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)


def scale(*images: Array) -> dict[str, Any]:
    """Colour map and range of a field: diverging about zero where every image takes both signs, otherwise sequential."""
    low, high = limits(*images)
    far = max(-low, high)
    if all(_takes_both_signs(*limits(image)) for image in images):
        return {"cmap": SIGNED, "vmin": -far, "vmax": far}
    return {"cmap": VALUE, "vmin": low, "vmax": high}


def _takes_both_signs(low: float, high: float) -> bool:
    return min(-low, high) > EVEN * max(-low, high)


def spread_scale(*images: Array) -> dict[str, Any]:
    """Colour map and range of standard deviations, from zero."""
    return {"cmap": SPREAD, "vmin": 0.0, "vmax": limits(*images)[1]}


def extent(grid: Grid, axes: tuple[int, int]) -> tuple[float, float, float, float]:
    """The edges of the outermost pixels."""
    half = [0.5 * grid.spacing[i] for i in axes]
    (a, b), low, high = axes, grid.lower, grid.upper
    return low[a] - half[0], high[a] + half[0], low[b] - half[1], high[b] + half[1]


def height_to_width(grid: Grid, labels: Labels, axes: tuple[int, int] = (0, 1)) -> float | None:
    """The ratio of an image's height to its width where both axes have one unit; None where it may be stretched."""
    left, right, bottom, top = extent(grid, axes)
    ratio, units = (top - bottom) / (right - left), [labels.axis_units[i] for i in axes]
    return ratio if 0.2 < ratio < 5 and units[0] == units[1] else None


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
    edges = extent(grid, axes)
    square = height_to_width(grid, labels, axes) is not None
    settings = {"cmap": VALUE, "aspect": "equal" if square else "auto", "interpolation": "nearest"} | options
    drawn_edges = (*across(edges[:2], labels.axis_units[a]), *across(edges[2:], labels.axis_units[b]))
    drawn = ax.imshow(values.T, origin="lower", extent=drawn_edges, **settings)
    ax.set(xlabel=labels.on_ticks(a), ylabel=labels.on_ticks(b))
    date_ticks(ax, labels.axis_units[a], labels.axis_units[b])
    for side in ax.spines.values():
        side.set_visible(False)
    return drawn


def across(values: Any, unit: str) -> Array:
    """Coordinates as matplotlib takes them: days since its own epoch along an axis of dates."""
    moments = dates.moments(values, unit)
    return np.asarray(values, float) if moments is None else np.asarray(matplotlib.dates.date2num(moments))


def date_ticks(ax: Any, *units: str) -> None:
    """Dates on the ticks of the axes, across and up, whose unit is one of dates."""
    for side, unit in zip((ax.xaxis, ax.yaxis), units, strict=False):
        if dates.origin(unit):
            side.axis_date()
            locator = matplotlib.dates.AutoDateLocator(maxticks=6)
            side.set_major_locator(locator)
            side.set_major_formatter(matplotlib.dates.ConciseDateFormatter(locator))
