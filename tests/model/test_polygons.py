"""Polygons: areas, rules, input of all kinds, and posteriors from them. Their laws are in test_functionals.py."""

import numpy as np
import pytest

import dense
import hipgp as hg
from hipgp.model.polygon_rule import rule

SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
HOLE = 0.25 + 0.5 * SQUARE
CELLS = [SQUARE * [0.5, 0.25] + [0.5 * i, 0.25 * j] for i in range(2) for j in range(4)]


class Shape:
    """What shapely's geometries have in common with those of other packages."""

    def __init__(self, kind, coordinates):
        self.__geo_interface__ = {"type": kind, "coordinates": coordinates}


def flower(petals, vertices):
    t = 2 * np.pi * np.arange(vertices) / vertices
    return (1 + 0.3 * np.sin(petals * t))[:, None] * np.stack([np.cos(t), np.sin(t)], axis=1)


def test_rings_of_rings_closed_rings_and_geometries_are_the_same_polygon():
    closed = np.concatenate([SQUARE, SQUARE[:1]])
    backwards = closed[::-1].tolist()
    given = [
        [SQUARE, HOLE],
        [closed, HOLE[::-1]],
        Shape("Polygon", [closed.tolist(), HOLE.tolist()]),
        Shape("MultiPolygon", [[backwards, HOLE.tolist()]]),
        {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [backwards, HOLE.tolist()]}},
    ]
    polygons = hg.PolygonAverages(given)
    np.testing.assert_allclose(polygons.area, 0.75, rtol=1e-15)
    nodes = polygons.nodes(0.4)
    np.testing.assert_allclose(np.einsum("nq,nqd->nd", nodes.weights, nodes.x), 0.5, rtol=1e-13)
    assert np.all(nodes.weights >= 0)
    assert not np.any(np.all((nodes.x > 0.25) & (nodes.x < 0.75), axis=2) & (nodes.weights > 0))


def test_parts_and_holes_add_up():
    parts = hg.PolygonAverages([[SQUARE, SQUARE + 2]], total=True)
    assert parts.area.tolist() == [2.0]
    one, two = (hg.PolygonAverages([s], total=True).nodes(0.3) for s in (SQUARE, SQUARE + 2))
    together = parts.nodes(0.3)
    third = lambda n: float(np.sum(n.weights * n.x[..., 0] ** 3 * n.x[..., 1] ** 2))
    np.testing.assert_allclose(third(together), third(one) + third(two), rtol=1e-13)


def test_the_number_of_nodes_follows_the_size_and_not_the_vertices():
    """Both outlines enclose nearly the same flower; the finer one has 20 times the vertices."""
    for spacing in (4.0, 0.5):
        few, many = (hg.PolygonAverages([flower(5, n)]).nodes(spacing).rule_size for n in (40, 800))
        assert many <= 1.3 * few


@pytest.mark.parametrize("spacing", [10.0, 1.0, 0.4, (0.3, 1.1)])
def test_a_disk_integrates_as_a_disk_does(spacing):
    """A regular polygon of n sides lacks a share of 2 pi^2 / 3 n^2 of the disk's area; fourth moments likewise."""
    t = 2 * np.pi * np.arange(2000) / 2000
    nodes = hg.PolygonAverages([np.stack([np.cos(t), np.sin(t)], axis=1)], total=True).nodes(spacing)
    r2 = np.sum(nodes.x**2, axis=-1)
    np.testing.assert_allclose([np.sum(nodes.weights * f) for f in (1, r2)], [np.pi, np.pi / 2], rtol=4e-6)


def test_errors_fall_with_the_seventh_power_of_the_cells_or_faster():
    """An analytic field over a flower: halving the spacing lowers the error by 2^7 at least."""
    outline = flower(3, 60)
    edges = np.concatenate([outline, np.roll(outline, -1, axis=0)], axis=1).tobytes()
    field = lambda x: np.exp(np.sin(1.3 * x[:, 0] + 0.4) - x[:, 1])
    found = {
        h: float(np.sum(rule(edges, (h, h))[1] * field(rule(edges, (h, h))[0]))) for h in (0.9, 0.45, 0.1)
    }
    error = [abs(found[h] - found[0.1]) for h in (0.9, 0.45)]
    assert error[1] < error[0] / 2**7
    assert error[1] < 1e-6


def test_rectangles_are_boxes():
    """Posteriors from eight cells, given as boxes and as polygons: the same to the quadrature's error of 1e-8."""
    lower, upper = np.min(CELLS, axis=1), np.max(CELLS, axis=1)
    y = np.sin(np.arange(8.0))
    gp = hg.GP(hg.SquaredExponential(1.0, 0.7), hg.Grid.cover((-0.2, -0.2), (1.2, 1.2), shape=(20, 20)))
    found = [
        gp.condition(hg.observe(f, y, 0.1), hg.Exact(accuracy=1e-8), progress=False).predict(
            hg.Points([[0.3, 0.6]])
        )
        for f in (hg.BoxAverages(lower, upper), hg.PolygonAverages(CELLS))
    ]
    np.testing.assert_allclose(found[1].mean, found[0].mean, rtol=1e-5)
    np.testing.assert_allclose(found[1].std, found[0].std, rtol=1e-5)


