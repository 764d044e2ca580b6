"""Point patterns: places of events, counted in small cells.

The model is a Poisson process whose rate is the field; with an exponential link it is a log-Gaussian Cox process. Counts
in cells much smaller than the field's lengthscale lose nearly no information.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from hipgp.model.arguments import as_float, as_points
from hipgp.model.counts import Poisson
from hipgp.model.data import Data, observe
from hipgp.model.functionals import Points
from hipgp.model.polygons import PolygonAverages

MARK_CELLS = 20  # of a mark
COLUMNS = 32  # lines a cell, along which a polygon's area in it is found
CELLS = {1: 256, 2: 100, 3: 40, 4: 16}  # default number of cells along the longest side, by dimension


def point_pattern(
    x: Any,
    window: Any,
    exposure: Callable[[np.ndarray], Any] | float | None = None,
    cells: int | tuple[int, ...] | None = None,
    marks: Any = None,
    mark_range: tuple[float, float] | None = None,
) -> Data:
    """Count events at places x, (N, D), in cells of a `window`, for GP(..., link="exp").

    The window is a box, (lower, upper), or in two dimensions one polygon, as PolygonAverages takes it; cells at its edge
    are weighted by their area inside.
    The field is the rate, in events per unit of volume. `exposure` multiplies it: a number, or a function of places,
    (M, D), positive where events could be observed and zero elsewhere (effort, population, part of a cell). `cells` is the
    number of cells along the longest side, or along each; cells should be smaller than the field's lengthscale.

    `marks`, (N,), are a number for each event, such as the size of a tree. They become a further axis, the last one: the field
    is then the rate per unit of volume and mark, on a grid of one dimension more. `mark_range` holds the marks that could be
    observed, from the smallest to the largest one where it is not given.

    >>> data = point_pattern([[0.1], [0.2], [0.9]], window=(0.0, 1.0), cells=4)
    >>> data.y.tolist()
    [2.0, 0.0, 0.0, 1.0]
    """
    places = as_points("x", x).astype(float)
    ndim = places.shape[1]
    lower, upper, edges = _window(window, ndim)
    _check_window(places, lower, upper, edges)
    shape = _shape(cells, upper - lower)
    size = (upper - lower) / shape
    cell = np.clip(((places - lower) / size).astype(int), 0, np.asarray(shape) - 1)
    axes = [low + (np.arange(n) + 0.5) * h for low, n, h in zip(lower, shape, size, strict=True)]
    centres = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, ndim)
    within = 1.0 if edges is None else _share_inside(edges, lower, size, shape).ravel()
    share = _exposure(exposure, centres) * within
    if marks is None:
        y = np.zeros(shape)
        np.add.at(y, tuple(cell.T), 1.0)
    else:
        y, centres, width = _marked(marks, mark_range, cell, shape, centres)
        share, size = np.repeat(share, MARK_CELLS), np.append(size, width)
    return _observed_counts(centres, y.ravel(), share, float(np.prod(size)))


def _observed_counts(
    centres: Float[np.ndarray, "M D"],
    y: Float[np.ndarray, " M"],
    share: Float[np.ndarray, " M"],
    volume: float,
) -> Data:
    """The counts of the cells with an exposure, which is this share of their volume."""
    inside = share > 0
    if np.any(y[~inside] > 0):
        raise ValueError(
            f"exposure: expected positive values wherever there are places, got zero in {int(np.sum(y[~inside] > 0))} cells "
            f"that hold {int(np.sum(y[~inside]))} of them"
        )
    likelihood = Poisson(exposure=share[inside] * volume)
    return observe(Points(centres[inside]), y[inside], likelihood=likelihood)


def _check_window(
    places: Float[np.ndarray, "N D"], lower: np.ndarray, upper: np.ndarray, edges: np.ndarray | None
) -> None:
    """Raise a ValueError if some places are outside the window."""
    outside = np.any((places < lower) | (places > upper), axis=1)
    if edges is not None:
        outside = ~_is_inside(edges, places)
    if np.any(outside):
        raise ValueError(
            f"window: expected a box or polygon that holds all places, got {int(np.sum(outside))} of {len(places)} outside it (first: "
            f"number {int(np.flatnonzero(outside)[0])}); widen it, or leave them out"
        )


def _marked(
    marks: Any, within: Any, cell: np.ndarray, shape: tuple[int, ...], centres: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Counts by cell and mark, the centres of these cells, and their width in the mark."""
    sizes = as_float("marks", marks, ndim=(1,)).astype(float)
    if len(sizes) != len(cell):
        raise ValueError(f"marks: expected one for each of {len(cell)} places, got {len(sizes)}")
    low, high = (np.min(sizes), np.max(sizes)) if within is None else (float(end) for end in within)
    outside = (sizes < low) | (sizes > high)
    if not high > low or np.any(outside):
        raise ValueError(
            f"mark_range: expected (smallest, largest) that holds all marks, got {low:g} to {high:g}, with {int(np.sum(outside))} of "
            f"{len(sizes)} outside it"
        )
    width = (high - low) / MARK_CELLS
    number = np.clip(((sizes - low) / width).astype(int), 0, MARK_CELLS - 1)
    counts = np.zeros((*shape, MARK_CELLS))
    np.add.at(counts, (*cell.T, number), 1.0)
    middles = low + (np.arange(MARK_CELLS) + 0.5) * width
    places = np.repeat(centres, MARK_CELLS, axis=0)
    return counts, np.column_stack([places, np.tile(middles, len(centres))]), width


