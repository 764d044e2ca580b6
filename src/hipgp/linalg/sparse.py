"""Sparse matrices in sliced ELLPACK format, whose products are gathers, for CPU and GPU alike.

A scatter-add is 4 to 5 times slower than a gather on a CPU and no better on a GPU, so a matrix is stored by rows *and* by
columns, and both products are gathers. Rows are sorted by length into slices of similar width (`linalg/slices.py`), with
short rows padded with zeros. A slice is a dense array, (entries, rows), so that a pass reads one entry of every row. Rows
wider than WIDTH are split: the second WIDTH entries of all rows are columns of the array after the first WIDTH of all, and
so on. Neighbouring rows should have neighbouring columns, for the sake of the cache.

On a CPU the long rows of a small matrix are cut into pieces of WIDTH entries, whose sums are added. Its shapes then follow
from the number of entries alone, and not from the longest row, which differs most between similar data sets.
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

from hipgp.linalg.csr import CSR, contiguous_transpose, ranges
from hipgp.linalg.slices import slice_sizes
from hipgp.runtime.arrays import AnyArray, on_cpu, on_device
from hipgp.runtime.buckets import SMALL, round_up
from hipgp.runtime.memory import gpu_bytes
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.threads import map_in_threads, run_both

WIDTH = 32  # entries of a row in one column of a slice
LONGEST_ROW = 32 * WIDTH  # longer rows are split into pieces
ENTRIES_PER_PASS = 8  # entries taken together on a CPU
# Entries of padding that cost as much as compiling and starting another slice: on a CPU, on a GPU. A split slice costs a quarter.
SLICE_COST = 2**18, 2**20
ROWS_AT_ONCE = 2**16
FEW_PIECES = 2**13  # of long rows, WIDTH entries each
LAYOUT_BYTES = 44  # bytes per entry that a GPU needs to transpose and lay out a matrix


class _EllpackSlice(eqx.Module):
    """Rows padded to one width, stored as columns; `row_parts` lists (columns per row, rows) of equally split rows."""

    columns: Int[Array, "w C"]
    values: Float[Array, "w C"]
    row_parts: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def matmul(self, x: Float[Array, "n *b"]) -> Float[Array, "r *b"]:
        """Return the product of each row with x; the last axis of x holds several vectors."""
        found = _sum_over_entries_in_passes(self, x) if on_cpu() else _sum_over_entries(self, x)
        parts, begin = [], 0
        for times, rows in self.row_parts:
            blocks = [found[begin + i * rows : begin + (i + 1) * rows] for i in range(times)]
            parts.append(functools.reduce(operator.add, blocks))
            begin += times * rows
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _sum_over_entries(ellpack: _EllpackSlice, x: Float[Array, "n *b"]) -> Float[Array, "C *b"]:
    """Sum a slice's products over its first axis, on a GPU."""
    if x.ndim == 1:
        return jnp.sum(ellpack.values * jnp.take(x, ellpack.columns, mode="clip"), axis=0)
    # Vectors last: one read of memory brings the entries of all. Unrolled, since a reduction that gathers is six times slower.
    entry = lambda columns, values: values[:, None] * jnp.take(x, columns, axis=0, mode="clip")
    total = functools.reduce(operator.add, map(entry, ellpack.columns, ellpack.values))
    return jax.lax.optimization_barrier(total)


def _sum_over_entries_in_passes(ellpack: _EllpackSlice, x: Float[Array, " n"]) -> Float[Array, " C"]:
    """Sum a slice's products over its first axis, ENTRIES_PER_PASS at a time: three times as fast as one reduction on a CPU."""
    entry = lambda columns, values: values * jnp.take(x, columns, mode="clip")
    take = lambda begin, size: [
        jax.lax.dynamic_slice_in_dim(a, begin, size, axis=0) for a in (ellpack.columns, ellpack.values)
    ]
    some = lambda begin, size: functools.reduce(operator.add, map(entry, *take(begin, size)))
    first = (len(ellpack.columns) - 1) % ENTRIES_PER_PASS + 1  # what whole passes leave over, or one pass
    add = lambda i, total: total + some(first + i * ENTRIES_PER_PASS, ENTRIES_PER_PASS)
    passes = (len(ellpack.columns) - first) // ENTRIES_PER_PASS
    return jax.lax.fori_loop(0, passes, add, some(0, first)) if passes else some(0, first)