def test_exact_and_batch_agree_with_the_dense_reference(tmp_path):
    """Averages over triangles and totals over a square with a hole; `Batch` on a fine grid, and after a file."""
    triangles = [SQUARE[[0, 1, 2]], SQUARE[[0, 2, 3]], 0.3 + 0.4 * SQUARE[[1, 3, 0]]]
    rings = [[SQUARE, HOLE[::-1]]]
    data = hg.observe(hg.PolygonAverages(triangles), [1.0, -0.5, 0.3], 0.05)
    data = data + hg.observe(hg.PolygonAverages(rings, total=True), [0.4], 0.02)
    reference = dense.polygon_averages([[t] for t in triangles[:2]] + [[triangles[2][::-1]]])
    reference = reference + dense.polygon_averages(rings, total=True)
    kernel, at = dense.SquaredExponential(1.2, 0.6), np.array([[0.2, 0.8], [0.5, 0.5]])
    mean, covariance = dense.exact_gp(kernel, reference, data.y, data.noise_std(None), dense.points(at))[:2]
    gp = hg.GP(hg.SquaredExponential(1.2, 0.6), hg.Grid.cover((-0.1, -0.1), (1.1, 1.1), shape=(33, 33)))
    for method, tolerance in ((hg.Exact(accuracy=1e-8), 1e-7), (hg.Batch(tolerance=1e-8), 1e-4)):
        post = gp.condition(data, method, progress=False)
        p = post.predict(hg.Points(at), std="auto")
        np.testing.assert_allclose(p.mean, mean, atol=tolerance)
        np.testing.assert_allclose(p.std, np.sqrt(np.diag(covariance)), atol=tolerance)
        post.save(tmp_path / f"{method.name}.hipgp")
        again = hg.load(tmp_path / f"{method.name}.hipgp").predict(hg.PolygonAverages(rings, total=True))
        np.testing.assert_allclose(
            again.mean, post.predict(hg.PolygonAverages(rings, total=True)).mean, rtol=1e-9
        )


def test_totals_change_with_the_unit_of_length():
    u = pytest.importorskip("astropy.units")
    total = hg.observe(hg.PolygonAverages([SQUARE * u.km], total=True), [3.0] * u.kg, 0.1 * u.kg)
    assert total.frame.field == "kg / km2"
    both = total + hg.observe(hg.PolygonAverages([SQUARE * 1000 * u.m], total=True), [3.0] * u.kg, 0.1 * u.kg)
    np.testing.assert_allclose(both.y, 3.0)
    np.testing.assert_allclose(both.blocks[1].functional.area, 1.0)


BAD = {
    "a bow tie": ([SQUARE, SQUARE[[0, 2, 1, 3]]], r"polygons\[1\]: .*does not cross itself.*make_valid"),
    "parts that overlap": ([[SQUARE, SQUARE + 0.5]], r"polygons\[0\]: .*does not cross itself"),
    "two vertices": ([SQUARE, SQUARE[:2]], r"polygons\[1\]: expected at least 3 different vertices.*got 2"),
    "a line there and back": ([SQUARE[[0, 2]].repeat(2, 0)], r"polygons\[0\]: .*positive area"),
    "the same ring twice": ([[SQUARE, SQUARE]], r"polygons\[0\]: .*positive area"),
    "NaN": ([SQUARE, SQUARE, np.where(SQUARE > 0, np.nan, 0)], r"polygons\[2\]: expected finite numbers"),
    "one polygon, not in a list": (SQUARE, r"give a list of polygons, also for one"),
    "a point": ([Shape("Point", (0.0, 0.0))], r"polygons\[0\]: expected a Polygon or a MultiPolygon, got Point"),
    "an empty geometry": ([Shape("MultiPolygon", [])], r"polygons\[0\]: .*empty"),
    "no polygons": ([], "at least one, got none"),
    "three coordinates too many": ([np.zeros((4, 5))], r"polygons\[0\]: .*shape \(4, 5\)"),
    "a number": (3.0, r"polygons\[0\]"),
}  # fmt: skip


@pytest.mark.parametrize("given, said", BAD.values(), ids=BAD.keys())
def test_bad_polygons_are_refused_with_their_number(given, said):
    with pytest.raises(ValueError, match=said):
        hg.PolygonAverages(given)


def test_rounded_coordinates_may_cross_a_little():
    """A dent that reaches a millionth beyond the opposite side, as rounded outlines of real districts do."""
    dented = np.array([[0, 0], [1, 0], [1, 1], [0.6, 1], [0.5, -1e-6], [0.4, 1], [0, 1]])
    assert hg.PolygonAverages([dented]).area == pytest.approx(0.9, abs=1e-5)
