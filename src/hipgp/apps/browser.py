"""The data of the report's browser: mean, standard deviation and draws on a grid, in 16 bits, with axes, dates and colours.

Maps are those of their pictures, on a fine grid; volumes are cut into slices. `browser.js` draws them on a canvas.
"""

import base64
import json
from typing import Any, NamedTuple

import matplotlib
import numpy as np

from hipgp import display, plots
from hipgp import posterior as models
from hipgp.model import dates

LAYER_SAMPLES = 4
STEPS = 65_535  # of the values that are kept, between the smallest and the largest of a layer
MOST = 4_000_000  # values of a layer, beyond which planes are left out
PLACES = 25  # along each side of a map, at which longitude and latitude are given
HALF_WIDTH = 1.959964  # standard deviations on either side of the mean that hold 95%


class _Fields(NamedTuple):
    """The fields that the browser shows, by name, over coordinates along two or three axes."""

    names: list[str]
    units: list[str]
    coordinates: list[np.ndarray]
    fields: dict[str, np.ndarray]


def contents(post: models.Posterior, held: dict[str, np.ndarray]) -> str:
    """A script element with the data of the browser, as JSON; empty for a curve, and for maps in four dimensions."""
    if post.grid.ndim not in (2, 3):
        return ""
    found = _fields(post, held)
    every = _strides([len(c) for c in found.coordinates])
    kept = tuple(slice(None, None, step) for step in every)
    coordinates = [c[cut] for c, cut in zip(found.coordinates, kept, strict=True)]
    fields = {name: np.asarray(values)[kept] for name, values in found.fields.items()}
    shared = plots.scale(*[v for name, v in fields.items() if name != "std"])
    described = {
        "axes": found.names,
        "units": ["" if dates.origin(unit) else unit for unit in found.units],
        "origins": [_milliseconds(unit) for unit in found.units],
        "coordinates": [c.tolist() for c in coordinates],
        "field": post.labels.name,
        "unit": post.labels.unit,
        "halfwidth": HALF_WIDTH,
        "degrees": _degrees(post, coordinates),
        "layers": [
            _layer(name, values, plots.spread_scale(values) if name == "std" else shared)
            for name, values in fields.items()
        ],
    }
    text = json.dumps(described).replace("<", "\\u003c")
    return f'<script id="slices" type="application/json">{text}</script>'


def _fields(post: models.Posterior, held: dict[str, np.ndarray]) -> _Fields:
    """The fields of a map as its picture shows it, of a sphere by longitude and latitude, or of a volume on its grid."""
    labels = post.labels
    draws = [np.asarray(draw) for draw in held.get("samples", [])[:LAYER_SAMPLES]]
    if (on_sphere := display.globe_view(post)) is not None:
        return _Fields(
            ["longitude", "latitude"], ["°", "°"], [on_sphere.lon, on_sphere.lat], on_sphere.fields
        )
    names, units = list(labels.axes), list(labels.axis_units)
    if post.grid.ndim == 3:
        fields = {"mean": held["mean"]} | ({"std": held["std"]} if "std" in held else {})
        grid = post.grid
        onto = lambda values: values
    else:
        pictured = display.view(post)
        grid, order = pictured.grid, 3 if post.kernel.differentiable else 1
        fields = {"mean": pictured.mean} | ({} if pictured.std is None else {"std": pictured.std})
        onto = lambda values: display.interpolated(values, post.grid, grid, order)
    if post.diagnostics.get("link", "identity") != "identity" and "std" in fields:
        lower, upper = post.interval(0.95)
        fields |= {"lower end of 95%": onto(lower), "upper end of 95%": onto(upper)}
    fields |= {f"draw {number}": onto(draw) for number, draw in enumerate(draws, 1)}
    return _Fields(names, units, [np.asarray(a, float) for a in grid.axes], fields)


def _strides(shape: list[int]) -> list[int]:
    """Every how many planes are kept along each axis, so that a layer has at most MOST values."""
    every = [1] * len(shape)
    left = list(shape)
    while np.prod(left, dtype=float) > MOST:
        longest = int(np.argmax(left))
        every[longest] += 1
        left[longest] = -(-shape[longest] // every[longest])
    return every


def _milliseconds(unit: str) -> float | None:
    """The time from which a unit such as "days since 2020-01-01" counts, since 1970; None for other units."""
    start = dates.origin(unit)
    if start is None:
        return None
    moment = dates.moments(np.zeros(1), unit)
    assert moment is not None
    return float(moment.astype("M8[ms]").astype(float)[0])


def _degrees(post: models.Posterior, coordinates: list[np.ndarray]) -> dict[str, Any] | None:
    """Longitude and latitude at some places of a plane on the Earth, between which the browser interpolates."""
    if not post.crs or len(coordinates) != 2:
        return None
    from pyproj import Transformer  # type: ignore[import-not-found]

    x, y = np.meshgrid(*[np.linspace(c[0], c[-1], PLACES) for c in coordinates], indexing="ij")
    lon, lat = Transformer.from_crs(post.crs, "EPSG:4326", always_xy=True).transform(x, y)
    lon = lon[0, 0] + (lon - lon[0, 0] + 180) % 360 - 180  # across the date line, too
    return {"lon": lon.tolist(), "lat": lat.tolist()}


def _layer(name: str, values: np.ndarray, style: dict[str, Any]) -> dict[str, Any]:
    """One field in 16 bits between its extremes, with its colours and the values that the first and the last stand for."""
    least, most = float(np.min(values)), float(np.max(values))
    scaled = np.round((values - least) / (most - least or 1.0) * STEPS).astype("<u2")
    colours = matplotlib.colormaps[style["cmap"]](np.arange(256))[:, :3]
    return {
        "name": name,
        "least": least,
        "step": (most - least) / STEPS,
        "low": float(style["vmin"]),
        "high": float(style["vmax"]),
        "bytes": base64.b64encode(np.ascontiguousarray(scaled).tobytes()).decode(),
        "colours": (colours * 255).round().astype(int).tolist(),
    }