def _window(window: Any, ndim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The corners of a box, or of that around a polygon, and the polygon's edges."""
    if not _is_box(window):
        edges = _edges(window, ndim)
        corners = edges.reshape(-1, 2)
        return corners.min(axis=0), corners.max(axis=0), edges
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise ValueError(f"window: expected a box, (lower, upper), got {type(window).__name__}")
    lower, upper = (np.atleast_1d(as_float("window", end, ndim=(0, 1))).astype(float) for end in window)
    if lower.shape != (ndim,) or upper.shape != (ndim,):
        raise ValueError(
            f"window: expected {ndim} coordinates for each end like the places, got {lower.shape} and {upper.shape}"
        )
    if np.any(upper <= lower):
        raise ValueError(
            f"window: expected upper ends above the lower ones on every axis, got {lower.tolist()} to {upper.tolist()}"
        )
    return lower, upper, None


def _is_box(window: Any) -> bool:
    """Whether it is a pair of corners; anything else is taken as a polygon."""
    pair = isinstance(window, tuple | list) and len(window) == 2
    return isinstance(window, str) or (pair and np.ndim(window[0]) < 2)


def _edges(window: Any, ndim: int) -> Float[np.ndarray, "E 4"]:
    """The edges of a polygon, holes included."""
    if ndim != 2:
        raise ValueError(
            f"window: expected a box, (lower, upper), for places in {ndim} dimensions, got a polygon"
        )
    try:
        return PolygonAverages([window]).edges(0)
    except ValueError as error:
        raise ValueError(f"window: expected a box, (lower, upper), or one polygon ({error})") from None


def _crossings(edges: Float[np.ndarray, "E 4"], x: float) -> Float[np.ndarray, " C"]:
    """The heights at which a vertical line crosses the boundary of a polygon, in ascending order."""
    ax, ay, bx, by = edges.T
    crossed = (np.minimum(ax, bx) <= x) & (x < np.maximum(ax, bx))
    ax, ay, bx, by = (a[crossed] for a in (ax, ay, bx, by))
    return np.sort(ay + (by - ay) * (x - ax) / (bx - ax))


def _is_inside(edges: Float[np.ndarray, "E 4"], places: Float[np.ndarray, "N 2"]) -> np.ndarray:
    """Whether each place is inside a polygon, by the even-odd rule."""
    return np.array([np.searchsorted(_crossings(edges, x), y) % 2 == 1 for x, y in places])


def _share_inside(
    edges: Float[np.ndarray, "E 4"], lower: np.ndarray, size: np.ndarray, shape: tuple[int, ...]
) -> Float[np.ndarray, "a b"]:
    """The share of each cell's area inside a polygon, from COLUMNS vertical lines per cell, exact along each line."""
    levels = lower[1] + size[1] * np.arange(shape[1] + 1)
    share = np.zeros((shape[0] * COLUMNS, shape[1]))
    for number in range(len(share)):
        ends = _crossings(edges, lower[0] + size[0] * (number + 0.5) / COLUMNS).reshape(-1, 2)
        below = np.sum(np.clip(levels[:, None] - ends[:, 0], 0.0, ends[:, 1] - ends[:, 0]), axis=1)
        share[number] = np.diff(below) / size[1]
    return share.reshape(shape[0], COLUMNS, shape[1]).mean(axis=1)


def _shape(cells: Any, extent: Float[np.ndarray, " D"]) -> tuple[int, ...]:
    """The number of cells along each axis; with a single number the cells are as close to cubes as possible."""
    cells = CELLS.get(len(extent), 16) if cells is None else cells
    counts = np.ceil(cells * extent / np.max(extent) - 1e-9) if np.ndim(cells) == 0 else np.asarray(cells)
    if counts.shape != extent.shape or np.any(counts != np.floor(counts)) or np.any(counts < 1):
        raise ValueError(f"cells: expected a whole number, or one per axis, of at least 1, got {cells!r}")
    return tuple(int(n) for n in counts)


def _exposure(exposure: Any, centres: Float[np.ndarray, "M D"]) -> Float[np.ndarray, " M"]:
    """The exposure at the centre of each cell."""
    found = exposure(centres) if callable(exposure) else 1.0 if exposure is None else exposure
    values = as_float("exposure", found, ndim=(0, 1)).astype(float)
    if values.shape not in ((), (len(centres),)):
        raise ValueError(
            f"exposure: expected a number for each place, shape {(len(centres),)}, got {values.shape}"
        )
    if np.any(values < 0) or not np.any(values > 0):
        raise ValueError(
            f"exposure: expected no negative numbers and some positive ones, got values from {np.min(values):g} to "
            f"{np.max(values):g}"
        )
    return np.broadcast_to(values, (len(centres),))
