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

from hipgp.linalg.csr import Entries, turned
from hipgp.runtime.buckets import power_of_two, slab_sizes
from hipgp.runtime.precision import AnyArray, on_device
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.threads import in_threads, side_by_side

WIDTH = 32  # entries of a row that lie in one column
LONGEST = 32 * WIDTH  # longer rows are cut into pieces
A_PASS = 8  # entries taken together on a CPU
# Padding worth the same as another slab to be compiled and started, in entries: on a CPU, on a GPU. A fold costs a quarter.
A_SLAB = 2**18, 2**20
ROWS_AT_ONCE = 2**16
LAYING_OUT = 44  # bytes that a GPU needs for each entry while it transposes and lays out a matrix


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

    @bounded_jit()
    def matmul(self, x: Float[Array, "... n"]) -> Float[Array, "... m"]:
        sides = x.reshape(-1, x.shape[-1])
        if len(sides) == 0:  # a trend without columns
            return jnp.zeros((*x.shape[:-1], self.count), x.dtype)
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

    @bounded_jit()
    def _scattered(self, y: Float[Array, "... m"]) -> Float[Array, "... n"]:
        like = jax.ShapeDtypeStruct((*y.shape[:-1], self.columns), y.dtype)
        return jax.linear_transpose(self.forward.matmul, like)(y)[0]

    @staticmethod
    def of(entries: Entries, dtype: Any, often: bool = True) -> "Sparse":
        """`often`: whether products with the transpose are as many as with the matrix."""
        entries = _where_laid_out(entries)
        if not often:
            return Sparse(rows_of(entries, dtype), None, entries.width)
        both = side_by_side(lambda: rows_of(entries, dtype), lambda: rows_of(entries.transposed(), dtype))
        return Sparse(both[0], both[1], entries.width)

    @staticmethod
    def from_scipy(matrix: Any, dtype: Any) -> "Sparse":
        return Sparse.of(Entries.of(scipy.sparse.csr_array(matrix)), dtype)


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
    def of(values: Float[AnyArray, "G b k"], columns: np.ndarray, used: np.ndarray, count: int) -> "Blocks":
        """Blocks over `count` columns; those not `used` stand for none."""
        flat = np.flatnonzero(used)
        entries = np.ones(len(flat)), (columns.ravel()[flat], flat)
        table = scipy.sparse.csr_array(entries, shape=(count, used.size))
        back = rows_of(Entries.of(table), values.dtype)
        return Blocks(jnp.asarray(values), on_device(columns, np.int32), back)


def _summed(x: Float[Array, "... n"]) -> bool:
    """Whether one side on a GPU is in question: small matrix products there take longer than it takes to read them."""
    return x.size == x.shape[-1] and jax.default_backend() != "cpu"


def _where_laid_out(entries: Entries) -> Entries:
    """On a GPU there, unless so many would crowd it: sorted and copied, they take three times what is left of them."""
    if _on_cpu():
        return entries
    card = jax.local_devices()[0].memory_stats() or {}
    crowded = "bytes_limit" in card and len(entries.values) * LAYING_OUT > card["bytes_limit"] / 4
    return entries if crowded else entries.where_jax_computes()


class _Stretches(NamedTuple):
    """Pieces of rows: where each begins among the entries, how long it is, and whose it is."""

    begin: Int[np.ndarray, " p"]
    length: Int[np.ndarray, " p"]
    row: Int[np.ndarray, " p"]


def rows_of(entries: Entries, dtype: Any) -> Rows:
    """One direction of a sparse matrix."""
    entries = _where_laid_out(entries)
    stretches, counts = _cut(entries.starts), entries.counts
    order = np.argsort(-stretches.length.astype(np.int16), kind="stable")
    sizes = slab_sizes(stretches.length[order], len(counts), WIDTH, A_SLAB[not _on_cpu()])
    classes, place, total = [], np.full(len(order), sum(rows for _, rows in sizes), np.int32), 0
    ends = np.cumsum([rows for _, rows in sizes])
    for (width, rows), end in reversed(list(zip(sizes, ends, strict=True))):
        some = np.sort(order[end - rows : end])  # neighbours in memory are neighbours in space
        place[some] = total + np.arange(len(some), dtype=np.int32)
        classes.append((width, rows, some))
        total += rows
    alone = counts[stretches.row] <= LONGEST
    long = place[~alone], stretches.row[~alone]
    where = np.full(len(counts), total, np.int32)
    where[stretches.row[alone]] = place[alone]
    same = len(sizes) == 1 and np.array_equal(where, np.arange(total))
    return Rows(
        _slabs(entries, stretches, classes, dtype),
        None if same else on_device(where),
        None if np.all(alone) else on_device(_long(*long, zero=total), np.int32),
        len(counts),
    )


