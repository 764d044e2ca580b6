"""Meridians and parallels on maps of planes, with degrees along the edges and a bar of distance."""

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

LINES = 5  # of each kind, about
VERTICES = 60  # of each line
LINE = {"color": "#6b7280", "alpha": 0.5, "lw": 0.6, "zorder": 1.5}


def draw_graticule(ax: Any, crs: str, unit: str) -> None:
    """Meridians and parallels on a map of the plane `crs`; ticks lie where they meet the lower and the left edge.

    Nothing is drawn where the package pyproj is missing: the ticks stay those of the plane.
    """
    try:
        from pyproj import Transformer  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        return
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    to_degrees = Transformer.from_crs(crs, "EPSG:4326", always_xy=True).transform
    to_plane = Transformer.from_crs("EPSG:4326", crs, always_xy=True).transform
    share = np.linspace(0, 1, VERTICES)
    across, up = left + share * (right - left), bottom + share * (top - bottom)
    x = np.concatenate([across, across, np.full(VERTICES, left), np.full(VERTICES, right)])
    y = np.concatenate([np.full(VERTICES, bottom), np.full(VERTICES, top), up, up])
    lon, lat = (np.asarray(v) for v in to_degrees(x, y))
    lon = lon[0] + (lon - lon[0] + 180) % 360 - 180  # across the date line, too
    if not (np.all(np.isfinite(lon)) and np.all(np.isfinite(lat))):
        return
    edges = {"x": (across, lon[:VERTICES]), "y": (up, lat[2 * VERTICES : 3 * VERTICES])}
    for side, values, others in (("x", lon, lat), ("y", lat, lon)):
        lines = MaxNLocator(LINES, steps=[1, 2, 3, 5, 10]).tick_values(np.min(values), np.max(values))
        lines = lines[(lines > np.min(values)) & (lines < np.max(values))]
        along = np.linspace(np.min(others), np.max(others), VERTICES)
        for line in lines:
            place = (np.full(VERTICES, line), along) if side == "x" else (along, np.full(VERTICES, line))
            ax.plot(*to_plane(*place), **LINE)
        where, degrees = edges[side]
        order = np.argsort(degrees)
        met = lines[(lines >= degrees.min()) & (lines <= degrees.max())]
        names = [_named(line, "EW" if side == "x" else "NS", met) for line in met]
        getattr(ax, f"set_{side}ticks")(np.interp(met, degrees[order], where[order]), names)
        getattr(ax, f"set_{side}label")("")
    ax.set(xlim=(left, right), ylim=(bottom, top))
    _draw_distance(ax, right - left, unit)


def _named(degrees: float, signs: str, lines: np.ndarray) -> str:
    """The label of a line, such as 75.5°W, with as many digits as the lines differ by."""
    apart = np.min(np.diff(lines)) if len(lines) > 1 else 1.0
    digits = max(0, -int(np.floor(np.log10(apart) + 1e-9)))
    turned = (degrees + 180) % 360 - 180 if signs == "EW" else degrees
    size = f"{abs(turned):.{digits}f}"
    return f"{size}°" + (signs[0] if turned > 0 else signs[1]) * (float(size) != 0)


def _draw_distance(ax: Any, width: float, unit: str) -> None:
    """A bar of about a fifth of the width, in the lower right corner, with its length."""
    steps = np.array([1, 2, 5, 10]) * 10 ** np.floor(np.log10(width / 5))
    length = float(steps[steps <= width / 4].max())
    (_, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    end, y = right - 0.04 * width, bottom + 0.05 * (top - bottom)
    ax.plot([end - length, end], [y, y], color="white", lw=3.4, solid_capstyle="butt", zorder=3)
    ax.plot([end - length, end], [y, y], color="black", lw=1.6, solid_capstyle="butt", zorder=3)
    ax.annotate(
        f"{length:g} {unit}", (end - length / 2, y), (0, 3), textcoords="offset points", ha="center", va="bottom", fontsize=8,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.7, "edgecolor": "none"}, zorder=3,
    )  # fmt: skip