class SlicedEllpack(eqx.Module):
    """A sparse matrix in sliced ELLPACK format: y = A x as gathers."""

    slices: tuple[_EllpackSlice, ...]
    # for each row the index of its sum among the sums of all slices and a final zero; None if they are in order
    position: Int[Array, " m"] | None
    long_rows: (
        Int[Array, "2 p"] | None
    )  # of long rows: the indices of further sums, and the rows they belong to
    row_count: int = eqx.field(static=True)

    @bounded_jit()
    def matmul(self, x: Float[Array, "... n"]) -> Float[Array, "... m"]:
        vectors = x.reshape(-1, x.shape[-1])
        if len(vectors) == 0:  # a trend without columns
            return jnp.zeros((*x.shape[:-1], self.row_count), x.dtype)
        if len(vectors) == 1:
            y = self._product(vectors[0])
        elif on_cpu():  # together, vectors take half as long again as one after the other
            y = jax.lax.map(self._product, vectors)
        else:
            y = self._product(_vectors_last(vectors)).T
        return y.reshape(*x.shape[:-1], self.row_count)

    def to_scipy(self, column_count: int) -> Any:
        """Return the matrix on the host in SciPy's CSR format; entries of zero are left out."""
        parts, begin = [], 0
        for part in self.slices:
            rows = [begin + sum(r for _, r in part.row_parts[:i]) for i in range(len(part.row_parts))]
            owner = np.concatenate(
                [np.tile(np.arange(r) + first, t) for (t, r), first in zip(part.row_parts, rows, strict=True)]
            )
            values, columns = np.asarray(part.values), np.asarray(part.columns)
            kept = np.nonzero(values)
            parts.append((owner[kept[1]], columns[kept], values[kept]))
            begin += sum(r for _, r in part.row_parts)
        of_sum = np.zeros(begin + 1, int)
        if self.position is None:
            of_sum[:-1] = np.arange(begin)
        else:
            of_sum[np.asarray(self.position)] = np.arange(self.row_count)
        if self.long_rows is not None:
            of_sum[np.asarray(self.long_rows)[0]] = np.asarray(self.long_rows)[1]
        sums, columns, values = (
            (np.concatenate(a) for a in zip(*parts, strict=True)) if parts else ([], [], [])
        )
        shape = self.row_count, column_count
        return scipy.sparse.coo_array((values, (of_sum[sums], columns)), shape=shape).tocsr()

    def _product(self, x: Float[Array, "n *b"]) -> Float[Array, "m *b"]:
        zero = jnp.zeros((1, *x.shape[1:]), x.dtype)
        if self.position is None:
            return self.slices[0].matmul(x)
        sums = jnp.concatenate([*(part.matmul(x) for part in self.slices), zero])
        y = jnp.take(sums, self.position, axis=0)
        if self.long_rows is None:
            return y
        return y.at[self.long_rows[1]].add(jnp.take(sums, self.long_rows[0], axis=0))


def _vectors_last(vectors: Float[Array, "b n"]) -> Float[Array, "n b"]:
    """Bring the vectors' entries next to one another in memory, which a transpose alone would not do."""
    return jax.lax.optimization_barrier(jnp.stack(list(vectors), axis=-1))


