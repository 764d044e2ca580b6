"""Sparse matrices as gathers, for CPU and GPU alike.

A scatter-add is 4 to 5 times slower than a gather on a CPU and no better on a GPU, so a matrix is kept by rows *and* by
columns, and both products are gathers. Rows of like length lie side by side, short ones padded with zeros: everything is a
dense array, (entries, rows), of which one pass takes the next entries of all. Rows wider than WIDTH are folded: the second
WIDTH entries of each lie behind the first of all, and so on. Neighbouring rows should have neighbouring columns: then they
find in the cache what the one before them fetched.
"""

import functools
import operator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.linalg.csr import CSR, contiguous_transpose
from hipgp.runtime.buckets import round_up_to_power_of_two, slice_sizes
from hipgp.runtime.precision import AnyArray, on_device
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.threads import map_in_threads, run_both

WIDTH = 32  # entries of a row that lie in one column
LONGEST_ROW = 32 * WIDTH  # longer rows are cut into pieces
ENTRIES_PER_PASS = 8  # entries taken together on a CPU
# Padding worth the same as another slab to be compiled and started, in entries: on a CPU, on a GPU. A fold costs a quarter.
SLICE_COST = 2**18, 2**20
ROWS_AT_ONCE = 2**16
LAYOUT_BYTES = 44  # bytes that a GPU needs for each entry while it transposes and lays out a matrix


class EllpackSlice(eqx.Module):
    """Rows side by side, entry after entry; `folds` says how often, and how many of them: (times, rows), one after the other."""

    columns: Int[Array, "w C"]
    values: Float[Array, "w C"]
    row_parts: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def matmul(self, x: Float[Array, "n *b"]) -> Float[Array, "r *b"]:
        """Each row's product with x, sides behind."""
        found = _sum_over_entries_in_passes(self, x) if _on_cpu() else _sum_over_entries(self, x)
        parts, begin = [], 0
        for times, rows in self.row_parts:
            every = [found[begin + i * rows : begin + (i + 1) * rows] for i in range(times)]
            parts.append(functools.reduce(operator.add, every))
            begin += times * rows
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _sum_over_entries(slab: EllpackSlice, x: Float[Array, "n *b"]) -> Float[Array, "C *b"]:
    """The sum over a slab's first axis on a GPU."""
    if x.ndim == 1:
        return jnp.sum(slab.values * jnp.take(x, slab.columns, mode="clip"), axis=0)
    # Sides behind: one read of memory brings all of them. Unrolled, since a reduction that gathers is six times slower.
    entry = lambda columns, values: values[:, None] * jnp.take(x, columns, axis=0, mode="clip")
    total = functools.reduce(operator.add, map(entry, slab.columns, slab.values))
    return jax.lax.optimization_barrier(total)


def _sum_over_entries_in_passes(slab: EllpackSlice, x: Float[Array, " n"]) -> Float[Array, " C"]:
    """The sum over a slab's first axis, A_PASS at a time: on a CPU three times as fast as one reduction there."""
    entry = lambda columns, values: values * jnp.take(x, columns, mode="clip")
    take = lambda begin, size: [
        jax.lax.dynamic_slice_in_dim(a, begin, size, axis=0) for a in (slab.columns, slab.values)
    ]
    some = lambda begin, size: functools.reduce(operator.add, map(entry, *take(begin, size)))
    first = (
        len(slab.columns) - 1
    ) % ENTRIES_PER_PASS + 1  # what is left over by whole passes, or one of them
    add = lambda i, total: total + some(first + i * ENTRIES_PER_PASS, ENTRIES_PER_PASS)
    passes = (len(slab.columns) - first) // ENTRIES_PER_PASS
    return jax.lax.fori_loop(0, passes, add, some(0, first)) if passes else some(0, first)


