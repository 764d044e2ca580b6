"""Maps of a whole sphere."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from hipgp.model.data import Data, Observations
from hipgp.model.labels import Labels
from hipgp.model.sphere import GreatCircles
from hipgp.plots.images import scale, spread_scale
from hipgp.plots.observed import thinned
from hipgp.plots.style import INK, figure, styled

Array = np.ndarray
VERTICES = 60  # of a great circle
FEW = 400  # places up to which their dots are large


@styled
def globe(
    longitude: Float[Array, " a"],
    latitude: Float[Array, " b"],
    panels: Mapping[str, Float[Array, "a b"]],
    labels: Labels,
    *,
    spread: Sequence[str] = ("std",),
    data: Data | None = None,
    title: str = "",
    fig: Figure | None = None,
) -> Figure:
    """Maps of a sphere in the Mollweide projection, east to the right, side by side; angles in degrees.

    Those named in `spread` have a colour scale of their own. Places and great circles of the `data` are drawn on top.
    """
    fig = figure(5.8 * len(panels), 4.1 if title else 3.8, fig, title)
    fields = [v for k, v in panels.items() if k not in spread]
    shared = scale(*fields) if fields else {}
    for number, (name, values) in enumerate(panels.items()):
        ax = fig.add_subplot(1, len(panels), number + 1, projection="mollweide")
        is_spread = name in spread
        drawn = ax.pcolormesh(
            np.deg2rad(longitude), np.deg2rad(latitude), values.T, shading="gouraud", rasterized=True,
            **(spread_scale(values) if is_spread else shared),
        )  # fmt: skip
        _draw_grid(ax)
        for block in () if data is None else data.blocks:
            _draw_places(ax, thinned(block))
        ax.set_title(name, pad=10)
        fig.colorbar(
            drawn, ax=ax, orientation="horizontal", shrink=0.6, aspect=35, pad=0.05, extend="max" if is_spread else "both",
            label=labels.value("std of" if is_spread else ""),
        )  # fmt: skip
    return fig


def _draw_grid(ax: Any) -> None:
    """Meridians and parallels every 60 and 30 degrees, with their names at the left and along the equator."""
    ax.grid(color="#6b7280", alpha=0.5, lw=0.5)
    ax.set_xticks(np.deg2rad([-120, -60, 0, 60, 120]), [])
    ax.set_yticks(np.deg2rad([-60, -30, 0, 30, 60]), ["60°S", "30°S", "0°", "30°N", "60°N"], fontsize=8)
    for east in (-120, -60, 0, 60, 120):
        side = "E" if east > 0 else "W" if east < 0 else ""
        ax.annotate(
            f"{abs(east)}°{side}", (np.deg2rad(east), 0.0), (0, -2), textcoords="offset points", ha="center",
            va="top", fontsize=7, color=INK, bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "alpha": 0.6, "lw": 0},
        )  # fmt: skip


def _draw_places(ax: Any, block: Observations) -> None:
    """Points as dots, and great circles as lines, cut where they leave the map at one side and come back at the other."""
    functional: Any = block.functional
    ink = {"color": INK, "alpha": 0.8}
    if not isinstance(functional, GreatCircles):
        lon, lat = angles(functional.places().mean(axis=1))
        ax.plot(lon, lat, ".", ms=4 if len(lon) <= FEW else 2, mew=0, **ink)
        return
    lines = []
    for arc in functional.vertices(VERTICES):
        lon, lat = angles(arc)
        cuts = np.flatnonzero(np.abs(np.diff(lon)) > np.pi) + 1
        lines += [part for part in np.split(np.stack([lon, lat], axis=1), cuts) if len(part) > 1]
    width = float(np.clip(8 / np.sqrt(len(block.y)), 0.15, 1.0))
    ax.add_collection(LineCollection(lines, colors=INK, linewidths=width, alpha=0.5), autolim=False)


def angles(x: Float[Array, "n 3"]) -> tuple[Array, Array]:
    """Longitude and latitude of places, in radians."""
    return np.arctan2(x[:, 1], x[:, 0]), np.arctan2(x[:, 2], np.hypot(x[:, 0], x[:, 1]))
