"""The partition of a sparse matrix's rows into slices of similar width (sliced ELLPACK) with little padding."""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from hipgp.runtime.buckets import SMALL, round_up_geometrically, round_up_to_power_of_two


class _Resolution(NamedTuple):
    """The resolution with which the layout of a matrix follows the lengths of its rows."""

    shares: int  # number of equal shares of the rows, sorted by length; slices may end where a share ends
    widths: int  # number of widths from one power of two to the next
    longest: int  # a slice may also end after this many of the longest rows,
    growth: int  # after `growth` times as many, and so on


FINE, COARSE = _Resolution(16, 8, longest=8, growth=2), _Resolution(4, 1, longest=32, growth=4)


def slice_sizes(
    lengths: Int[np.ndarray, " p"], rows: int, fold: int, slice_cost: int
) -> list[tuple[int, int]]:
    """Return (width, rows) of the slices for rows of these descending `lengths`, the widest slice first.

    Slices end at fixed shares of the matrix's `rows`, and widths are rounded up, so that small changes of the lengths
    change no shape. Dynamic programming minimises the cost of the slices: their entries, plus `slice_cost` for each
    slice, or a quarter of that if it is wider than `fold` and its rows are split into columns of `fold` entries. Many
    rows without entries are left out. Matrices of fewer than `SMALL` entries have coarser shares and widths: a fifth to a
    half more padding is cheap there, and similar data then share a layout and its compiled program.
    """
    longest = int(lengths[0]) if len(lengths) else 0
    if longest == 0:
        return []
    if len(lengths) == rows and longest == lengths[-1]:
        return [(longest if longest <= fold else -(-longest // fold) * fold, rows)]
    cut = len(lengths) - rows  # further pieces of rows that are split
    total = rows + (round_up_to_power_of_two(cut) if cut > 0 else 0)
    if total * (width := round_up_geometrically(longest, least=8)) <= slice_cost // 2:
        return [(width, total)]  # few entries: padding to 8, 32 or 128 costs nothing
    resolution = COARSE if int(np.sum(lengths)) < SMALL else FINE
    share = -(-rows // resolution.shares)
    # a few very long rows form a slice if that saves as much padding as a slice costs
    worth = share - slice_cost // 4 // _round_up_width(longest, 2, fold)
    few = itertools.takewhile(
        lambda begin: begin < worth, (resolution.longest * resolution.growth**i for i in range(30))
    )
    begins = [0, *few, *range(share, total, share)]
    longest_of = [int(lengths[b]) if b < len(lengths) else 0 for b in begins]
    # the longest row varies most from data set to data set, and few rows have its width
    steps = [min(2, resolution.widths), *[resolution.widths] * len(longest_of)]
    widths = [_round_up_width(n, step, fold) for n, step in zip(longest_of, steps, strict=False)]
    used = np.count_nonzero(widths)
    return _cheapest_slices([*begins, total][: used + 1], widths[:used], fold, slice_cost)


def _round_up_width(length: int, steps: int, fold: int) -> int:
    """Round a width up, to `steps` values between powers of two; above `fold` to at most four, multiples of `fold`."""
    half = round_up_to_power_of_two(length) // 2
    step = max(1, half // steps) if length <= fold else max(fold, half // min(steps, 4))
    return -(-length // step) * step


def _cheapest_slices(
    edges: list[int], widths: list[int], fold: int, slice_cost: int
) -> list[tuple[int, int]]:
    """Join adjacent slices edges[i] : edges[i + 1], of descending widths, to the least total cost."""
    count = len(widths)
    cost, end = [0.0] * (count + 1), [count] * (count + 1)
    # the cost of a slice that ends where slice j begins
    prices = [*(slice_cost // 4 if width > fold else slice_cost for width in widths), slice_cost]
    for i in reversed(range(count)):
        each = [cost[j] + (edges[j] - edges[i]) * widths[i] + prices[j] for j in range(i + 1, count + 1)]
        end[i] = i + 1 + int(np.argmin(each))
        cost[i] = each[end[i] - i - 1]
    found, i = [], 0
    while i < count:
        found.append((widths[i], edges[end[i]] - edges[i]))
        i = end[i]
    return found