class SlicedEllpack(eqx.Module):
    """One direction of a sparse product: y = A x."""

    slices: tuple[EllpackSlice, ...]
    # which of all slabs' sums, and after them a zero, is each row's; None: the same
    position: Int[Array, " m"] | None
    long_rows: Int[Array, "2 p"] | None  # of long rows: which of all sums, and of which row
    row_count: int = eqx.field(static=True)

    @bounded_jit()
    def matmul(self, x: Float[Array, "... n"]) -> Float[Array, "... m"]:
        sides = x.reshape(-1, x.shape[-1])
        if len(sides) == 0:  # a trend without columns
            return jnp.zeros((*x.shape[:-1], self.row_count), x.dtype)
        if len(sides) == 1:
            y = self._product(sides[0])
        elif _on_cpu():  # sides take half as long again together as in turn
            y = jax.lax.map(self._product, sides)
        else:
            y = self._product(_vectors_last(sides)).T
        return y.reshape(*x.shape[:-1], self.row_count)

    def _product(self, x: Float[Array, "n *b"]) -> Float[Array, "m *b"]:
        none = jnp.zeros((1, *x.shape[1:]), x.dtype)
        if self.position is None:
            return self.slices[0].matmul(x)
        sums = jnp.concatenate([*(slab.matmul(x) for slab in self.slices), none])
        y = jnp.take(sums, self.position, axis=0)
        if self.long_rows is None:
            return y
        return y.at[self.long_rows[1]].add(jnp.take(sums, self.long_rows[0], axis=0))


def _vectors_last(sides: Float[Array, "b n"]) -> Float[Array, "n b"]:
    """Sides next to one another in memory: a transpose alone would leave them where they are."""
    return jax.lax.optimization_barrier(jnp.stack(list(sides), axis=-1))


class SparseMatrix(eqx.Module):
    """A sparse matrix with both products, batched in front."""

    rows: SlicedEllpack
    transposed: SlicedEllpack | None  # None: the transpose is rarely asked for, and scatters
    column_count: int = eqx.field(static=True)

    def matmul(self, x: Float[Array, "... n"]) -> Float[Array, "... m"]:
        return self.rows.matmul(x)

    def transpose_matmul(self, y: Float[Array, "... m"]) -> Float[Array, "... n"]:
        return self._scattered(y) if self.transposed is None else self.transposed.matmul(y)

    @bounded_jit()
    def _scattered(self, y: Float[Array, "... m"]) -> Float[Array, "... n"]:
        like = jax.ShapeDtypeStruct((*y.shape[:-1], self.column_count), y.dtype)
        return jax.linear_transpose(self.rows.matmul, like)(y)[0]

    @staticmethod
    def from_csr(entries: CSR, dtype: Any, store_transpose: bool = True) -> "SparseMatrix":
        """`often`: whether products with the transpose are as many as with the matrix."""
        entries = _on_layout_device(entries)
        if not store_transpose:
            return SparseMatrix(sliced_ellpack(entries, dtype), None, entries.column_count)
        both = run_both(
            lambda: sliced_ellpack(entries, dtype), lambda: sliced_ellpack(entries.transpose(), dtype)
        )
        return SparseMatrix(both[0], both[1], entries.column_count)

    @staticmethod
    def from_scipy(matrix: Any, dtype: Any) -> "SparseMatrix":
        return SparseMatrix.from_csr(CSR.from_scipy(scipy.sparse.csr_array(matrix)), dtype)


