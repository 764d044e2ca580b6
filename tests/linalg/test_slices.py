"""Sizes rounded up: new data of one kind find the layout of those before them, and padding stays within bounds."""

import numpy as np
import pytest

from hipgp.linalg.slices import FINE, slice_sizes
from hipgp.runtime.buckets import SMALL

FOLD, A_SLAB = 32, 2**18  # as on a CPU


def chords(rng: np.random.Generator) -> np.ndarray:
    """Entries of 1,500 lines between random places of a square, that see some 500 grid points when they cross it."""
    start, end = rng.uniform(size=(2, 1500, 2))
    return 10 + (450 * np.linalg.norm(end - start, axis=1)).astype(int)


def cells(rng: np.random.Generator) -> np.ndarray:
    """Observations that see each of 3,600 grid points, more of them in the middle."""
    return rng.poisson(70 * (1 + np.sin(np.linspace(0, np.pi, 3600))))


def clumps(rng: np.random.Generator) -> np.ndarray:
    """Points in clusters on a grid: many rows are short or empty, few of them long."""
    return np.bincount(rng.geometric(0.002, size=30_000) % 3600, minlength=3600)


def layout(lengths: np.ndarray) -> list[tuple[int, int]]:
    return slice_sizes(np.sort(lengths)[::-1], len(lengths), FOLD, A_SLAB)


@pytest.mark.parametrize("draw", [chords, cells, clumps])
def test_new_data_of_one_kind_have_the_layouts_of_those_before(draw):
    found = [tuple(layout(draw(np.random.default_rng(seed)))) for seed in range(100)]
    known = set(found[:10])
    assert len(known) <= 3
    assert sum(one not in known for one in found[10:]) <= 2  # new layouts are rare, and end


@pytest.mark.parametrize("draw", [chords, cells, clumps])
def test_every_row_has_room_and_padding_is_bounded(draw):
    for seed in range(20):
        lengths = np.sort(draw(np.random.default_rng(seed)))[::-1]
        sizes = layout(lengths)
        widths = np.repeat([width for width, _ in sizes], [rows for _, rows in sizes])
        assert len(widths) >= np.count_nonzero(lengths)
        assert np.all(widths >= lengths[: len(widths)])
        assert np.sum(widths) < max(A_SLAB, 2.5 * np.sum(lengths))


def test_large_matrices_are_laid_out_finely():
    """From a million entries on padding is dear: a fraction of what the coarse layout would have."""
    rng = np.random.default_rng(0)
    lengths = np.sort(rng.integers(1, 400, size=20_000))[::-1]
    assert np.sum(lengths) > SMALL
    padded = sum(width * rows for width, rows in layout(lengths))
    assert padded < (1 + 4 / FINE.shares) * np.sum(lengths)