def _long(place: Int[np.ndarray, " p"], row: Int[np.ndarray, " p"], zero: int) -> Int[np.ndarray, "2 p"]:
    """Which sums go to which rows, and some zeros to the first."""
    missing = power_of_two(len(place)) - len(place)
    return np.stack([np.pad(place, (0, missing), constant_values=zero), np.pad(row, (0, missing))])


def _cut(starts: Int[np.ndarray, " m+1"]) -> _Stretches:
    """All rows, those that are too long in pieces."""
    counts = np.diff(starts)
    pieces = np.maximum(-(-counts // LONGEST), 1)
    row = np.repeat(np.arange(len(counts)), pieces)
    number = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = starts[row] + number * LONGEST
    return _Stretches(begin, np.minimum(LONGEST, starts[row + 1] - begin), row)


class _Columns(NamedTuple):
    """A slab before it is filled: for each of its columns where its entries begin, and how many there are."""

    begin: Int[np.ndarray, " C"]
    count: Int[np.ndarray, " C"]
    height: int
    folds: tuple[tuple[int, int], ...]


def _slabs(
    entries: Entries, stretches: _Stretches, classes: list[tuple[int, int, np.ndarray]], dtype: Any
) -> tuple[Slab, ...]:
    """Stretches side by side: those of each class (width, rows, members) padded to its width, wide ones folded."""
    apart, wide = [[c] for c in classes if c[0] <= WIDTH], [c for c in classes if c[0] > WIDTH]
    empty = [_columns(stretches, some) for some in (*apart, wide) if some]
    if entries.here:
        return tuple(_filled(entries, columns, dtype) for columns in empty)
    begins, counts = ([on_device(getattr(c, name), np.int64) for c in empty] for name in ("begin", "count"))
    found = _filled_there(
        entries.columns, entries.values, begins, counts, tuple(c.height for c in empty), np.dtype(dtype)
    )
    return tuple(Slab(*arrays, c.folds) for arrays, c in zip(found, empty, strict=True))


def _columns(stretches: _Stretches, classes: list[tuple[int, int, np.ndarray]]) -> _Columns:
    height = min(classes[0][0], WIDTH)
    begins, counts = [], []
    for width, rows, some in classes:
        none = np.zeros(rows - len(some), int)
        for skipped in range(0, width, height):
            begins += [stretches.begin[some] + skipped, none]
            counts += [np.clip(stretches.length[some] - skipped, 0, height), none]
    folds = tuple((width // height, rows) for width, rows, _ in classes)
    return _Columns(np.concatenate(begins), np.concatenate(counts), height, folds)


def _filled(entries: Entries, empty: _Columns, dtype: Any) -> Slab:
    height, each = empty.height, np.arange(empty.height)[:, None]
    ready = len(empty.begin) * height
    # all alike: they are there already
    if np.all(empty.count == height) and np.array_equal(empty.begin, np.arange(0, ready, height)):
        across = lambda a, kind: on_device(turned(a[:ready].reshape(-1, height), kind))
        return Slab(across(entries.columns, np.int32), across(entries.values, dtype), empty.folds)
    columns = np.empty((height, len(empty.begin)), np.int32)
    values = np.empty(columns.shape, dtype)

    def fill(first: int) -> None:  # a few at a time: indices take more memory than entries
        here = slice(first, first + ROWS_AT_ONCE)
        inside = each < empty.count[here]
        at = np.where(inside, empty.begin[here] + each, 0)
        columns[:, here] = entries.columns.take(at)  # of padding, any
        values[:, here] = entries.values.take(at) * inside

    for _ in in_threads(fill, ((first,) for first in range(0, columns.shape[1], ROWS_AT_ONCE))):
        pass
    return Slab(on_device(columns), on_device(values), empty.folds)


@eqx.filter_jit
def _filled_there(
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
