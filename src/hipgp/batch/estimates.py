"""Estimates of the memory that a fit, a prediction or draws will take, before they begin.

Problems that clearly do not fit are refused. Predictions at many places are made in chunks, which bounds their memory.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int

from hipgp.model.data import Data
from hipgp.model.functionals import Functional, LineIntegrals
from hipgp.model.grid import Grid
from hipgp.runtime import memory
from hipgp.weights.matrix_free import stored_bytes
from hipgp.weights.stencil_geometry import stencil_shape

BYTES_KEPT = 24  # bytes per entry of W that stay in memory: as computed, and as laid out
BYTES_AT_PEAK = 60  # bytes per entry of W while it is computed, transposed and laid out
NEAR_POINT, NEAR_OTHER = 2_000, 16_000  # bytes for the neighbours of one place
PIECE = 0.25  # fraction of the memory that one chunk of a prediction may take
LEAST_PLACES = 1024  # least number of places in a chunk


def check_weights(grid: Grid, data: Data, p: int) -> None:
    """Refuse data whose local weights, with stencils of p points per axis, do not fit into memory."""
    entries = data_entries(grid, data, p)
    lines = all(isinstance(functional, LineIntegrals) for functional in data.functionals)
    advice = 'use Batch(weights="matrix-free")' if lines else "use fewer observations, or Batch(stencil=2)"
    what = f"{len(data):,} observations with {entries:.3g} weights"
    memory.check("data", what, BYTES_KEPT * entries, advice)


def data_entries(grid: Grid, data: Data, p: int) -> float:
    """An estimate of the number of entries of W, with stencils of p points per axis."""
    return sum(_entries(grid, functional, p, data.dtype) for functional in data.functionals)


def data_nodes(grid: Grid, data: Data) -> float:
    """An estimate of the number of quadrature nodes of the data on this grid."""
    return sum(len(f) if f.single else len(f) * _nodes_each(grid, f) for f in data.functionals)


def check_places(functional: Functional) -> None:
    """Refuse a number of places for which even the results do not fit into memory."""
    if functional.uncertain:
        raise ValueError(
            "functional: expected certain places to predict, got some with a std; predict at several places that are "
            "possible, or leave std out"
        )
    what = f"{len(functional):,} functionals"
    memory.check("functional", what, 32.0 * len(functional), "predict some of them at a time")


def check_joint_draws(at: Functional, grid: Grid, p: int, dtype: Any) -> None:
    """Refuse draws at places whose local weights do not fit into memory; joint draws need all weights at once."""
    entries = _entries(grid, at, p, dtype)
    what = f"{len(at):,} functionals with {entries:.3g} weights"
    memory.check("at", what, BYTES_KEPT * entries, "draw at fewer places, or on the grid")


def check_draws(count: int, places: int, itemsize: int) -> None:
    """Refuse more draws than fit into memory."""
    what = f"{count:,} draws of {places:,} values"
    needed = (8.0 + itemsize) * count * places  # as computed, and converted and concatenated
    memory.check("count", what, needed, "draw fewer at a time, with another key each, or at fewer places")


def pieces(
    functional: Functional, grid: Grid, p: int, dtype: Any, samples: int
) -> Iterator[Int[np.ndarray, " n"]]:
    """The numbers of all functionals, in chunks whose prediction takes a quarter of the memory."""
    count = len(functional)
    entries = NEAR_POINT if functional.single else NEAR_OTHER
    each = BYTES_AT_PEAK * _entries(grid, functional, p, dtype) / count + entries + 32.0 * samples
    size = max(LEAST_PLACES, int(PIECE * memory.bytes_available() / each))
    for begin in range(0, count, size):
        yield np.arange(begin, min(begin + size, count))


def _entries(grid: Grid, functional: Functional, p: int, dtype: Any) -> float:
    """An estimate of the number of entries of these rows of W, exact for functionals of one node."""
    count, width = len(functional), float(np.prod(stencil_shape(grid, p)))
    if functional.single:
        return count * width
    if isinstance(functional, LineIntegrals):
        return stored_bytes(grid, [functional], p, dtype) / (2 * (np.dtype(dtype).itemsize + 4))
    return (
        count * _nodes_each(grid, functional) + count * width
    )  # neighbouring nodes share grid points, and so entries


def _nodes_each(grid: Grid, functional: Functional) -> float:
    """The mean number of nodes of one of these functionals, from a sample."""
    some = np.linspace(0, len(functional) - 1, min(len(functional), 16)).astype(int)
    return float(np.mean([functional.nodes_each(some[i : i + 1], grid.spacing) for i in range(len(some))]))
