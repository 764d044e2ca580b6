"""Where the data were taken, drawn on a map or beside a curve."""

from typing import Any

import numpy as np
from matplotlib.collections import LineCollection

from hipgp.model.data import Data, Observations
from hipgp.model.functionals import BoxAverages, Functional, LineIntegrals, Points
from hipgp.model.labels import Labels
from hipgp.model.paths import PathIntegrals
from hipgp.model.polygons import PolygonAverages
from hipgp.plots.images import SIGNED, across
from hipgp.plots.style import INK

MOST = 4000  # observations that are drawn: evenly chosen where there are more
FEW = 400  # up to which points are filled with the colour of their value
WITH_BARS = 200  # up to which points of a series have bars of their noise


def draw_observed(ax: Any, data: Data, labels: Labels, colours: dict[str, Any]) -> None:
    """The places on a two-dimensional map; with `colours`, few points are filled with the colour of their values."""
    for block in data.blocks:
        shown = thinned(block)
        ink = INK if colours.get("cmap") == SIGNED else "white"
        outlines = _outlines(shown.functional, labels)
        if outlines is not None:
            width, alpha = 0.6, float(np.clip(4 / np.sqrt(len(shown.y)), 0.06, 0.7))
            ax.add_collection(
                LineCollection(outlines, colors=ink, linewidths=width, alpha=alpha), autolim=False
            )
            continue
        x, y = (
            across(c, u)
            for c, u in zip(shown.functional.places().mean(axis=1).T, labels.axis_units, strict=True)
        )
        if colours and len(block.y) <= FEW and _is_value(block):
            ax.scatter(x, y, c=shown.y, s=14, edgecolors=ink, linewidths=0.6, **colours)
        else:
            size = 9 if len(block.y) <= FEW else 2
            ax.scatter(x, y, s=size, color=ink, lw=0, alpha=0.8)


def draw_series(ax: Any, data: Data, unit: str) -> None:
    """The data beside a curve: values with their noise, averages as bars across, other kinds as ticks at the bottom."""
    label: str | None = "data"
    for block in data.blocks:
        shown = thinned(block)
        places = across(shown.functional.places()[:, :, 0], unit)
        middle, half = places.mean(axis=1), np.ptp(places, axis=1) / 2
        wide = isinstance(shown.functional, BoxAverages)
        if _is_value(shown) or (wide and shown.likelihood is None):
            bars = shown.noise if shown.noise is not None and len(block.y) <= WITH_BARS else None
            ax.errorbar(
                middle, shown.y, bars, half if wide else None, fmt="." if not wide else "none", color=INK, ecolor=INK,
                ms=4 if len(block.y) <= FEW else 2.5, elinewidth=0.7, alpha=0.65, mew=0, label=label, zorder=1,
            )  # fmt: skip
            label = None
        else:
            ax.plot(
                middle,
                np.zeros(len(middle)),
                "|",
                color=INK,
                ms=9,
                alpha=0.5,
                transform=ax.get_xaxis_transform(),
            )


def thinned(block: Observations) -> Observations:
    """At most MOST of the observations, evenly chosen."""
    return block.take(np.arange(0, len(block.y), max(1, -(-len(block.y) // MOST))))


def _is_value(block: Observations) -> bool:
    """Whether y are values of the field itself, with noise."""
    additive = block.likelihood is None or block.likelihood.additive
    return isinstance(block.functional, Points) and additive


def _outlines(functional: Functional, labels: Labels) -> list[np.ndarray] | None:
    """Lines, and the borders of boxes and polygons; None for what has none."""
    if isinstance(functional, LineIntegrals):
        rings = list(functional.places())
    elif isinstance(functional, BoxAverages):
        (x0, y0), (x1, y1) = functional.lower.T, functional.upper.T
        rings = list(np.stack([[x0, x1, x1, x0, x0], [y0, y0, y1, y1, y0]], axis=-1).transpose(1, 0, 2))
    elif isinstance(functional, PolygonAverages):
        rings = [np.concatenate([r, r[:1]]) for r in functional.lines]
    elif isinstance(functional, PathIntegrals):
        rings = functional.lines
    else:
        return None
    return [
        np.stack([across(c, u) for c, u in zip(r.T, labels.axis_units, strict=True)], axis=1) for r in rings
    ]
