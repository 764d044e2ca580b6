"""Sparse matrices as gathers, for CPU and GPU alike.

A scatter-add is 4 to 5 times slower than a gather on a CPU and no better on a GPU, so a matrix is kept by rows *and* by
columns, and both products are gathers. Rows are cut into chunks of one width (short rows are padded with zeros, long
ones take several chunks), so that everything is a dense array: y_row = sum over its chunks of values . x[columns]. Chunks lie
side by side: one pass takes the next entry of each, which is what wide registers and GPUs like.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
ROWS_AT_ONCE = 2**16
A_PASS = 8  # entries of each chunk taken together on a CPU


class Rows(eqx.Module):
    """One direction of a sparse product: y = A x, rows in chunks."""

    columns: Int[Array, "w C"]
    values: Float[Array, "w C"]
    rows: Int[Array, " C"] | None  # which row each chunk belongs to, ascending; None: chunk i is row i
    count: int = eqx.field(static=True)

    def matmul(self, x: Float[Array, "... n"]) -> Float[Array, "... m"]:
        on_cpu = jax.default_backend() == "cpu"
        if on_cpu and x.ndim > 1:  # sides take half as long again together as in turn
            return jax.lax.map(self.matmul, x)
        entry = lambda columns, values: values * jnp.take(x, columns, axis=-1, mode="clip")
        parts = (
            _in_passes(entry, self.columns, self.values)
            if on_cpu
            else jnp.sum(entry(self.columns, self.values), axis=-2)
        )
        rows = self.rows
        if rows is None:
            return parts
        add = lambda p: jax.ops.segment_sum(p, rows, self.count, indices_are_sorted=True)
        for _ in range(x.ndim - 1):
            add = jax.vmap(add)
        return add(parts)


def _in_passes(entry: Callable[[Array, Array], Array], columns: Array, values: Array) -> Float[Array, " C"]:
    """The sum of entry(column, value) over the first axis, A_PASS at a time: three times as fast as one reduction there."""
    take = lambda begin, size: [
        jax.lax.dynamic_slice_in_dim(a, begin, size, axis=0) for a in (columns, values)
    ]
    some = lambda begin, size: functools.reduce(operator.add, map(entry, *take(begin, size)))
    first = (len(columns) - 1) % A_PASS + 1  # what is left over by whole passes, or one of them
    add = lambda i, total: total + some(first + i * A_PASS, A_PASS)
    passes = (len(columns) - first) // A_PASS
    return jax.lax.fori_loop(0, passes, add, some(0, first)) if passes else some(0, first)


class Sparse(eqx.Module):
    """A sparse matrix with both products, batched in front."""

    forward: Rows
    backward: Rows

    def matmul(self, x: Float[Array, "... n"]) -> Float[Array, "... m"]:
        return self.forward.matmul(x)

    def transpose_matmul(self, y: Float[Array, "... m"]) -> Float[Array, "... n"]:
        return self.backward.matmul(y)

    @staticmethod
    def from_scipy(matrix: Any, dtype: Any) -> "Sparse":
        csr = scipy.sparse.csr_array(matrix)
        return Sparse(row_chunks(csr, dtype), row_chunks(csr.T.tocsr(), dtype))


class Blocks(eqx.Module):
    """A sparse matrix whose rows come in dense blocks with columns in common; S r is (..., G b), block by block."""

    values: Float[Array, "G b k"]
    columns: Int[Array, "G k"]
    back: Rows  # adds up what all blocks say of each column

    def matmul(self, x: Float[Array, "... n"]) -> Float[Array, "... m"]:
        seen = jnp.take(x, self.columns, axis=-1)
        rows = (
            jnp.sum(self.values * seen[..., None, :], axis=-1)
            if _summed(x)
            else jnp.einsum("gbk,...gk->...gb", self.values, seen)
        )
        return rows.reshape(*x.shape[:-1], -1)

    def transpose_matmul(self, y: Float[Array, "... m"]) -> Float[Array, "... n"]:
        groups, own, _ = self.values.shape
        rows = y.reshape(*y.shape[:-1], groups, own)
        parts = (
            jnp.sum(self.values * rows[..., None], axis=-2)
            if _summed(y)
            else jnp.einsum("gbk,...gb->...gk", self.values, rows)
        )
        return self.back.matmul(parts.reshape(*y.shape[:-1], -1))

    @staticmethod
    def of(values: np.ndarray, columns: np.ndarray, used: np.ndarray, count: int, dtype: Any) -> "Blocks":
        """Blocks over `count` columns; those not `used` stand for none."""
        flat = np.flatnonzero(used)
        entries = np.ones(len(flat)), (columns.ravel()[flat], flat)
        back = row_chunks(scipy.sparse.csr_array(entries, shape=(count, used.size)), dtype)
        return Blocks(jnp.asarray(values, dtype), jnp.asarray(columns, jnp.int32), back)


def _summed(x: Float[Array, "... n"]) -> bool:
    """Whether one side on a GPU is in question: small matrix products there take longer than it takes to read them."""
    return x.size == x.shape[-1] and jax.default_backend() != "cpu"


def row_chunks(csr: Any, dtype: Any) -> Rows:
    """One direction of a CSR matrix."""
    counts = np.diff(csr.indptr)
    width = _best_width(counts)
    if np.all(counts == width):  # all rows alike: the arrays are there already
        return Rows(
            _side_by_side(csr.indices, width, np.int32),
            _side_by_side(csr.data, width, dtype),
            None,
            len(counts),
        )
    chunks = -(-counts // width)
    first = np.concatenate([[0], np.cumsum(chunks)])
    columns = np.zeros(first[-1] * width, np.int32)
    values = np.zeros(first[-1] * width, dtype)
    for begin in range(0, len(counts), ROWS_AT_ONCE):  # places take more memory than the entries
        some = slice(begin, begin + ROWS_AT_ONCE)
        entries = slice(csr.indptr[begin], csr.indptr[min(begin + ROWS_AT_ONCE, len(counts))])
        shift = first[:-1][some] * width - csr.indptr[:-1][some]
        slot = np.repeat(shift, counts[some]) + np.arange(entries.start, entries.stop)
        columns[slot], values[slot] = csr.indices[entries], csr.data[entries]
    whole = bool(np.all(chunks == 1))
    rows = None if whole else jnp.asarray(np.repeat(np.arange(len(counts)), chunks), jnp.int32)
    return Rows(
        _side_by_side(columns, width, np.int32), _side_by_side(values, width, dtype), rows, len(counts)
    )


def _side_by_side(entries: np.ndarray, width: int, dtype: Any) -> Array:
    return jnp.asarray(np.ascontiguousarray(entries.reshape(-1, width).T, dtype))


def _best_width(counts: np.ndarray) -> int:
    """The width that costs least: padded entries, plus what adding up the chunks takes (a scatter, about 8 entries)."""
    histogram = np.bincount(counts)
    sizes = np.arange(len(histogram))
    if np.count_nonzero(histogram) == 1 and 0 < sizes[-1] <= 2 * WIDTHS[-1]:
        return int(sizes[-1])  # all rows alike: no padding, no chunks
    cost = [np.sum(histogram * -(-sizes // w)) * (w + 8.0) for w in WIDTHS]
    return WIDTHS[int(np.argmin(cost))]