class SparseMatrix(eqx.Module):
    """A sparse matrix with both products, A x and A'y; vectors are batched in front."""

    rows: SlicedEllpack
    transposed: SlicedEllpack | None  # None: products with the transpose are scatter-adds
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
    def from_csr(csr: CSR, dtype: Any, store_transpose: bool = True) -> "SparseMatrix":
        """Lay out a matrix in `dtype`, and with `store_transpose` its transpose too, so that both products are gathers."""
        csr = _on_layout_device(csr)
        if not store_transpose:
            return SparseMatrix(sliced_ellpack(csr, dtype), None, csr.column_count)
        both = run_both(lambda: sliced_ellpack(csr, dtype), lambda: sliced_ellpack(csr.transpose(), dtype))
        return SparseMatrix(both[0], both[1], csr.column_count)

    @staticmethod
    def from_scipy(matrix: Any, dtype: Any) -> "SparseMatrix":
        """Lay out a SciPy matrix and its transpose in `dtype`."""
        return SparseMatrix.from_csr(CSR.from_scipy(scipy.sparse.csr_array(matrix)), dtype)


class BlockRows(eqx.Module):
    """A sparse matrix of G dense blocks of b rows on k columns each; A x is (..., G b), ordered by block."""

    values: Float[Array, "G b k"]
    columns: Int[Array, "G k"]
    scatter: SlicedEllpack  # sums the blocks' contributions to each entry of A'y

    def matmul(self, x: Float[Array, "... n"]) -> Float[Array, "... m"]:
        gathered = jnp.take(x, self.columns, axis=-1)
        rows = (
            jnp.sum(self.values * gathered[..., None, :], axis=-1)
            if _one_vector_on_gpu(x)
            else jnp.einsum("gbk,...gk->...gb", self.values, gathered)
        )
        return rows.reshape(*x.shape[:-1], -1)

    def transpose_matmul(self, y: Float[Array, "... m"]) -> Float[Array, "... n"]:
        groups, size, _ = self.values.shape
        rows = y.reshape(*y.shape[:-1], groups, size)
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
        """Make a matrix of `count` columns out of blocks; entries whose column is not `used` are ignored."""
        scatter = sliced_ellpack(BlockRows.scatter_table(columns, used, count), values.dtype)
        return BlockRows(jnp.asarray(values), on_device(columns, np.int32), scatter)

    @staticmethod
    def scatter_table(columns: np.ndarray, used: np.ndarray, count: int) -> CSR:
        """Return the matrix that sums the blocks' contributions to each of `count` entries of A'y."""
        flat = np.flatnonzero(used)
        entries = np.ones(len(flat)), (columns.ravel()[flat], flat)
        return CSR.from_scipy(scipy.sparse.csr_array(entries, shape=(count, used.size)))


def _one_vector_on_gpu(x: Float[Array, "... n"]) -> bool:
    """Tell whether x is one vector on a GPU, where small matrix products take longer than reading the matrices."""
    return x.size == x.shape[-1] and not on_cpu()


def _on_layout_device(csr: CSR) -> CSR:
    """Move the entries to the GPU, if there is one and sorting and copying them fits into its memory."""
    if on_cpu():
        return csr
    room = gpu_bytes()
    crowded = room is not None and len(csr.values) * LAYOUT_BYTES > room / 4
    return csr if crowded else csr.to_device()


class _RowPieces(NamedTuple):
    """Pieces of rows: the first entry, the length and the row of each."""

    begin: Int[np.ndarray, " p"]
    length: Int[np.ndarray, " p"]
    row: Int[np.ndarray, " p"]


def sliced_ellpack(csr: CSR, dtype: Any) -> SlicedEllpack:
    """Lay out a matrix in sliced ELLPACK format."""
    return laid_out(csr, common_layout([csr.starts]), dtype)


class EllpackLayout(NamedTuple):
    """The sizes of slices that fit several matrices with equally many rows, whose arrays then have equal shapes."""

    longest: int  # longer rows are cut into pieces
    sizes: list[tuple[int, int]]  # (width, rows) of each slice
    further: int  # sums that are added to those of long rows
    in_order: bool


