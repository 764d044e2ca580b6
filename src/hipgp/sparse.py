"""Sparse matrices as gathers, for CPU and GPU alike.

A scatter-add is 4 to 5 times slower than a gather on a CPU and no better on a GPU, so a matrix is kept by rows *and* by
columns, and both products are gathers. Rows of like length lie side by side, short ones padded with zeros: everything is a
dense array, (entries, rows), of which one pass takes the next entries of all. Rows wider than WIDTH are folded: the second
WIDTH entries of each lie behind the first of all, and so on. Neighbouring rows should have neighbouring columns: then they
find in the cache what the one before them fetched.
"""

import functools
import itertools
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.precision import on_device
from hipgp.threads import cores, in_threads, side_by_side

WIDTH = 32  # entries of a row that lie in one column
LONGEST = 32 * WIDTH  # longer rows are cut into pieces
A_PASS = 8  # entries taken together on a CPU
# Padding worth the same as another slab to be compiled and started, in entries: on a CPU, on a GPU. A fold costs a quarter.
A_SLAB = 2**18, 2**20
ROWS_AT_ONCE = 2**16
ENTRIES_AT_ONCE = 2**20  # fewer are not worth a thread of their own


class Slab(eqx.Module):
    """Rows side by side, entry after entry; `folds` says how often, and how many of them: (times, rows), one after the other."""

    columns: Int[Array, "w C"]
    values: Float[Array, "w C"]
    folds: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def sums(self, x: Float[Array, "n *b"]) -> Float[Array, "r *b"]:
        """Each row's product with x, sides behind."""
        found = _entries_in_passes(self, x) if _on_cpu() else _entries(self, x)
        parts, begin = [], 0
        for times, rows in self.folds:
            every = [found[begin + i * rows : begin + (i + 1) * rows] for i in range(times)]
            parts.append(functools.reduce(operator.add, every))
            begin += times * rows
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _entries(slab: Slab, x: Float[Array, "n *b"]) -> Float[Array, "C *b"]:
    """The sum over a slab's first axis on a GPU."""
    if x.ndim == 1:
        return jnp.sum(slab.values * jnp.take(x, slab.columns, mode="clip"), axis=0)
    # Sides behind: one read of memory brings all of them. Unrolled, since a reduction that gathers is six times slower.
    entry = lambda columns, values: values[:, None] * jnp.take(x, columns, axis=0, mode="clip")
    total = functools.reduce(operator.add, map(entry, slab.columns, slab.values))
    return jax.lax.optimization_barrier(total)


def _entries_in_passes(slab: Slab, x: Float[Array, " n"]) -> Float[Array, " C"]:
    """The sum over a slab's first axis, A_PASS at a time: on a CPU three times as fast as one reduction there."""
    entry = lambda columns, values: values * jnp.take(x, columns, mode="clip")
    take = lambda begin, size: [
        jax.lax.dynamic_slice_in_dim(a, begin, size, axis=0) for a in (slab.columns, slab.values)
    ]
    some = lambda begin, size: functools.reduce(operator.add, map(entry, *take(begin, size)))
    first = (len(slab.columns) - 1) % A_PASS + 1  # what is left over by whole passes, or one of them
    add = lambda i, total: total + some(first + i * A_PASS, A_PASS)
    passes = (len(slab.columns) - first) // A_PASS
    return jax.lax.fori_loop(0, passes, add, some(0, first)) if passes else some(0, first)


class Rows(eqx.Module):
    """One direction of a sparse product: y = A x."""

    slabs: tuple[Slab, ...]
    # which of all slabs' sums, and after them a zero, is each row's; None: the same
    where: Int[Array, " m"] | None
    pieces: Int[Array, "2 p"] | None  # of long rows: which of all sums, and of which row
    count: int = eqx.field(static=True)

    @eqx.filter_jit
    def matmul(self, x: Float[Array, "... n"]) -> Float[Array, "... m"]:
        sides = x.reshape(-1, x.shape[-1])
        if len(sides) == 1:
            y = self._product(sides[0])
        elif _on_cpu():  # sides take half as long again together as in turn
            y = jax.lax.map(self._product, sides)
        else:
            y = self._product(_behind(sides)).T
        return y.reshape(*x.shape[:-1], self.count)

    def _product(self, x: Float[Array, "n *b"]) -> Float[Array, "m *b"]:
        none = jnp.zeros((1, *x.shape[1:]), x.dtype)
        if self.where is None:
            return self.slabs[0].sums(x)
        sums = jnp.concatenate([*(slab.sums(x) for slab in self.slabs), none])
        y = jnp.take(sums, self.where, axis=0)
        if self.pieces is None:
            return y
        return y.at[self.pieces[1]].add(jnp.take(sums, self.pieces[0], axis=0))