class BlockRows(eqx.Module):
    """A sparse matrix whose rows come in dense blocks with columns in common; S r is (..., G b), block by block."""

    values: Float[Array, "G b k"]
    columns: Int[Array, "G k"]
    scatter: SlicedEllpack  # adds up what all blocks say of each column

    def matmul(self, x: Float[Array, "... n"]) -> Float[Array, "... m"]:
        seen = jnp.take(x, self.columns, axis=-1)
        rows = (
            jnp.sum(self.values * seen[..., None, :], axis=-1)
            if _one_vector_on_gpu(x)
            else jnp.einsum("gbk,...gk->...gb", self.values, seen)
        )
        return rows.reshape(*x.shape[:-1], -1)

    def transpose_matmul(self, y: Float[Array, "... m"]) -> Float[Array, "... n"]:
        groups, own, _ = self.values.shape
        rows = y.reshape(*y.shape[:-1], groups, own)
        parts = (
            jnp.sum(self.values * rows[..., None], axis=-2)
            if _one_vector_on_gpu(y)
            else jnp.einsum("gbk,...gb->...gk", self.values, rows)
        )
        return self.scatter.matmul(parts.reshape(*y.shape[:-1], -1))

    @staticmethod
    def from_blocks(
        values: Float[AnyArray, "G b k"], columns: np.ndarray, used: np.ndarray, count: int
    ) -> "BlockRows":
        """Blocks over `count` columns; those not `used` stand for none."""
        flat = np.flatnonzero(used)
        entries = np.ones(len(flat)), (columns.ravel()[flat], flat)
        table = scipy.sparse.csr_array(entries, shape=(count, used.size))
        back = sliced_ellpack(CSR.from_scipy(table), values.dtype)
        return BlockRows(jnp.asarray(values), on_device(columns, np.int32), back)


def _one_vector_on_gpu(x: Float[Array, "... n"]) -> bool:
    """Whether one side on a GPU is in question: small matrix products there take longer than it takes to read them."""
    return x.size == x.shape[-1] and jax.default_backend() != "cpu"


def _on_layout_device(entries: CSR) -> CSR:
    """On a GPU there, unless so many would crowd it: sorted and copied, they take three times what is left of them."""
    if _on_cpu():
        return entries
    card = jax.local_devices()[0].memory_stats() or {}
    crowded = "bytes_limit" in card and len(entries.values) * LAYOUT_BYTES > card["bytes_limit"] / 4
    return entries if crowded else entries.to_device()


class _RowPieces(NamedTuple):
    """Pieces of rows: where each begins among the entries, how long it is, and whose it is."""

    begin: Int[np.ndarray, " p"]
    length: Int[np.ndarray, " p"]
    row: Int[np.ndarray, " p"]


def sliced_ellpack(entries: CSR, dtype: Any) -> SlicedEllpack:
    """One direction of a sparse matrix."""
    entries = _on_layout_device(entries)
    stretches, counts = _split_long_rows(entries.starts), entries.row_lengths
    order = np.argsort(-stretches.length.astype(np.int16), kind="stable")
    sizes = slice_sizes(stretches.length[order], len(counts), WIDTH, SLICE_COST[not _on_cpu()])
    classes, place, total = [], np.full(len(order), sum(rows for _, rows in sizes), np.int32), 0
    ends = np.cumsum([rows for _, rows in sizes])
    for (width, rows), end in reversed(list(zip(sizes, ends, strict=True))):
        some = np.sort(order[end - rows : end])  # neighbours in memory are neighbours in space
        place[some] = total + np.arange(len(some), dtype=np.int32)
        classes.append((width, rows, some))
        total += rows
    alone = counts[stretches.row] <= LONGEST_ROW
    long = place[~alone], stretches.row[~alone]
    where = np.full(len(counts), total, np.int32)
    where[stretches.row[alone]] = place[alone]
    same = len(sizes) == 1 and np.array_equal(where, np.arange(total))
    return SlicedEllpack(
        _slices(entries, stretches, classes, dtype),
        None if same else on_device(where),
        None if np.all(alone) else on_device(_long_row_pieces(*long, zero=total), np.int32),
        len(counts),
    )


def _long_row_pieces(
    place: Int[np.ndarray, " p"], row: Int[np.ndarray, " p"], zero: int
) -> Int[np.ndarray, "2 p"]:
    """Which sums go to which rows, and some zeros to the first."""
    missing = round_up_to_power_of_two(len(place)) - len(place)
    return np.stack([np.pad(place, (0, missing), constant_values=zero), np.pad(row, (0, missing))])