def common_layout(starts: list[Int[np.ndarray, " m+1"]]) -> EllpackLayout:
    """Return slices that fit all matrices whose rows start at these entries."""
    longest = _longest_piece(starts)
    every = [_split_long_rows(s, longest) for s in starts]
    rows = len(starts[0]) - 1
    lengths = np.zeros(max(len(pieces.length) for pieces in every), np.int64)
    for pieces in every:
        of_one = np.sort(pieces.length)[::-1]
        lengths[: len(of_one)] = np.maximum(lengths[: len(of_one)], of_one)
    sizes = (
        [(WIDTH, _round_up_pieces(len(lengths)))]
        if longest == WIDTH
        else slice_sizes(lengths, rows, WIDTH, SLICE_COST[not on_cpu()])
    )
    long = max(int(np.sum(np.diff(s)[p.row] > longest)) for s, p in zip(starts, every, strict=True))
    further = _round_up_pieces(long) if long else 0
    in_order = len(sizes) == 1 and sizes[0][1] == rows and len(lengths) == rows
    return EllpackLayout(longest, sizes, further, in_order)


def _longest_piece(starts: list[Int[np.ndarray, " m+1"]]) -> int:
    """Return the length at which rows are cut: WIDTH in small matrices of mostly long, unequal rows on a CPU."""
    counts, entries = np.stack([np.diff(s) for s in starts]), max(int(s[-1]) for s in starts)
    small = on_cpu() and WIDTH * counts.shape[1] < entries < SMALL
    return WIDTH if small and np.min(counts) < np.max(counts) else LONGEST_ROW


def _round_up_pieces(count: int) -> int:
    """Round up a number of pieces: to a power of two where padding costs nothing, else to four values between two powers."""
    return round_up(count, 1 if count < FEW_PIECES else 4)


def laid_out(csr: CSR, layout: EllpackLayout, dtype: Any) -> SlicedEllpack:
    """Lay out a matrix in slices of given sizes, at least as large as its rows need."""
    csr = _on_layout_device(csr)
    pieces, counts = _split_long_rows(csr.starts, layout.longest), csr.row_lengths
    order = np.argsort(-pieces.length.astype(np.int16), kind="stable")
    sizes = layout.sizes
    classes, place, total = [], np.full(len(order), sum(rows for _, rows in sizes), np.int32), 0
    ends = np.cumsum([rows for _, rows in sizes])
    for (width, rows), end in reversed(list(zip(sizes, ends, strict=True))):
        some = np.sort(order[end - rows : end])  # neighbours in memory are neighbours in space
        place[some] = total + np.arange(len(some), dtype=np.int32)
        classes.append((width, rows, some))
        total += rows
    whole = counts[pieces.row] <= layout.longest
    long = place[~whole], pieces.row[~whole]
    position = np.full(len(counts), total, np.int32)
    position[pieces.row[whole]] = place[whole]
    further = _long_row_pieces(*long, zero=total, count=layout.further) if layout.further else None
    return SlicedEllpack(
        _slices(csr, pieces, classes, dtype),
        None if layout.in_order else on_device(position),
        None if further is None else on_device(further, np.int32),
        len(counts),
    )


def _long_row_pieces(
    place: Int[np.ndarray, " p"], row: Int[np.ndarray, " p"], zero: int, count: int
) -> Int[np.ndarray, "2 p"]:
    """Return the indices of further sums of long rows, and these rows; the padding adds zeros to the first row."""
    missing = count - len(place)
    return np.stack([np.pad(place, (0, missing), constant_values=zero), np.pad(row, (0, missing))])


