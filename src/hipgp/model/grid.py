"""A regular grid of inducing points.

    >>> grid = Grid(origin=(0.0, 0.0), spacing=0.5, shape=(5, 3))
    >>> grid.size, grid.upper
    (15, (2.0, 1.0))

Points are numbered in C order, the last axis fastest. Axes may differ in spacing and size.
"""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from hipgp.model.arguments import as_float
from hipgp.runtime.shown import Shown, numbers

LARGEST_GRID = 2**33  # points; beyond it even one float32 array takes 32 GiB


class Grid(Shown, eqx.Module):
    """Inducing points at `origin + i * spacing`, `i` running over `shape`; one to four axes."""

    origin: tuple[float, ...] = eqx.field(static=True)
    spacing: tuple[float, ...] = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, origin: Any, spacing: Any, shape: int | Sequence[int]):
        points = _point_counts(shape)
        ndim = len(points)
        step = _positive_spacing(spacing, ndim)
        self.origin = tuple(_per_axis("origin", origin, ndim).tolist())
        self.spacing = tuple(step.tolist())
        self.shape = points

    @classmethod
    def cover(
        cls, lower: Any, upper: Any, *, shape: Any = None, spacing: Any = None, margin: Any = 0.0
    ) -> "Grid":
        """The grid that covers the box from `lower` to `upper`, widened by `margin` on every side.

        Give either `shape` (points per axis; the outermost lie on the box) or `spacing` (the box is rounded up to
        whole cells, and centred).
        """
        low = np.atleast_1d(as_float("lower", lower, ndim=(0, 1))).astype(float)
        high = np.atleast_1d(as_float("upper", upper, ndim=(0, 1))).astype(float)
        if low.shape != high.shape:
            raise ValueError(f"upper: expected {len(low)} numbers like lower, got {len(high)}")
        ndim = len(low)
        wide = _per_axis("margin", margin, ndim)
        if np.any(wide < 0):
            raise ValueError(f"margin: expected numbers >= 0, got {tuple(wide.tolist())}")
        low, high = low - wide, high + wide
        if np.any(high <= low):
            raise ValueError(
                f"upper: expected more than lower on every axis, got {tuple(high)} and {tuple(low)}"
            )
        if (shape is None) == (spacing is None):
            raise ValueError(f"shape, spacing: expected exactly one of the two, got {shape} and {spacing}")
        if shape is not None:
            points = _point_counts(shape)
            points = points * ndim if len(points) == 1 else points
            if len(points) != ndim:
                raise ValueError(
                    f"shape: expected a number or {ndim} of them (one per axis), got {len(points)}"
                )
            return cls(low, (high - low) / (np.array(points) - 1), points)
        step = _positive_spacing(spacing, ndim)
        with np.errstate(over="ignore"):  # _check_size refuses infinitely many cells
            span = (high - low) / step
        # A box of a whole number of cells must not gain one by rounding.
        counts = np.maximum(np.ceil(span - 1e-9), 1.0) + 1
        _check_size(counts.tolist())
        cells = counts.astype(int) - 1
        return cls(low - (cells * step - (high - low)) / 2, step, tuple(int(n) + 1 for n in cells))

    def _shown(self) -> tuple[str, dict[str, str]]:
        fields = {"shape": self.shape, "lower": self.lower, "upper": self.upper, "spacing": self.spacing}
        return f"Grid({', '.join(f'{name}={numbers(value)}' for name, value in fields.items())})", {}

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def lower(self) -> tuple[float, ...]:
        return self.origin

    @property
    def upper(self) -> tuple[float, ...]:
        return tuple(o + h * (n - 1) for o, h, n in zip(self.origin, self.spacing, self.shape, strict=True))

    @property
    def axes(self) -> tuple[Float[np.ndarray, " n"], ...]:
        """The coordinates along each axis."""
        return tuple(
            o + h * np.arange(n) for o, h, n in zip(self.origin, self.spacing, self.shape, strict=True)
        )

    def coordinates(self) -> Float[np.ndarray, "M D"]:
        """Every grid point, in C order."""
        return np.stack(np.meshgrid(*self.axes, indexing="ij"), axis=-1).reshape(-1, self.ndim)

    def cells(self, x: Float[np.ndarray, "... D"]) -> tuple[np.ndarray, np.ndarray]:
        """The index of the lowest corner of the cell that each place lies in, and the place within it, 0 to 1 per axis."""
        position = (np.asarray(x) - np.asarray(self.origin)) / np.asarray(self.spacing)
        corner = np.clip(np.floor(position).astype(int), 0, np.asarray(self.shape) - 2)
        return corner, position - corner

    def outside(self, x: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "..."]:
        """The distance of each place from the grid, the largest over the axes; 0 inside and within rounding of the edge."""
        x = np.asarray(x)
        if np.all(x >= np.asarray(self.lower)) and np.all(x <= np.asarray(self.upper)):
            return np.zeros(x.shape[:-1])
        slack = 1e-5 * np.asarray(self.spacing)  # float32 coordinates on the edge count as inside
        below = np.asarray(self.lower) - x
        above = x - np.asarray(self.upper)
        far = np.maximum(np.maximum(below, above), 0.0)
        return np.max(np.where(far > slack, far, 0.0), axis=-1)


def _per_axis(name: str, value: Any, ndim: int) -> np.ndarray:
    array = as_float(name, value, ndim=(0, 1)).astype(float)
    if array.ndim == 1 and len(array) != ndim:
        raise ValueError(f"{name}: expected a number or {ndim} of them (one per axis), got {len(array)}")
    return np.broadcast_to(array, (ndim,)).copy()


def _positive_spacing(spacing: Any, ndim: int) -> np.ndarray:
    step = _per_axis("spacing", spacing, ndim)
    if np.any(step <= 0):
        raise ValueError(f"spacing: expected positive numbers, got {tuple(step.tolist())}")
    return step


def _point_counts(shape: Any) -> tuple[int, ...]:
    counts = tuple(shape) if np.iterable(shape) else (shape,)
    if not 1 <= len(counts) <= 4:
        raise ValueError(f"shape: expected one whole number per axis, for 1 to 4 axes, got {shape!r}")
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in counts):
        raise ValueError(f"shape: expected whole numbers, got {shape!r}")
    if min(counts) < 2:
        raise ValueError(f"shape: expected at least 2 points per axis, got {shape!r}")
    _check_size(counts)
    return tuple(int(n) for n in counts)


def _check_size(shape: Sequence[float]) -> None:
    size = math.prod(float(n) for n in shape)
    if size > LARGEST_GRID:
        memory = size * 8 * 2 ** len(shape) / 2**30
        raise ValueError(
            f"shape: expected at most 8.6e9 points, got {' x '.join(f'{n:.6g}' for n in shape)} = {size:.2g}, which "
            f"need about {memory:,.0f} GiB for one float64 array on their torus; use a larger spacing"
        )
