"""Partial Cholesky factors of large positive matrices with random pivots: A ~ L L' from a few columns of A.

Pivots are drawn in proportion to the diagonal of the remainder A - L L', which is positive semidefinite at every rank.
They are drawn in blocks, and those made redundant by others of the block are rejected, so that they are distributed as if
drawn one by one (Epperly, Tropp and Webber 2024, "Embrace rejection"; Chen et al. 2025).

    >>> import numpy as np
    >>> a = np.diag([4.0, 0.0, 9.0])
    >>> found = pivoted_cholesky(lambda rows, columns: a[np.ix_(rows, columns)], np.diag(a), 3)
    >>> np.allclose(found.factor @ found.factor.T, a), sorted(found.pivots.tolist())
    (True, [0, 2])
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float, Int

Entries = Callable[[Int[np.ndarray, " n"], Int[np.ndarray, " m"]], Float[np.ndarray, "n m"]]

BLOCK = 64  # pivots drawn together
ROUNDING = 100.0  # the remaining diagonal counts as rounding error below this many eps of the original one


class PartialCholesky(NamedTuple):
    """The factor L of A ~ L L', the pivot of each column, and the diagonal `left` of the remainder A - L L'."""

    factor: Float[np.ndarray, "N r"]
    pivots: Int[np.ndarray, " r"]
    left: Float[np.ndarray, " N"]


def pivoted_cholesky(
    entries: Entries,
    diagonal: Float[np.ndarray, " N"],
    most: int,
    enough: float = 0.0,
    seed: int = 0,
) -> PartialCholesky:
    """Return a factor of at most `most` columns, or fewer once the trace of the remainder is at most `enough`.

    `entries(rows, columns)` gives the block of A at these indices. `diagonal` may be an upper bound: it sets the
    probabilities of pivots, and is corrected at those drawn. Equal seeds give equal factors.
    """
    rng, count = np.random.default_rng(seed), len(diagonal)
    floor = ROUNDING * np.finfo(float).eps * np.asarray(diagonal, float)
    left, rank = np.array(diagonal, float), 0
    factor, pivots = np.empty((count, min(most, count))), np.empty(min(most, count), int)
    while rank < factor.shape[1] and (trace := float(np.sum(left))) > max(enough, 0.0):
        drawn = rng.choice(count, size=BLOCK, p=left / trace)
        chosen_rows = factor[drawn, :rank]
        block = entries(drawn, drawn) - chosen_rows @ chosen_rows.T
        left[drawn] = np.where(np.diag(block) > floor[drawn], np.diag(block), 0.0)
        chosen, root = _accepted(block, left[drawn], rng, factor.shape[1] - rank)
        if not chosen:
            continue
        some = drawn[chosen]
        new = entries(np.arange(count), some) - factor[:, :rank] @ factor[some, :rank].T
        new = scipy.linalg.solve_triangular(root, new.T, lower=True, check_finite=False).T
        factor[:, rank : rank + len(some)], pivots[rank : rank + len(some)] = new, some
        left -= np.einsum("nr,nr->n", new, new)
        left[some] = 0.0
        left[left < floor] = 0.0
        rank += len(some)
    return PartialCholesky(factor[:, :rank], pivots[:rank], left)


def _accepted(
    matrix: Float[np.ndarray, "b b"], left: Float[np.ndarray, " b"], rng: np.random.Generator, most: int
) -> tuple[list[int], Float[np.ndarray, "a a"]]:
    """Accept each row with the probability of the fraction of its diagonal that the accepted rows before it leave.

    Returns at most `most` indices and the Cholesky factor of their block. `left` is the diagonal, zero where it is a
    rounding error: such rows are rejected.
    """
    matrix = matrix.copy()
    chances, chosen, columns = rng.uniform(size=len(matrix)), [], []
    for i, chance in enumerate(chances):
        if 0 < left[i] and matrix[i, i] > max(chance, 1e-6) * left[i] and len(chosen) < most:
            column = matrix[:, i] / np.sqrt(matrix[i, i])
            matrix = matrix - np.outer(column, column)
            chosen.append(i)
            columns.append(column)
    return chosen, np.tril(np.stack(columns, axis=1)[chosen]) if chosen else np.empty((0, 0))
