"""Integrals along lines with many vertices; their laws are in test_functionals.py."""

import numpy as np
import pytest

import hipgp as hg
from hipgp.model.packing import FUNCTIONALS

BENT = [[(0, 0), (3, 0), (3, 4)], [[(0, 0), (1, 0)], [(5, 5), (5, 7)]]]


def test_lengths_parts_and_averages():
    total, mean = hg.PathIntegrals(BENT), hg.PathIntegrals(BENT, average=True)
    np.testing.assert_allclose(total.nodes(0.5).weights.sum(axis=1), [7, 3], rtol=1e-13)
    np.testing.assert_allclose(mean.nodes(0.5).weights.sum(axis=1), 1, rtol=1e-13)
    middle = np.einsum("nq,nqd->nd", mean.nodes(9.0).weights, mean.nodes(9.0).x)
    np.testing.assert_allclose(middle, [[(4.5 + 12) / 7, 8 / 7], [10.5 / 3, 12 / 3]], rtol=1e-13)
    assert total.measure == 1 and mean.measure == 0
    assert total.places()[1].tolist() == [[0, 0], [5, 7]]


def test_straight_paths_are_lines_whatever_their_vertices():
    t = np.array([0.0, 0.2, 0.2, 0.7, 1.0])[:, None]  # one vertex twice
    start, end = np.array([0.1, 0.2]), np.array([0.9, 0.5])
    path, line = hg.PathIntegrals([start + t * (end - start)]), hg.LineIntegrals(start, end[None])
    assert path.length == pytest.approx(line.length)
    for p in (path.nodes(0.01), line.nodes(0.01)):
        value = np.sum(p.weights * np.exp(p.x[..., 0] * p.x[..., 1]))
        assert value == pytest.approx(
            float(np.sum(line.nodes(0.001).weights * np.exp(np.prod(line.nodes(0.001).x, axis=-1)))),
            rel=1e-11,
        )


def test_rows_and_tables():
    paths = hg.PathIntegrals(BENT)
    picked = paths[[1, 0, 1]]
    assert picked.length.tolist() == [3.0, 7.0, 3.0]
    again = hg.PathIntegrals(picked.table)
    np.testing.assert_array_equal(again.nodes(0.5).x, picked.nodes(0.5).x)
    assert "PathIntegrals" in FUNCTIONALS  # can be saved


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        ([], "at least one, got none"),
        ([[(0, 0)]], r"paths\[0\]: expected at least 2 vertices"),
        ([[(0, 0), (1, 1)], [(2, 2), (2, 2)]], "positive length.* in row 1"),
        ([[(0, 0), (1, 1)], [(2, 2, 0), (3, 3, 1)]], r"paths\[1\]: expected vertices in 2 dimensions"),
        (np.zeros((2, 2)), "expected a list, or a table whose first column"),
    ],
)
def test_what_is_no_path_is_refused(paths, told):
    with pytest.raises(ValueError, match=told):
        hg.PathIntegrals(paths)