def _split_long_rows(starts: Int[np.ndarray, " m+1"], longest: int) -> _RowPieces:
    """Cut rows of more than `longest` entries into pieces; the others are one piece each."""
    counts = np.diff(starts)
    pieces = np.maximum(-(-counts // longest), 1)
    row, number = ranges(np.zeros_like(pieces), pieces)
    begin = starts[row] + number * longest
    return _RowPieces(begin, np.minimum(longest, starts[row + 1] - begin), row)


class _SliceLayout(NamedTuple):
    """A slice before it is filled: the first entry and the number of entries of each column."""

    begin: Int[np.ndarray, " C"]
    count: Int[np.ndarray, " C"]
    height: int
    row_parts: tuple[tuple[int, int], ...]


def _slices(
    csr: CSR, pieces: _RowPieces, classes: list[tuple[int, int, np.ndarray]], dtype: Any
) -> tuple[_EllpackSlice, ...]:
    """Fill the slices of the classes (width, rows, members) of row pieces; all classes wider than WIDTH share one slice."""
    narrow, wide = [[c] for c in classes if c[0] <= WIDTH], [c for c in classes if c[0] > WIDTH]
    empty = [_slice_layout(pieces, some) for some in (*narrow, wide) if some]
    if csr.on_host:
        return tuple(_filled_on_host(csr, columns, dtype) for columns in empty)
    begins, counts = ([on_device(getattr(c, name), np.int64) for c in empty] for name in ("begin", "count"))
    found = _filled_on_device(
        csr.columns, csr.values, begins, counts, tuple(c.height for c in empty), np.dtype(dtype)
    )
    return tuple(_EllpackSlice(*arrays, c.row_parts) for arrays, c in zip(found, empty, strict=True))


def _slice_layout(pieces: _RowPieces, classes: list[tuple[int, int, np.ndarray]]) -> _SliceLayout:
    height = min(classes[0][0], WIDTH)
    begins, counts = [], []
    for width, rows, some in classes:
        none = np.zeros(rows - len(some), int)
        for skipped in range(0, width, height):
            begins += [pieces.begin[some] + skipped, none]
            counts += [np.clip(pieces.length[some] - skipped, 0, height), none]
    folds = tuple((width // height, rows) for width, rows, _ in classes)
    return _SliceLayout(np.concatenate(begins), np.concatenate(counts), height, folds)


def _filled_on_host(csr: CSR, empty: _SliceLayout, dtype: Any) -> _EllpackSlice:
    height, each = empty.height, np.arange(empty.height)[:, None]
    ready = len(empty.begin) * height
    # rows of one length are in place already
    if np.all(empty.count == height) and np.array_equal(empty.begin, np.arange(0, ready, height)):
        across = lambda a, kind: on_device(contiguous_transpose(a[:ready].reshape(-1, height), kind))
        return _EllpackSlice(across(csr.columns, np.int32), across(csr.values, dtype), empty.row_parts)
    columns = np.empty((height, len(empty.begin)), np.int32)
    values = np.empty(columns.shape, dtype)

    if ready and not len(csr.values):  # its rows are shorter than the slice was made for
        return _EllpackSlice(
            on_device(np.zeros_like(columns)), on_device(np.zeros_like(values)), empty.row_parts
        )

    def fill(first: int) -> None:  # some columns at a time: indices take more memory than entries
        chunk = slice(first, first + ROWS_AT_ONCE)
        inside = each < empty.count[chunk]
        at = np.where(inside, empty.begin[chunk] + each, 0)
        columns[:, chunk] = csr.columns.take(at)  # the columns of padding are arbitrary
        values[:, chunk] = csr.values.take(at) * inside

    for _ in map_in_threads(fill, ((first,) for first in range(0, columns.shape[1], ROWS_AT_ONCE))):
        pass
    return _EllpackSlice(on_device(columns), on_device(values), empty.row_parts)


@eqx.filter_jit
def _filled_on_device(
    columns: AnyArray,
    values: AnyArray,
    begins: list[Array],
    counts: list[Array],
    heights: tuple[int, ...],
    dtype: Any,
) -> list[tuple[Array, Array]]:
    """Fill all slices where JAX computes: return the columns and values of each."""
    out = []
    for begin, count, height in zip(begins, counts, heights, strict=True):
        each = jnp.arange(height)[:, None]
        inside = each < count
        at = jnp.where(inside, begin + each, 0)
        out.append((columns[at], jnp.where(inside, values[at], 0.0).astype(dtype)))
    return out
