"""A grid for data that came without one, and a check that it fits into memory."""

import numpy as np

import hipgp as hg
from hipgp.apps.cli.console import BadInput
from hipgp.model.kernel_scales import shortest_lengthscale
from hipgp.runtime import memory

POINTS = 200_000  # most points of a grid that the user did not ask for


def _extent(data: hg.Data) -> tuple[np.ndarray, np.ndarray]:
    """The corners of the box that holds all data."""
    places = np.concatenate([b.functional.places().reshape(-1, data.ndim) for b in data.blocks])
    low, high = places.min(axis=0), places.max(axis=0)
    flat = high <= low
    if np.any(flat):
        raise BadInput(
            f"coordinate number {int(np.flatnonzero(flat)[0]) + 1} is the same in all rows; leave it out"
        )
    return low, high


def wanted(data: hg.Data, spacing: tuple[float, ...], shape: tuple[int, ...]) -> hg.Grid:
    """The grid that covers the data with the given spacing, or the given shape."""
    low, high = _extent(data)
    if shape:
        grid = hg.Grid.cover(low, high, shape=shape[0] if len(shape) == 1 else shape)
    else:
        grid = hg.Grid.cover(low, high, spacing=spacing[0] if len(spacing) == 1 else spacing)
    return _checked(grid)


def _checked(grid: hg.Grid) -> hg.Grid:
    """The grid, if what it needs fits into memory."""
    have, need = memory.bytes_available(), memory.torus_bytes(2.0**grid.ndim * grid.size)
    if not memory.fits(need):
        factor = (need / (0.5 * have)) ** (1 / grid.ndim)
        coarser = ",".join(f"{h * factor:.3g}" for h in grid.spacing)
        raise BadInput(
            f"a grid of {' x '.join(map(str, grid.shape))} points needs about {memory.shown(need)}, "
            f"and this machine has {memory.shown(have)}; try --spacing {coarser}"
        )
    return grid


def first(data: hg.Data) -> hg.Grid:
    """A grid to learn on, which only sets the bounds of the lengthscale."""
    low, high = _extent(data)
    points = {1: 1000, 2: 100, 3: 40, 4: 16}[data.ndim]
    longest = np.max(high - low) if len(set(data.units)) < 2 else high - low  # km and days are not compared
    return hg.Grid.cover(
        low, high, spacing=_spacing(high - low, np.broadcast_to(longest, data.ndim) / points)
    )


def assumed_lengthscale(data: hg.Data) -> tuple[float, ...]:
    """A lengthscale along each axis for plans before anything is learned: a tenth of the data's extent."""
    low, high = _extent(data)
    return tuple(((high - low) / 10).tolist())


def fitted(data: hg.Data, gp: hg.GP) -> hg.Grid:
    """Three points to the shortest lengthscale, or fewer where that would take more than POINTS."""
    low, high = _extent(data)
    shortest = shortest_lengthscale(gp.kernel, data.ndim)
    return _checked(hg.Grid.cover(low, high, spacing=_spacing(high - low, shortest / 3)))


def _spacing(size: np.ndarray, step: np.ndarray) -> np.ndarray:
    """`step`, or coarser where it would take more than POINTS; at least four cells an axis."""
    step = np.minimum(step, size / 4)
    for _ in range(20):
        count = float(np.prod(np.ceil(size / step) + 1))
        if count <= POINTS:
            break
        step = np.minimum(step * (count / POINTS) ** (1 / len(size)) * 1.01, size / 4)
    return step