def _behind(sides: Float[Array, "b n"]) -> Float[Array, "n b"]:
    """Sides next to one another in memory: a transpose alone would leave them where they are."""
    return jax.lax.optimization_barrier(jnp.stack(list(sides), axis=-1))


class Sparse(eqx.Module):
    """A sparse matrix with both products, batched in front."""

    forward: Rows
    backward: Rows | None  # None: the transpose is rarely asked for, and scatters
    columns: int = eqx.field(static=True)

    def matmul(self, x: Float[Array, "... n"]) -> Float[Array, "... m"]:
        return self.forward.matmul(x)

    def transpose_matmul(self, y: Float[Array, "... m"]) -> Float[Array, "... n"]:
        return self._scattered(y) if self.backward is None else self.backward.matmul(y)

    @eqx.filter_jit
    def _scattered(self, y: Float[Array, "... m"]) -> Float[Array, "... n"]:
        like = jax.ShapeDtypeStruct((*y.shape[:-1], self.columns), y.dtype)
        return jax.linear_transpose(self.forward.matmul, like)(y)[0]

    @staticmethod
    def from_scipy(matrix: Any, dtype: Any, often: bool = True) -> "Sparse":
        """`often`: whether products with the transpose are as many as with the matrix."""
        csr = scipy.sparse.csr_array(matrix)
        if not often:
            return Sparse(rows_of(csr, dtype), None, matrix.shape[1])
        both = side_by_side(lambda: rows_of(csr, dtype), lambda: rows_of(transpose(csr), dtype))
        return Sparse(both[0], both[1], matrix.shape[1])


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
    def of(values: Float[Array, "G b k"], columns: np.ndarray, used: np.ndarray, count: int) -> "Blocks":
        """Blocks over `count` columns; those not `used` stand for none."""
        flat = np.flatnonzero(used)
        entries = np.ones(len(flat)), (columns.ravel()[flat], flat)
        back = rows_of(scipy.sparse.csr_array(entries, shape=(count, used.size)), values.dtype)
        return Blocks(values, on_device(columns, np.int32), back)


def _summed(x: Float[Array, "... n"]) -> bool:
    """Whether one side on a GPU is in question: small matrix products there take longer than it takes to read them."""
    return x.size == x.shape[-1] and jax.default_backend() != "cpu"


class _Stretches(NamedTuple):
    """Pieces of rows of a CSR matrix: where each begins among its entries, how long it is, and whose it is."""

    begin: Int[np.ndarray, " p"]
    length: Int[np.ndarray, " p"]
    row: Int[np.ndarray, " p"]


def rows_of(csr: Any, dtype: Any) -> Rows:
    """One direction of a CSR matrix."""
    stretches = _cut(csr.indptr)
    counts, longest = np.diff(csr.indptr), int(np.max(stretches.length, initial=0))
    widths = _widths(stretches.length, A_SLAB[not _on_cpu()]) if longest else []
    classes = np.searchsorted(widths, stretches.length)
    order = np.argsort(classes, kind="stable")
    members = [(width, order[classes[order] == number]) for number, width in enumerate(widths)]
    apart, wide = [[m] for m in members if m[0] <= WIDTH], [m for m in members if m[0] > WIDTH]
    slabs = [_slab(csr, stretches, some, dtype) for some in (*apart, wide) if some]
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    alone = counts[stretches.row] <= LONGEST
    where = np.full(len(counts), len(order), np.int32)
    where[stretches.row[alone]] = place[alone]
    same = len(slabs) == 1 and np.array_equal(where, np.arange(len(order)))
    long = np.stack([place[~alone], stretches.row[~alone]])
    return Rows(
        tuple(slabs),
        None if same else on_device(where),
        on_device(long, np.int32) if long.size else None,
        len(counts),
    )


