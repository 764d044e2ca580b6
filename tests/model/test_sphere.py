"""Places and great circles on a sphere against paths of my own, in the dense reference; regions against the sphere."""

import numpy as np
import pytest

import dense
import hipgp as hg
from hipgp.model.sphere import EARTH

START = np.array([[10.0, 20.0], [170.0, -30.0], [0.0, 89.0], [-60.0, 5.0], [5.0, 50.0]])
END = np.array([[60.0, -10.0], [-150.0, 40.0], [180.0, 80.0], [119.0, -6.0], [5.001, 50.0]])


def xyz(lonlat, radius=1.0):
    lon, lat = np.radians(lonlat).T
    return radius * np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def arcs(start, end, radius=1.0, average=False, order=40):
    """Spherical linear interpolation, sin((1 - t) w) a + sin(t w) b over sin w, by Gauss-Legendre in t."""
    a, b = xyz(start), xyz(end)
    angle = 2 * np.arcsin(np.linalg.norm(a - b, axis=1) / 2)
    t, c = np.polynomial.legendre.leggauss(order)
    t, c = (t + 1) / 2, c / 2
    w = angle[:, None]
    nodes = (np.sin((1 - t) * w)[..., None] * a[:, None] + np.sin(t * w)[..., None] * b[:, None]) / np.sin(w)[
        ..., None
    ]
    return dense.functionals(radius * nodes, (1.0 if average else radius * angle)[:, None] * c if not average else
                             np.tile(c, (len(a), 1)))  # fmt: skip


@pytest.mark.parametrize("average", [False, True])
def test_covariances_are_those_of_the_arcs(average):
    f = hg.GreatCircles(START, END, average=average, radius=1.0)
    reference = arcs(START, END, average=average)
    nodes = f.nodes(0.1)
    ours = dense.functionals(nodes.x, nodes.weights)
    kernel = dense.SquaredExponential(1.3, 0.4)
    expected = dense.covariance(kernel, reference, reference)
    np.testing.assert_allclose(dense.covariance(kernel, ours, ours), expected, rtol=1e-7, atol=1e-13)
    np.testing.assert_allclose(np.linalg.norm(nodes.x, axis=-1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(nodes.weights.sum(axis=1), 1.0 if average else f.length, rtol=1e-13)


def test_the_quadrature_converges_as_stated():
    """Two nodes a cell: for a field with a lengthscale of two cells the error is below a millionth."""
    one, other = (
        dense.variance(dense.SquaredExponential(1.0, 0.2), dense.functionals(n.x, n.weights))
        for n in (hg.GreatCircles(START, END, radius=1.0).nodes(h) for h in (0.1, 0.02))
    )
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_the_box_holds_the_arc_and_no_more():
    f = hg.GreatCircles(START, END)
    lower, upper = np.moveaxis(f.places(), 1, 0)
    x = arcs(START, END, EARTH, order=2000).nodes
    np.testing.assert_allclose(np.min(x, axis=1), lower, atol=0.5)
    np.testing.assert_allclose(np.max(x, axis=1), upper, atol=0.5)
    assert np.all(x >= lower[:, None] - 1e-9) and np.all(x <= upper[:, None] + 1e-9)


def test_a_map_of_the_sphere_is_that_of_the_exact_process(tmp_path):
    rng = np.random.default_rng(1)
    lonlat = lambda n: np.stack(
        [rng.uniform(-180, 180, n), np.degrees(np.arcsin(rng.uniform(-1, 1, n)))], axis=1
    )
    start, end, at, target = (lonlat(n) for n in (40, 40, 30, 9))
    kernel, twin = hg.SquaredExponential(1.2, 2500.0), dense.SquaredExponential(1.2, 2500.0)
    f = dense.concatenate(arcs(start, end, EARTH, average=True), dense.points(xyz(at, EARTH)))
    prior = dense.covariance(twin, f, f)
    y = rng.multivariate_normal(np.zeros(70), prior + 0.01 * np.eye(70))
    data = hg.observe(hg.GreatCircles(start, end, average=True), y[:40], 0.1)
    data += hg.observe(hg.Points(hg.sphere(*at.T)), y[40:], 0.1)
    post = hg.GP(kernel).condition(data, hg.Exact(), progress=False)
    post.save(tmp_path / "map.npz")
    truth = dense.exact_gp(twin, f, y, 0.1, dense.points(xyz(target, EARTH)))
    for found in (post, hg.load(tmp_path / "map.npz")):
        p = found.predict(hg.sphere(*target.T))
        assert np.max(np.abs(p.mean - truth.mean) / truth.std) < 1e-4
        np.testing.assert_allclose(p.std, truth.std, rtol=1e-4)


def test_a_region_keeps_distances_in_kilometres_and_comes_back():
    lon, lat = np.array([176.5, -177.6, 179.9, -179.0]), np.array([43.6, 45.2, 51.4, 47.4])
    region = hg.Region.of(lon, lat)
    x = region.plane(lon, lat)
    flat = np.linalg.norm(x[:, None] - x, axis=-1)
    chord = np.linalg.norm(hg.sphere(lon, lat)[:, None] - hg.sphere(lon, lat), axis=-1)
    arc = 2 * EARTH * np.arcsin(chord / (2 * EARTH))
    np.testing.assert_allclose(flat, arc, rtol=2e-3)
    middle = region.plane(region.lon, region.lat)
    np.testing.assert_allclose(middle, 0.0, atol=1e-9)
    assert x[2, 1] > x[0, 1] and x[1, 0] > x[0, 0]  # north is up, east is right
    np.testing.assert_allclose(np.stack(region.degrees(x)), [lon, lat], atol=1e-9)
    with pytest.raises(ValueError, match=r"within 2,207 km.*off by .*hg\.sphere"):
        region.plane([120.0], [60.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: hg.sphere([0.0, 1.0], [10.0, 100.0]),
            "lat: expected degrees between -90 and 90, got 100 in row 1",
        ),
        (lambda: hg.sphere([0.0], [1.0, 2.0]), "lat: expected 1 numbers like lon"),
        (lambda: hg.sphere(0.0, 0.0, radius=-1), "radius: expected a positive"),
        (lambda: hg.GreatCircles([[0, 0.0], [1, 1]], [[9, 0], [1, 1]]), "got the same place in row 1"),
        (lambda: hg.GreatCircles([[0, 0.0]], [[180, 0]]), "got opposite places.* in row 0"),
        (lambda: hg.GreatCircles([[0, 0.0]], [[1, 0, 0, 0]]), "end: expected longitude and latitude"),
        (lambda: hg.GreatCircles([[1.0, 0, 0]], [[0, 2.0, 0]]), "end: expected places on one sphere"),
        (lambda: hg.GreatCircles(np.zeros((2, 2)), np.ones((3, 2))), "end: expected 2 places like start"),
    ],
)
def test_places_that_make_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make()