def _split_long_rows(starts: Int[np.ndarray, " m+1"]) -> _RowPieces:
    """All rows, those that are too long in pieces."""
    counts = np.diff(starts)
    pieces = np.maximum(-(-counts // LONGEST_ROW), 1)
    row = np.repeat(np.arange(len(counts)), pieces)
    number = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = starts[row] + number * LONGEST_ROW
    return _RowPieces(begin, np.minimum(LONGEST_ROW, starts[row + 1] - begin), row)


class _SliceLayout(NamedTuple):
    """A slab before it is filled: for each of its columns where its entries begin, and how many there are."""

    begin: Int[np.ndarray, " C"]
    count: Int[np.ndarray, " C"]
    height: int
    row_parts: tuple[tuple[int, int], ...]


def _slices(
    entries: CSR, stretches: _RowPieces, classes: list[tuple[int, int, np.ndarray]], dtype: Any
) -> tuple[EllpackSlice, ...]:
    """Stretches side by side: those of each class (width, rows, members) padded to its width, wide ones folded."""
    apart, wide = [[c] for c in classes if c[0] <= WIDTH], [c for c in classes if c[0] > WIDTH]
    empty = [_slice_layout(stretches, some) for some in (*apart, wide) if some]
    if entries.on_host:
        return tuple(_filled_on_host(entries, columns, dtype) for columns in empty)
    begins, counts = ([on_device(getattr(c, name), np.int64) for c in empty] for name in ("begin", "count"))
    found = _filled_on_device(
        entries.columns, entries.values, begins, counts, tuple(c.height for c in empty), np.dtype(dtype)
    )
    return tuple(EllpackSlice(*arrays, c.row_parts) for arrays, c in zip(found, empty, strict=True))


def _slice_layout(stretches: _RowPieces, classes: list[tuple[int, int, np.ndarray]]) -> _SliceLayout:
    height = min(classes[0][0], WIDTH)
    begins, counts = [], []
    for width, rows, some in classes:
        none = np.zeros(rows - len(some), int)
        for skipped in range(0, width, height):
            begins += [stretches.begin[some] + skipped, none]
            counts += [np.clip(stretches.length[some] - skipped, 0, height), none]
    folds = tuple((width // height, rows) for width, rows, _ in classes)
    return _SliceLayout(np.concatenate(begins), np.concatenate(counts), height, folds)


def _filled_on_host(entries: CSR, empty: _SliceLayout, dtype: Any) -> EllpackSlice:
    height, each = empty.height, np.arange(empty.height)[:, None]
    ready = len(empty.begin) * height
    # all alike: they are there already
    if np.all(empty.count == height) and np.array_equal(empty.begin, np.arange(0, ready, height)):
        across = lambda a, kind: on_device(contiguous_transpose(a[:ready].reshape(-1, height), kind))
        return EllpackSlice(across(entries.columns, np.int32), across(entries.values, dtype), empty.row_parts)
    columns = np.empty((height, len(empty.begin)), np.int32)
    values = np.empty(columns.shape, dtype)

    def fill(first: int) -> None:  # a few at a time: indices take more memory than entries
        here = slice(first, first + ROWS_AT_ONCE)
        inside = each < empty.count[here]
        at = np.where(inside, empty.begin[here] + each, 0)
        columns[:, here] = entries.columns.take(at)  # of padding, any
        values[:, here] = entries.values.take(at) * inside

    for _ in map_in_threads(fill, ((first,) for first in range(0, columns.shape[1], ROWS_AT_ONCE))):
        pass
    return EllpackSlice(on_device(columns), on_device(values), empty.row_parts)


@eqx.filter_jit
def _filled_on_device(
    columns: AnyArray,
    values: AnyArray,
    begins: list[Array],
    counts: list[Array],
    heights: tuple[int, ...],
    dtype: Any,
) -> list[tuple[Array, Array]]:
    """The same of all slabs where JAX computes."""
    out = []
    for begin, count, height in zip(begins, counts, heights, strict=True):
        each = jnp.arange(height)[:, None]
        inside = each < count
        at = jnp.where(inside, begin + each, 0)
        out.append((columns[at], jnp.where(inside, values[at], 0.0).astype(dtype)))
    return out
