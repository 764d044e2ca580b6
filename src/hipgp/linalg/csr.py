"""Sparse matrices in CSR format, on the host or where JAX computes; `linalg/sparse.py` lays them out for products.

On a GPU entries are transposed and laid out in its memory; rows of W for functionals of several nodes are computed there
too, and the host holds only where rows begin.
"""

import functools
import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.runtime.arrays import AnyArray, on_device
from hipgp.runtime.buckets import round_up_entries, round_up_geometrically, round_up_to_power_of_two
from hipgp.runtime.threads import map_in_threads, thread_count

ENTRIES_PER_THREAD = 2**20  # fewer are not worth a thread


class CSR(NamedTuple):
    """A matrix in CSR format; entries after the last row are padding."""

    columns: Int[AnyArray, " e"]
    values: Float[AnyArray, " e"]
    starts: Int[np.ndarray, " m+1"]
    column_count: int

    @staticmethod
    def from_scipy(matrix: Any) -> "CSR":
        """Wrap a SciPy CSR matrix, without a copy."""
        return CSR(matrix.indices, matrix.data, matrix.indptr, matrix.shape[1])

    @property
    def row_lengths(self) -> Int[np.ndarray, " m"]:
        """The number of entries of each row."""
        return np.diff(self.starts)

    @property
    def on_host(self) -> bool:
        """Tell whether the entries are NumPy arrays."""
        return isinstance(self.values, np.ndarray)

    def to_device(self) -> "CSR":
        """Copy to the device, zero-padded to a bucketed length to limit recompilation."""
        if not self.on_host:
            return self
        missing = round_up_entries(len(self.values)) - len(self.values)
        pad = lambda a: np.pad(a, (0, missing)) if missing else a
        grown = lambda a, kind: on_device(pad(a.astype(kind, copy=False)))
        return self._replace(columns=grown(self.columns, np.int32), values=grown(self.values, float))

    def to_scipy(self) -> Any:
        """Copy to the host, as a SciPy CSR matrix."""
        values, columns = (np.asarray(a)[: self.starts[-1]] for a in (self.values, self.columns))
        shape = len(self.starts) - 1, self.column_count
        return scipy.sparse.csr_array((values, columns, self.starts), shape=shape)

    def padded_rows(self, rows: Int[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
        """Return columns and values of some rows as dense arrays, zero-padded to one of a few widths."""
        begin, end = self.starts[rows][:, None], self.starts[rows + 1][:, None]
        slot = np.arange(round_up_geometrically(int(np.max(end - begin, initial=1))))
        used = slot < end - begin
        at = np.where(used, begin + slot, 0)
        columns, values = (_take(a, at) for a in (self.columns, self.values))
        return np.where(used, columns, 0), np.where(used, values, 0.0)

    def transpose(self) -> "CSR":
        """Return the transpose, computed where the entries are."""
        if self.on_host:
            return CSR.from_scipy(_transpose_in_threads(self.to_scipy()))
        counts = on_device(self.row_lengths, np.int64)
        columns, values, starts = _transpose_on_device(self.columns, self.values, counts, self.column_count)
        return CSR(columns, values, np.asarray(starts), len(counts))


def _take(entries: AnyArray, at: Int[np.ndarray, "n k"]) -> np.ndarray:
    """Copy some entries to the host; from a device in a bucketed number of rows, to limit recompilation."""
    if isinstance(entries, np.ndarray):
        return entries.take(at)
    missing = round_up_to_power_of_two(len(at)) - len(at)
    return np.asarray(_gather(entries, np.pad(at, ((0, missing), (0, 0)))))[: len(at)]


_gather = eqx.filter_jit(lambda a, at: a[at])


@eqx.filter_jit
def _transpose_on_device(
    columns: AnyArray, values: AnyArray, counts: Array, width: int
) -> tuple[Array, Array, Array]:
    """Sort the entries by column: return their rows, their values, and where each column begins."""
    size = len(columns)
    each = jnp.arange(size, dtype=jnp.int32 if size < 2**31 else jnp.int64)
    rows = jnp.repeat(jnp.arange(len(counts), dtype=jnp.int32), counts, total_repeat_length=size)
    key = jnp.where(each < jnp.sum(counts), columns, width)  # padding goes to the end
    key, at = jax.lax.sort((key, each), num_keys=1)
    starts = jnp.searchsorted(key, jnp.arange(width + 1, dtype=key.dtype))
    return rows[at], values[at], starts


class RowChunk(NamedTuple):
    """Some rows of a matrix on JAX's device; their entries fill arrays of equal length, the last of them in part."""

    columns: list[Array]
    values: list[Array]
    rows: Int[np.ndarray, " n"]  # the rows' numbers in the whole matrix
    starts: Int[np.ndarray, " n+1"]


def concatenate_on_device(parts: list[RowChunk], count: int, width: int) -> CSR:
    """Concatenate chunks of a matrix of `count` rows where JAX computes; frees the chunks as it goes."""
    counts, begin = np.zeros(count, np.int64), np.zeros(count, np.int64)
    total = sum(int(part.starts[-1]) for part in parts)
    size = round_up_entries(total + max(len(a) for part in parts for a in part.values))
    columns, values, first = jnp.zeros(size, np.int32), jnp.zeros(size), 0
    while parts:
        part = parts.pop()
        counts[part.rows], begin[part.rows] = np.diff(part.starts), first + part.starts[:-1]
        for number, (c, v) in enumerate(zip(part.columns, part.values, strict=True)):
            at = np.asarray(first + number * len(c))  # the next chunk overwrites the padding of this one
            columns, values = _write_at(columns, c, at), _write_at(values, v, at)
        first += int(part.starts[-1])
    starts = np.concatenate([[0], np.cumsum(counts)])
    moved, counts = on_device(begin - starts[:-1]), on_device(counts)
    return CSR(*_in_row_order(columns, values, moved, counts), starts, width)


@functools.partial(jax.jit, donate_argnums=0)
def _write_at(whole: Array, part: Array, at: Array) -> Array:
    return jax.lax.dynamic_update_slice(whole, part, (at,))


@eqx.filter_jit
def _in_row_order(columns: Array, values: Array, moved: Array, counts: Array) -> tuple[Array, Array]:
    """Move each row's entries to the row's beginning, from `moved` places after it."""
    at = jnp.arange(len(columns)) + jnp.repeat(moved, counts, total_repeat_length=len(columns))
    return jnp.take(columns, at, mode="clip"), jnp.take(values, at, mode="clip")


def _transpose_in_threads(csr: Any) -> Any:
    """Transpose a SciPy CSR matrix: each thread transposes a range of rows, then the parts are merged."""
    rows, columns = csr.shape
    parts = min(thread_count(), csr.nnz // max(ENTRIES_PER_THREAD, 4 * columns))
    if parts < 2:
        return csr.T.tocsr()
    cut = np.searchsorted(csr.indptr, np.linspace(0, csr.nnz, parts + 1)[1:-1])
    cut = np.concatenate([[0], cut, [rows]])

    def of_rows(begin: int, end: int) -> Any:
        selected = slice(csr.indptr[begin], csr.indptr[end])
        entries = csr.data[selected], csr.indices[selected], csr.indptr[begin : end + 1] - csr.indptr[begin]
        return scipy.sparse.csr_array(entries, shape=(end - begin, columns)).T.tocsr()

    found = list(map_in_threads(of_rows, itertools.pairwise(cut)))
    counts = np.array([np.diff(part.indptr) for part in found], csr.indptr.dtype)
    starts = np.concatenate([[0], np.cumsum(np.sum(counts, axis=0))]).astype(counts.dtype)
    before = (
        np.cumsum(counts, axis=0, dtype=counts.dtype) - counts
    )  # entries of a row in the parts before this one
    out = scipy.sparse.csr_array((columns, rows), dtype=csr.dtype)
    out.indptr, out.indices, out.data = starts, np.empty_like(csr.indices), np.empty_like(csr.data)
    numbered = (found.pop() for _ in range(parts))  # freed one by one
    fill = lambda part, skipped, first: copy_rows_into(out, part, starts[:-1] + skipped, first)
    for _ in map_in_threads(fill, zip(numbered, before[::-1], cut[-2::-1], strict=True)):
        pass
    return out


def ranges(first: Int[np.ndarray, " n"], count: Int[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the ranges first, first + 1, ..., first + count - 1: return each element's range, and the element."""
    number = np.repeat(np.arange(len(first)), count)
    return number, np.repeat(first - (np.cumsum(count) - count), count) + np.arange(len(number))


def copy_rows_into(out: Any, part: Any, begin: Int[np.ndarray, " m"], first: int = 0) -> None:
    """Copy the rows of `part` into `out`, row i from entry `begin[i]` on; `first` is added to the columns."""
    at = np.arange(part.nnz, dtype=out.indptr.dtype)
    at += np.repeat(begin - part.indptr[:-1], np.diff(part.indptr)).astype(at.dtype, copy=False)
    if first:
        part.indices += part.indices.dtype.type(first)
    out.indices[at], out.data[at] = part.indices, part.data


def contiguous_transpose(a: np.ndarray, dtype: Any) -> np.ndarray:
    """Return a contiguous copy of a.T, made in blocks of rows that fit the cache, in a third of the time of one copy."""
    out = np.empty(a.shape[::-1], dtype)
    for begin in range(0, len(a), 1024):
        out[:, begin : begin + 1024] = a[begin : begin + 1024].T
    return out
