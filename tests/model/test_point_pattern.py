"""Point patterns as counts in cells."""

import numpy as np
import pytest

import hipgp as hg

RNG = np.random.default_rng(0)
X = RNG.uniform((0.0, 0.0), (2.0, 1.0), (300, 2))


def test_every_place_is_counted_once_and_the_cells_fill_the_window():
    data = hg.point_pattern(X, window=((0.0, 0.0), (2.0, 1.0)), cells=20)
    block = data.blocks[0]
    assert len(data) == 20 * 10 and data.y.sum() == 300
    np.testing.assert_allclose(np.sum(block.likelihood.exposure), 2.0)
    left = block.functional.x[:, 0] < 0.5
    assert data.y[left].sum() == np.sum(X[:, 0] < 0.5)


def test_exposure_is_taken_at_cells_and_those_without_are_left_out():
    data = hg.point_pattern(
        X[X[:, 0] < 1], ((0.0, 0.0), (2.0, 1.0)), exposure=lambda x: 3.0 * (x[:, 0] < 1), cells=(20, 10)
    )
    assert len(data) == 100
    np.testing.assert_allclose(np.sum(data.blocks[0].likelihood.exposure), 3.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": ((0.0, 0.0), (1.0, 1.0))}, r"window: expected a box or polygon that holds all places, got \d+ of 300 outside"),
        ({"window": ((0.0,), (2.0,))}, "window: expected 2 coordinates"),
        ({"window": "all"}, "window: expected a box"),
        ({"window": ((0.0, 0.0), (2.0, 0.0))}, "window: expected upper ends above"),
        ({"cells": 0}, "cells: expected a whole number"),
        ({"cells": (3, 2.5)}, "cells: expected a whole number"),
        ({"exposure": 0.0}, "exposure: expected no negative numbers and some positive"),
        ({"exposure": lambda x: x[:, 0] - 1}, "exposure: expected no negative numbers"),
        ({"exposure": lambda x: 1.0 * (x[:, 0] < 1)}, r"exposure: expected positive values wherever there are places, got zero in \d+ cells"),
        ({"exposure": lambda x: np.ones(3)}, "exposure: expected a number for each place"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        hg.point_pattern(X, **({"window": ((0.0, 0.0), (2.0, 1.0))} | given))


HOLED = [
    np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 2.0], [1.0, 3.0], [0.0, 2.0]]),
    np.array([[1.0, 0.5], [2.0, 0.5], [2.0, 1.5]]),
]


def test_cells_at_the_edge_of_a_polygon_have_their_area_inside():
    from matplotlib.path import Path

    rng = np.random.default_rng(0)
    outer, hole = (Path(ring) for ring in HOLED)
    x = rng.uniform((0, 0), (4, 3), (500, 2))
    x = x[outer.contains_points(x) & ~hole.contains_points(x)]
    data = hg.point_pattern(x, window=HOLED, cells=7)
    block = data.blocks[0]
    assert data.y.sum() == len(x)
    np.testing.assert_allclose(np.sum(block.likelihood.exposure), 8 + 2 - 0.5, rtol=2e-3)
    fine = np.stack(np.meshgrid((np.arange(840) + 0.5) / 210, (np.arange(720) + 0.5) / 240), -1).reshape(
        -1, 2
    )
    count = len(fine)
    fine = fine[outer.contains_points(fine) & ~hole.contains_points(fine)]
    shape = np.array([7, 6])
    seen = np.zeros(shape)
    np.add.at(seen, tuple((fine / (np.array([4.0, 3.0]) / shape)).astype(int).T), 12 / count)
    at = (block.functional.x / (np.array([4.0, 3.0]) / shape)).astype(int)
    np.testing.assert_allclose(block.likelihood.exposure, seen[tuple(at.T)], atol=2e-3)


@pytest.mark.parametrize(
    ("x", "window", "message"),
    [
        ([[1.5, 0.7], [0.5, 0.5], [3.9, 2.9]], HOLED, r"window: expected a box or polygon .*, got 2 of 3 outside it \(first: number 0"),
        ([[0.5]], HOLED, "window: expected a box, .* for places in 1 dimension"),
        ([[0.5, 0.5]], np.zeros((2, 2)), r"window: expected a box, \(lower, upper\), or one polygon \("),
    ],
)  # fmt: skip
def test_polygons_that_do_not_fit_are_refused(x, window, message):
    with pytest.raises(ValueError, match=message):
        hg.point_pattern(x, window=window)


def test_marks_are_a_further_axis():
    x, sizes = np.array([[0.2, 0.1], [0.9, 0.1], [0.95, 0.9]]), np.array([1.0, 3.0, 2.0])
    triangle = [[0, 0], [1, 0], [1, 1]]
    for window, area in ((((0, 0), (1, 1)), 1.0), (triangle, 0.5)):
        data = hg.point_pattern(x, window, cells=4, marks=sizes, mark_range=(0.0, 4.0))
        places, exposure = data.functionals[0].x, data.blocks[0].likelihood.exposure
        np.testing.assert_allclose(np.sum(exposure), area * 4.0)
        found = places[data.y > 0]
        assert data.y.sum() == 3 and np.all(np.abs(np.sort(found[:, 2]) - [1, 2, 3]) <= 0.1 + 1e-12)
        assert np.all(np.abs(found[np.argsort(found[:, 2]), :2] - x[np.argsort(sizes)]) <= 0.125 + 1e-12)


@pytest.mark.parametrize(
    ("marks", "within", "message"),
    [
        ([1.0], None, "marks: expected one for each of 2 places, got 1"),
        ([1.0, 5.0], (0.0, 4.0), "mark_range: .* 0 to 4, with 1 of 2 outside it"),
        ([1.0, 1.0], None, "mark_range: expected .smallest, largest."),
    ],
)
def test_marks_that_do_not_fit_are_refused(marks, within, message):
    with pytest.raises(ValueError, match=message):
        hg.point_pattern([[0.1], [0.2]], (0.0, 1.0), marks=marks, mark_range=within)
