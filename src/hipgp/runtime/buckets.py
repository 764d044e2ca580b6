"""Sizes rounded up to few values, so that new data of one shape find their programs compiled.

XLA compiles a program for each new shape and keeps it for as long as the process lives: arrays whose sizes follow the
data, such as the rows of a sparse matrix, would take a second and some megabytes for every new data set.
"""

import itertools

import numpy as np
from jaxtyping import Int

ROW_SHARES = 16  # parts of a matrix' rows, sorted by length, that have one width each


def round_up(count: int, steps: int = 32) -> int:
    """A number no less than `count`: a multiple of 8, with at least `steps` of them from one power of two to the next."""
    step = max(8, 1 << max(0, count.bit_length() - steps.bit_length()))
    return -(-count // step) * step


def round_up_geometrically(size: int, apart: int = 4) -> int:
    """The next of 16, 64, 256, ..., or with other steps `apart` from 16 on."""
    found = 16
    while found < size:
        found *= apart
    return found


def round_up_to_power_of_two(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def slice_sizes(lengths: Int[np.ndarray, " p"], rows: int, fold: int, a_slab: int) -> list[tuple[int, int]]:
    """(width, rows) of dense arrays that hold rows of these `lengths` in descending order, widest first.

    Rows are promoted to a wider array rather than counted exactly: arrays end at fixed shares of the `rows` that the
    matrix has, and widths are rounded up, so that small changes of the lengths change nothing. The arrays are those that
    cost least by dynamic programming: their entries, `a_slab` for each, and a quarter of that for one folded into a
    narrower one (width above `fold`, a multiple of it). Rows without entries are left out where they are many.
    """
    longest = int(lengths[0]) if len(lengths) else 0
    if longest == 0:
        return []
    if len(lengths) == rows and longest == lengths[-1]:
        return [(longest if longest <= fold else -(-longest // fold) * fold, rows)]
    cut = len(lengths) - rows  # pieces beyond one a row
    total = rows + (round_up_to_power_of_two(cut) if cut > 0 else 0)
    if total * (width := round_up_geometrically(longest, 6)) <= a_slab // 4:
        return [(width, total)]  # so little that padding to 16, 96 or 576 costs nothing
    share = -(-rows // ROW_SHARES)
    # a few very long rows are told apart from a share of all where that saves as much as a slab costs
    worth = share - a_slab // 4 // _round_up_width(longest, 2, fold)
    few = itertools.takewhile(lambda begin: begin < worth, (8 << i for i in range(60)))
    begins = [0, *few, *range(share, total, share)]
    longest_of = [int(lengths[b]) if b < len(lengths) else 0 for b in begins]
    # the longest of all varies most, and there are few like it
    widths = [_round_up_width(n, 2 if i == 0 else 8, fold) for i, n in enumerate(longest_of)]
    used = np.count_nonzero(widths)
    return _cheapest_slices([*begins, total][: used + 1], widths[:used], fold, a_slab)


def _round_up_width(length: int, steps: int, fold: int) -> int:
    """`length` rounded up: `steps` widths from one power of two to the next, above `fold` at most four, its multiples."""
    half = round_up_to_power_of_two(length) // 2
    step = max(1, half // steps) if length <= fold else max(fold, half // min(steps, 4))
    return -(-length // step) * step


def _cheapest_slices(edges: list[int], widths: list[int], fold: int, a_slab: int) -> list[tuple[int, int]]:
    """Slices edges[i] : edges[i + 1] of these widths, in descending order, joined where that costs less."""
    count = len(widths)
    cost, end = [0.0] * (count + 1), [count] * (count + 1)
    # of an array that the next narrower one begins behind, at this slice
    prices = [*(a_slab // 4 if width > fold else a_slab for width in widths), a_slab]
    for i in reversed(range(count)):
        each = [cost[j] + (edges[j] - edges[i]) * widths[i] + prices[j] for j in range(i + 1, count + 1)]
        end[i] = i + 1 + int(np.argmin(each))
        cost[i] = each[end[i] - i - 1]
    found, i = [], 0
    while i < count:
        found.append((widths[i], edges[end[i]] - edges[i]))
        i = end[i]
    return found
