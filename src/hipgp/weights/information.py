"""What points tell of the grid, W'N^-1 W and W'N^-1 y, added up batch by batch: the points themselves are not kept.

All points of a cell share a stencil. Its Gram matrix, the sum over them of w w' / s^2 with the residual variance in s^2, is a few
hundred numbers for each cell. The Gram matrices give W'N^-1 W as a band matrix, and draws from N(0, W'N^-1 W), which sampling needs.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.linalg.band import Band
from hipgp.linalg.matrices import cholesky, map_matrices
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.runtime import memory
from hipgp.runtime.arrays import AnyArray, on_cpu, on_device
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.threads import thread_count, with_same_settings
from hipgp.weights.stencil_geometry import locate_stencils, stencil_offsets
from hipgp.weights.stencils import stencil_weights

CHUNK = 2**11, 2**19  # points whose outer products are in memory together: on a CPU, on a GPU
PIECE = 2**16, 2**22  # points of one call of the compiled program
BLOCK = 2**20, 2**22  # points that a thread takes at once
SORTED = 2**25  # bytes of Gram matrices from which a CPU's block is sorted by cell: they are in no cache
TOGETHER = 2**30  # bytes that the Gram matrices of all threads may take, each of which has its own
RELATIVE_JITTER = 1e-12  # of a Gram matrix's trace, so that one of few points has a Cholesky factor

Points = tuple[Float[AnyArray, "n D"], Float[AnyArray, " n"], Float[AnyArray, " n"]]


class Information(NamedTuple):
    """Sums over all points. `gram` and `pulled` have a row for each grid point: that of the stencils that begin there."""

    gram: Float[Array, "M P P"]  # sum of w w' / s^2
    pulled: Float[Array, "M P"]  # sum of w y / s^2
    totals: Float[
        Array, " 4"
    ]  # number of points, sum of y^2 / s^2, sum of v over noise variances, number not usable


def information_bytes(grid: Grid, p: int) -> float:
    """Return how many bytes the sums take, with one more copy where they are turned into a band matrix."""
    count = len(stencil_offsets(grid, p)[0])
    return 2 * 8.0 * grid.size * (count**2 + count)


def accumulate(
    kernel: Kernel, grid: Grid, p: int, blocks: Iterator[Points], check: Callable[[Any], None]
) -> Information:
    """Add up the information of points: places, values and noise variances, block by block.

    `check` is called with the totals so far after each block, and raises where points are not usable. On a CPU several
    threads add up, each in sums of its own unless these are large.
    """
    count = len(stencil_offsets(grid, p)[0])
    shapes = (grid.size, count, count), (grid.size, count), (4,)
    size = 8 * grid.size * count**2
    crowded, lock, over = on_cpu() and size > SORTED, threading.Lock(), threading.Event()
    workers = max(1, min(thread_count(), TOGETHER // size)) if on_cpu() else 1

    def worker() -> Information:
        sums = Information(*(jnp.zeros(shape) for shape in shapes))
        try:
            while not over.is_set():
                with lock:  # reading is one after the other, beside the sums
                    block = next(blocks, None)
                if block is None:
                    return sums
                for piece in _cut(_by_cell(grid, p, block) if crowded else block, PIECE):
                    sums = _added((kernel, grid, p, on_cpu(), *_filled_up(piece)), sums)
                check(np.asarray(sums.totals))
            return sums
        except BaseException:
            over.set()  # the others need not read on
            raise

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(with_same_settings(worker)) for _ in range(workers)]
        try:
            found = [future.result() for future in futures]
        except BaseException:  # an error, or Ctrl-C here while the others read
            over.set()
            raise
    return found[0] if len(found) == 1 else jax.tree.map(lambda *parts: sum(parts), *found)


def in_blocks(points: Points) -> Iterator[Points]:
    """Cut a batch into blocks, which threads take one by one."""
    return _cut(points, BLOCK)


def _cut(points: Points, sizes: tuple[int, int]) -> Iterator[Points]:
    """Cut points into pieces of one size, the last of them shorter."""
    most = sizes[not on_cpu()]
    for begin in range(0, len(points[1]), most):
        yield tuple(a[begin : begin + most] for a in points)  # type: ignore[misc]


def _by_cell(grid: Grid, p: int, block: Points) -> Points:
    """Sort points by their stencils, so that sums of one cell come one after the other."""
    with np.errstate(invalid="ignore"):  # places that are not numbers are refused when they are added up
        begin = locate_stencils(grid, np.asarray(block[0], float), p)[0].astype(np.uint32)
    order = np.argsort(begin.astype(np.uint16), kind="stable")  # in two passes, each of a fast sort
    order = order[np.argsort((begin >> 16).astype(np.uint16)[order], kind="stable")]
    return tuple(np.asarray(a)[order] for a in block)  # type: ignore[return-value]


def _filled_up(piece: Points) -> tuple[Any, ...]:
    """Fill a piece up with points that count nothing."""
    x, y, variance = piece
    missing = PIECE[not on_cpu()] - len(y)
    xp = jnp if isinstance(x, jax.Array) else np
    used = xp.ones(len(y))
    if missing:
        x = xp.concatenate([x, xp.broadcast_to(x[:1], (missing, x.shape[1]))])
        y, variance, used = (
            xp.concatenate([a, xp.full(missing, fill, float)])
            for a, fill in ((y, 0.0), (variance, 1.0), (used, 0.0))
        )
    return tuple(a if isinstance(a, jax.Array) else on_device(a) for a in (x, y, variance, used))


@bounded_jit(donate="all-except-first")
def _added(block: tuple[Any, ...], sums: Information) -> Information:
    kernel, grid, p, cpu, *points = block
    chunk = CHUNK[not cpu]
    parts = [a.astype(float).reshape(-1, chunk, *a.shape[1:]) for a in points]
    lower, upper = (jnp.asarray(a) for a in (grid.lower, grid.upper))

    def add(sums: Information, part: list[Array]) -> tuple[Information, None]:
        x, y, variance, used = part
        slack = 1e-9 * (upper - lower)
        good = jnp.all((x >= lower - slack) & (x <= upper + slack), axis=1)
        good &= jnp.isfinite(y) & (variance > 0) & jnp.isfinite(variance)
        x, y = jnp.where(good[:, None], x, lower), jnp.where(good, y, 0.0)
        begin, offset = locate_stencils(grid, x, p, jnp)
        w, v = stencil_weights(kernel, grid, p, offset, None, None)
        precision = jnp.where(good, used / (variance + v), 0.0)
        scaled = w * precision[:, None]
        of_all = [used, precision * y**2, jnp.where(good, used * v / variance, 0.0), used * ~good]
        return Information(
            sums.gram.at[begin].add(scaled[:, :, None] * w[:, None, :]),
            sums.pulled.at[begin].add(scaled * y[:, None]),
            sums.totals + jnp.stack([jnp.sum(a) for a in of_all]),
        ), None

    return jax.lax.scan(add, sums, parts)[0]


def band_of(grid: Grid, p: int, gram: Float[Array, "M P P"]) -> Band:
    """Return W'N^-1 W as a band matrix."""
    steps = stencil_offsets(grid, p)[1]
    between = steps[None] - steps[:, None]
    offsets = np.unique(between[between >= 0])
    first, second = np.nonzero(between >= 0)
    number = np.searchsorted(offsets, between[first, second])
    return Band(_diagonals(gram, first, second, steps[first], number, len(offsets)), tuple(offsets.tolist()))


