"""Stencils: the p^D grid points around a node."""

from typing import Any

import numpy as np
from jaxtyping import Float

from hipgp.model.grid import Grid
from hipgp.runtime.arrays import AnyArray

STENCIL = 4  # default p, the width of a stencil in grid points per axis


def wide_stencil(grid: Grid) -> int:
    """Return a stencil width that makes local weights nearly equal to the exact ones."""
    return 8 if grid.ndim <= 2 else 4


def stencil_shape(grid: Grid, p: int) -> tuple[int, ...]:
    """Return the number of points of a stencil along each axis: p, or all points of a shorter axis."""
    return tuple(min(p, n) for n in grid.shape)


def stencil_offsets(grid: Grid, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets from a stencil's first point to all its points: in cells per axis, and in the grid's flat order."""
    axes = [np.arange(w) for w in stencil_shape(grid, p)]
    cells = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, grid.ndim)
    return cells, np.asarray(np.ravel_multi_index(tuple(cells.T), grid.shape))


def locate_stencils(grid: Grid, x: Float[AnyArray, "n D"], p: int, xp: Any = np) -> tuple[Any, Any]:
    """Return, for each node, its stencil's first point in the grid's flat order, and the node's offset from it in cells.

    `xp` is NumPy or jax.numpy. The position is a product, not a quotient, which XLA would turn into one: so both find the
    same stencil for a place on a grid line.
    """
    position = (x - xp.asarray(grid.origin)) * xp.asarray(1 / np.asarray(grid.spacing))
    width = np.asarray(stencil_shape(grid, p))
    first = xp.clip(xp.floor(position) - (width // 2 - 1), 0, np.asarray(grid.shape) - width)
    strides = np.cumprod((1, *grid.shape[:0:-1]))[::-1]
    begin = sum(first[:, axis].astype(int) * int(stride) for axis, stride in enumerate(strides))
    return begin, position - first