def transpose(csr: Any) -> Any:
    """The transpose of a CSR matrix as another: some rows in each thread, and then together."""
    rows, columns = csr.shape
    parts = min(cores(), csr.nnz // max(ENTRIES_AT_ONCE, 4 * columns))
    if parts < 2:
        return csr.T.tocsr()
    cut = np.searchsorted(csr.indptr, np.linspace(0, csr.nnz, parts + 1)[1:-1])
    cut = np.concatenate([[0], cut, [rows]])

    def of_some(begin: int, end: int) -> Any:
        here = slice(csr.indptr[begin], csr.indptr[end])
        entries = csr.data[here], csr.indices[here], csr.indptr[begin : end + 1] - csr.indptr[begin]
        return scipy.sparse.csr_array(entries, shape=(end - begin, columns)).T.tocsr()

    found = list(in_threads(of_some, itertools.pairwise(cut)))
    counts = np.array([np.diff(part.indptr) for part in found], csr.indptr.dtype)
    starts = np.concatenate([[0], np.cumsum(np.sum(counts, axis=0))]).astype(counts.dtype)
    before = np.cumsum(counts, axis=0, dtype=counts.dtype) - counts  # of a row, in the parts before
    out = scipy.sparse.csr_array((columns, rows), dtype=csr.dtype)
    out.indptr, out.indices, out.data = starts, np.empty_like(csr.indices), np.empty_like(csr.data)
    numbered = (found.pop() for _ in range(parts))  # let go one by one
    fill = lambda part, skipped, first: put(out, part, starts[:-1] + skipped, first)
    for _ in in_threads(fill, zip(numbered, before[::-1], cut[-2::-1], strict=True)):
        pass
    return out


def put(out: Any, part: Any, begin: Int[np.ndarray, " m"], first: int = 0) -> None:
    """A part's entries into another CSR matrix, row i from `begin[i]` on; `first` is added to its columns."""
    at = np.arange(part.nnz, dtype=out.indptr.dtype)
    at += np.repeat(begin - part.indptr[:-1], np.diff(part.indptr)).astype(at.dtype, copy=False)
    if first:
        part.indices += part.indices.dtype.type(first)
    out.indices[at], out.data[at] = part.indices, part.data


def turned(a: np.ndarray, dtype: Any) -> np.ndarray:
    """a.T in an order of its own: a few rows at a time, which the cache holds, in a third of the time."""
    out = np.empty(a.shape[::-1], dtype)
    for begin in range(0, len(a), 1024):
        out[:, begin : begin + 1024] = a[begin : begin + 1024].T
    return out


def _cut(pointers: Int[np.ndarray, " m+1"]) -> _Stretches:
    """All rows that have entries, those that are too long in pieces."""
    counts = np.diff(pointers)
    pieces = -(-counts // LONGEST)
    row = np.repeat(np.arange(len(counts)), pieces)
    number = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = pointers[row] + number * LONGEST
    return _Stretches(begin, np.minimum(LONGEST, pointers[row + 1] - begin), row)


def _widths(lengths: Int[np.ndarray, " p"], a_slab: int) -> list[int]:
    """The widths to pad to that cost least in all, by dynamic programming; above WIDTH its multiples."""
    every = np.concatenate([np.arange(1, WIDTH), np.arange(WIDTH, LONGEST + 1, WIDTH)])
    histogram = np.bincount(np.searchsorted(every, lengths), minlength=len(every))
    below = np.concatenate([[0], np.cumsum(histogram)])
    cost, before = np.zeros(len(every) + 1), np.zeros(len(every) + 1, int)
    for j in range(1, len(cost)):
        rows = below[j] - below[:j]
        # wide ones after a wide one are folded into its slab
        again = np.concatenate([[0], every[: j - 1]]) > WIDTH
        each = cost[:j] + rows * every[j - 1] + np.where(rows > 0, np.where(again, a_slab // 4, a_slab), 0)
        before[j] = np.argmin(each)
        cost[j] = each[before[j]]
    widths, j = [], len(every)
    while j:
        if below[j] > below[before[j]]:
            widths.append(int(every[j - 1]))
        j = before[j]
    return widths[::-1]


def _slab(csr: Any, stretches: _Stretches, classes: list[tuple[int, np.ndarray]], dtype: Any) -> Slab:
    """Stretches side by side: those of each class padded to its width, and folded."""
    height = min(classes[0][0], WIDTH)
    folds = tuple((width // height, len(some)) for width, some in classes)
    # all alike: they are there already
    if folds == ((1, len(csr.indptr) - 1),) and csr.nnz == height * folds[0][1]:
        across = lambda entries, kind: on_device(turned(entries.reshape(-1, height), kind))
        return Slab(across(csr.indices, np.int32), across(csr.data, dtype), folds)
    columns = np.zeros((height, sum(times * rows for times, rows in folds)), np.int32)
    values = np.zeros(columns.shape, dtype)

    def fill(begin: int, fold: int, some: np.ndarray) -> None:
        entry = fold * height + np.arange(height)[:, None]
        inside = entry < stretches.length[some]
        at = np.where(inside, stretches.begin[some] + entry, 0)
        here = slice(begin, begin + len(some))
        columns[:, here] = csr.indices.take(at)  # of padding, any
        values[:, here] = csr.data.take(at) * inside

    for _ in in_threads(fill, _portions(folds, classes)):
        pass
    return Slab(on_device(columns), on_device(values), folds)


def _portions(
    folds: tuple[tuple[int, int], ...], classes: list[tuple[int, np.ndarray]]
) -> Iterator[tuple[int, int, np.ndarray]]:
    """What a slab is filled with, a little at a time (indices take more memory than entries): where to, which fold, whose."""
    begin = 0
    for (times, rows), (_, every) in zip(folds, classes, strict=True):
        for fold in range(times):
            for first in range(0, rows, ROWS_AT_ONCE):
                yield begin + first, fold, every[first : first + ROWS_AT_ONCE]
            begin += rows