@bounded_jit()
def _diagonals(gram: Array, first: Any, second: Any, steps: Any, number: Any, count: int) -> Array:
    def add(diagonals: Array, pair: tuple[Array, ...]) -> tuple[Array, None]:
        i, j, step, k = pair
        entries = jnp.roll(columns[i * gram.shape[1] + j], step)  # no stencil reaches beyond the last point
        return diagonals.at[k].add(entries), None

    columns = gram.reshape(len(gram), -1).T  # one after the other in memory
    pairs = tuple(jnp.asarray(a) for a in (first, second, steps, number))
    return jax.lax.scan(add, jnp.zeros((count, len(gram))), pairs)[0]


@bounded_jit()
def scattered(grid: Grid, p: int, values: Float[Array, "... M P"]) -> Float[Array, "... M"]:
    """Return the sum over stencils of values at their points; a stencil's values are in the row of its first point."""
    steps = jnp.asarray(stencil_offsets(grid, p)[1])
    add = lambda total, one: (total + jnp.roll(one[0], one[1], axis=-1), None)
    return jax.lax.scan(add, jnp.zeros(values.shape[:-1]), (jnp.moveaxis(values, -1, 0), steps))[0]


@bounded_jit()
def draw_information(
    grid: Grid, p: int, gram: Float[Array, "M P P"], key: Array, count: int
) -> Float[Array, "count M"]:
    """Return draws from N(0, W'N^-1 W): the noise as the grid sees it."""
    size = gram.shape[1]

    def root(matrix: Array) -> Array:
        jitter = RELATIVE_JITTER * jnp.trace(matrix) + jnp.finfo(matrix.dtype).tiny
        return cholesky(matrix + jitter * jnp.eye(size))

    roots = map_matrices(root, gram)
    one = lambda k: scattered(grid, p, jnp.einsum("mij,mj->mi", roots, jax.random.normal(k, gram.shape[:2])))
    return jax.lax.map(lambda number: one(jax.random.fold_in(key, number)), jnp.arange(count))


def check_memory(grid: Grid, p: int) -> None:
    """Raise a ValueError where the sums do not fit into memory."""
    memory.check(
        "grid",
        f"{grid.size:,} grid points with the sums of points in each cell, from stencils of {p} points per axis",
        information_bytes(grid, p),
        "use a grid with a larger spacing, or Batch(stencil=2)",
    )
