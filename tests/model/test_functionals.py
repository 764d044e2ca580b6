"""One conformance suite: every functional goes through the same laws. A new one supplies only its maker to MAKERS.

A maker takes a dimension and a dtype and returns seven functionals in the unit cube, as hipgp makes them and as the
dense reference does, with quadrature of its own.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dense
from hipgp.model import kernels as hk
from hipgp.model.functionals import BoxAverages, Derivatives, Functional, Functionals, LineIntegrals, Points
from hipgp.model.nodes import Nodes
from hipgp.model.paths import PathIntegrals
from hipgp.model.polygons import PolygonAverages
from hipgp.weights import covariance as hc
from hipgp.weights import exact

COUNT = 7
FINE = 0.08  # a spacing at which 2 nodes a cell integrate a squared exponential of lengthscale 0.7 to 1e-10


class Made(NamedTuple):
    ours: Functional
    reference: dense.Functional


def uniform(seed, dimension, dtype, low=0.0, high=1.0):
    return np.random.default_rng(seed).uniform(low, high, (COUNT, dimension)).astype(dtype)


def make_points(d, dtype):
    x = uniform(0, d, dtype)
    return Made(Points(x), dense.points(x))


def make_derivatives(d, dtype):
    x = uniform(1, d, dtype)
    return Made(Derivatives(x, axis=d - 1), dense.derivatives(x, axis=d - 1))


def make_directional(d, dtype):
    x, v = uniform(2, d, dtype), uniform(3, d, dtype, -2, 2)
    return Made(Derivatives(x, direction=v), dense.derivatives(x, direction=v))


def make_lines(d, dtype):
    a, b = uniform(4, d, dtype), uniform(5, d, dtype)
    return Made(LineIntegrals(a, b), dense.line_integrals(a, b))


def make_shared_start(d, dtype):
    a, b = np.full(d, 0.1, dtype), uniform(6, d, dtype, 0.2, 1)
    return Made(LineIntegrals(a, b, average=True), dense.line_integrals(a, b, average=True))


def make_boxes(d, dtype):
    a = uniform(7, d, dtype, 0, 0.4)
    b = a + uniform(8, d, dtype, 0.1, 0.5)
    return Made(BoxAverages(a, b), dense.box_averages(a, b, order=10))


def make_polygons(d, dtype):
    """A triangle, a quadrangle with a dent, two parts, a hole, and small ones, anywhere in the unit square."""
    if d != 2:
        pytest.skip("polygons lie in a plane")
    rng = np.random.default_rng(11)
    around = lambda n: np.stack([np.cos(t := 2 * np.pi * np.arange(n) / n), np.sin(t)], axis=1)
    star = 0.5 + np.where(np.arange(10) % 2, 0.2, 0.4)[:, None] * around(10)
    hole = (0.5 + 0.1 * around(3))[::-1]
    rings = [
        [rng.uniform(0, 1, (3, 2))],
        [np.array([[0.1, 0.1], [0.9, 0.1], [0.3, 0.3], [0.1, 0.9]])],
        [0.2 + 0.15 * around(5), 0.7 + 0.2 * around(3)],
        [star, hole],
        *([rng.uniform(0.1, 0.9, 2) + 0.05 * around(n)] for n in (3, 6, 12)),
    ]
    rings[0][0] = rings[0][0][:: int(np.sign(np.linalg.det(np.diff(rings[0][0], axis=0))))]
    rings = [[ring.astype(dtype) for ring in polygon] for polygon in rings]
    return Made(PolygonAverages(rings), dense.polygon_averages(rings, order=8))


def make_paths(d, dtype):
    """Two pieces each, the first of them also with a line of its own."""
    a, b, c = (uniform(seed, d, dtype) for seed in (12, 13, 14))
    paths = [np.stack(three) for three in zip(a, b, c, strict=True)]
    pieces = [dense.line_integrals(a, b), dense.line_integrals(b, c)]
    x, weights = (np.concatenate([piece[i] for piece in pieces], axis=1) for i in (0, 1))
    return Made(PathIntegrals(paths), dense.functionals(x, weights))


def make_stencils(d, dtype):
    rng = np.random.default_rng(9)
    x, c = rng.uniform(0, 1, (COUNT, 4, d)).astype(dtype), rng.normal(size=(COUNT, 4)).astype(dtype)
    return Made(Functionals(x, c), dense.functionals(x, c))


def make_slopes(d, dtype):
    rng = np.random.default_rng(10)
    x, c = rng.uniform(0, 1, (COUNT, 3, d)).astype(dtype), np.array([0.5, 1.0, -2.0], dtype)
    return Made(Functionals(x, c, axis=0), dense.functionals(x, np.tile(c, (COUNT, 1)), np.eye(d)[0]))


MAKERS = {
    "points": make_points,
    "derivatives": make_derivatives,
    "directional": make_directional,
    "lines": make_lines,
    "averages from one start": make_shared_start,
    "boxes": make_boxes,
    "polygons": make_polygons,
    "paths": make_paths,
    "weighted sums": make_stencils,
    "sums of slopes": make_slopes,
}
OURS = {1: hk.SquaredExponential(1.3, 0.7), 2: hk.SquaredExponential(1.3, (0.7, 1.1))}
REFERENCE = {1: dense.SquaredExponential(1.3, 0.7), 2: dense.SquaredExponential(1.3, (0.7, 1.1))}

every_functional = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
every_dimension = pytest.mark.parametrize("dimension", [1, 2])


@eqx.filter_jit
def covariances(kernel, points, nodes):
    """k* and k** of nodes, and the full covariance matrix among them."""
    group = hc.transposed_nodes(jax.tree.map(jnp.asarray, nodes))
    one_group = hc.TransposedNodes(*[None if a is None else a[..., None] for a in group])
    return (
        hc.covariance_with_points(kernel, points, nodes),
        hc.prior_variances(kernel, nodes),
        hc.gram(kernel, one_group)[..., 0],
    )


def as_dense(nodes: Nodes) -> dense.Functional:
    """The reference with hipgp's own nodes: for kernels whose quadrature has not converged."""
    return dense.functionals(nodes.x, nodes.weights, None if nodes.direction is None else nodes.direction)


# ---------------------------------------------------------------- laws of all functionals


@every_functional
@every_dimension
def test_covariances_agree_with_the_reference(make, dimension):
    """With points, among each other, and variances: the reference has its own quadrature, converged like ours."""
    ours, reference = make(dimension, float)
    x = np.random.default_rng(20).uniform(-0.2, 1.2, (11, dimension))
    cross, variance, matrix = covariances(OURS[dimension], x, ours.nodes(FINE))
    kernel = REFERENCE[dimension]
    np.testing.assert_allclose(
        cross, dense.covariance(kernel, reference, dense.points(x)), rtol=0, atol=1e-10
    )
    np.testing.assert_allclose(matrix, dense.covariance(kernel, reference, reference), rtol=0, atol=1e-10)
    np.testing.assert_allclose(variance, dense.variance(kernel, reference), rtol=0, atol=1e-10)
    np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=1e-13)


@every_functional
def test_rough_kernels_agree_node_by_node(make):
    """A Matern 3/2, at a coarse spacing: same nodes, so only sums, and derivatives at distance zero, are tested."""
    ours, _ = make(2, float)
    nodes = ours.nodes(0.5)
    x = np.concatenate([np.random.default_rng(20).uniform(0, 1, (10, 2)), nodes.x[0, :1]])
    cross, variance, matrix = covariances(hk.Matern32(0.8, (0.5, 0.9)), x, nodes)
    kernel, reference = dense.Matern32(0.8, (0.5, 0.9)), as_dense(nodes)
    np.testing.assert_allclose(
        cross, dense.covariance(kernel, reference, dense.points(x)), rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(matrix, dense.covariance(kernel, reference, reference), rtol=0, atol=1e-12)
    np.testing.assert_allclose(variance, np.diag(matrix), rtol=1e-12)


@every_functional
@every_dimension
def test_nodes_measure_polynomials(make, dimension):
    """Both quadratures are exact for a fifth power, so they agree to rounding; no kernel is involved."""
    ours, reference = make(dimension, float)
    slope = np.array([0.7, -1.2])[:dimension]
    field = lambda x: (x @ slope + 0.4) ** 5
    gradient = lambda x: 5 * ((x @ slope + 0.4) ** 4)[..., None] * slope

    def measured(f, value, direction):
        along = np.einsum("nqd,nd->nq", gradient(f[0]), direction)
        return np.sum(f[1] * (value[:, None] * field(f[0]) + along), axis=1)

    nodes = ours.nodes(1.0).with_derivative_fields()
    found = measured((nodes.x, nodes.weights), nodes.value, nodes.direction)
    np.testing.assert_allclose(
        found, measured(reference[:2], reference.value, reference.direction), rtol=1e-12
    )


@every_functional
def test_covariances_are_linear(make):
    nodes = make(1, float).ours.nodes(FINE)
    thrice = Functionals(nodes.x, 3 * nodes.weights, direction=nodes.direction).nodes(FINE)
    x = np.linspace(0, 1, 5)[:, None]
    once, many = covariances(OURS[1], x, nodes), covariances(OURS[1], x, thrice)
    for a, b, factor in zip(once, many, (3, 9, 9), strict=True):
        np.testing.assert_allclose(b, factor * a, rtol=1e-13, atol=1e-14)  # a few roundings


@every_functional
@pytest.mark.parametrize("index", [2, -1, slice(1, 4), [4, 0, 4], np.arange(COUNT) % 2 == 0], ids=str)
def test_indexing_picks_functionals(make, index):
    ours, _ = make(2, float)
    picked, rows = ours[index], np.atleast_1d(np.arange(COUNT)[index])
    assert type(picked) is type(ours)
    assert (len(picked), picked.ndim, picked.derivative) == (len(rows), 2, ours.derivative)
    np.testing.assert_array_equal(picked.places(), ours.places()[rows])
    # the number of nodes may differ, the functional may not: its moments up to the second
    moments = lambda n: [np.sum(n.weights, 1), np.einsum("nq,nqd,nqe->nde", n.weights, n.x, n.x)]
    nodes, everything = picked.nodes(FINE), ours.nodes(FINE)
    for a, b in zip(moments(nodes), moments(everything), strict=True):
        np.testing.assert_allclose(a, b[rows], rtol=0, atol=1e-13)
    if nodes.direction is not None:
        np.testing.assert_array_equal(nodes.direction, everything.direction[rows])


@every_functional
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_is_kept(make, dtype):
    ours, _ = make(2, dtype)
    assert ours.dtype == ours[:2].dtype == dtype
    for field in jax.tree.leaves(ours.nodes(0.3)) + jax.tree.leaves(ours.nodes(0.3).with_derivative_fields()):
        assert field.dtype == dtype


@every_functional
def test_nodes_lie_in_the_hull_of_the_places(make):
    """Points, segments, boxes: within the bounding box of the places, to rounding. check_inside relies on it."""
    ours, _ = make(2, float)
    x, places = ours.nodes(0.2).x, ours.places()
    assert np.all(x >= places.min(axis=1, keepdims=True) - 1e-15)
    assert np.all(x <= places.max(axis=1, keepdims=True) + 1e-15)


def test_mixtures_are_their_parts_one_after_the_other():
    """Values and slopes, of one node and of several."""
    parts = [
        make(2, float).ours.nodes(0.3) for make in (make_points, make_directional, make_lines, make_slopes)
    ]
    x = np.random.default_rng(21).uniform(0, 1, (6, 2))
    of_nodes = eqx.filter_jit(
        lambda nodes: (hc.covariance_with_points(OURS[2], x, nodes), hc.prior_variances(OURS[2], nodes))
    )
    cross, variance = of_nodes(Nodes.concatenate(parts))
    singly = [of_nodes(part) for part in parts]
    np.testing.assert_allclose(cross, np.concatenate([s[0] for s in singly]), rtol=0, atol=1e-13)
    np.testing.assert_allclose(variance, np.concatenate([s[1] for s in singly]), rtol=0, atol=1e-13)


# ---------------------------------------------------------------- laws between functionals


@pytest.mark.parametrize("kind", ["line", "box"])
def test_derivative_of_integral_is_the_integrand(kind):
    """In 1-D, (length x average up to t) has derivative f(t). Central differences are off by h^2 k'' / 6, h = 1e-3."""
    kernel, x, t, h = OURS[1], np.linspace(-0.5, 1.5, 9)[:, None], np.array([[0.3], [0.8]]), 1e-3

    def integral(end):
        if kind == "line":
            return covariances(kernel, x, LineIntegrals([0.0], end).nodes(FINE))[0]
        return end * covariances(kernel, x, BoxAverages([0.0], end).nodes(FINE))[0]

    integrand = covariances(kernel, x, Points(t).nodes(FINE))[0]
    np.testing.assert_allclose((integral(t + h) - integral(t - h)) / (2 * h), integrand, rtol=0, atol=2e-6)


def test_integral_of_the_derivative_is_the_difference():
    """Along rays in 2-D, with the derivative taken along the ray; rays integrate to 1e-10 at this spacing."""
    a, b = uniform(4, 2, float), uniform(5, 2, float)
    line = LineIntegrals(a, b, average=True).nodes(FINE)
    slopes = Functionals(line.x, line.weights, direction=b - a).nodes(FINE)
    ends = Functionals(np.stack([b, a], axis=1), [1.0, -1.0]).nodes(FINE)
    x = np.random.default_rng(22).uniform(0, 1, (6, 2))
    np.testing.assert_allclose(
        covariances(OURS[2], x, slopes)[0], covariances(OURS[2], x, ends)[0], rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("kind", ["line", "box"])
def test_random_nodes_converge_to_gauss_nodes(kind):
    """The paper's Monte Carlo: off by std / sqrt(nodes), std that of k along the ray; 5 of them, for 7 x 6 numbers."""
    count = 20_000
    if kind == "line":
        gauss, _ = make_shared_start(2, float)
        random = LineIntegrals(gauss.start, gauss.end, average=True, rule="monte-carlo", nodes_per_ray=count)
    else:
        gauss, _ = make_boxes(2, float)
        random = BoxAverages(gauss.lower, gauss.upper, rule="monte-carlo", nodes_per_box=count)
    x = np.random.default_rng(23).uniform(0, 1, (6, 2))
    nodes = gauss.nodes(FINE)
    values = REFERENCE[2].value(nodes.x[:, :, None] - x)  # (N, Q, 6)
    mean = np.einsum("nq,nqm->nm", nodes.weights, values)
    std = np.sqrt(np.einsum("nq,nqm->nm", nodes.weights, (values - mean[:, None]) ** 2))
    sampled = random.nodes(FINE)
    assert sampled.x.shape == (COUNT, count, 2)
    found = np.einsum("nq,nqm->nm", sampled.weights, REFERENCE[2].value(sampled.x[:, :, None] - x))
    error = np.abs(found - mean) / (std / np.sqrt(count))
    assert np.all(error < 5)
    assert np.max(error) > 0.1  # and they are random nodes, not better ones
    again = type(random)(*random.places().swapaxes(0, 1), rule="monte-carlo", seed=1).nodes(FINE)
    assert not np.array_equal(again.x[:, :5], sampled.x[:, :5])


# ---------------------------------------------------------------- closed form and quadrature error


@pytest.mark.parametrize("average", [False, True])
def test_closed_form_is_the_limit_of_quadrature(average):
    kernel, a, b = OURS[2], uniform(4, 2, float), uniform(5, 2, float)
    b[0], b[1] = a[0] + 1e-3, a[1] + 40.0  # one very short ray, one of sixty lengthscales
    rays = LineIntegrals(a, b, average)
    assert exact.has_closed_form(kernel, rays)
    x = np.random.default_rng(24).uniform(0, 1, (9, 2))
    reference = dense.line_integrals(a, b, order=16, panels=64, average=average)
    cross = hc.line_covariance_with_points(kernel, jnp.asarray(x), jnp.asarray(a), jnp.asarray(b), average)
    variance = hc.line_variances(kernel, jnp.asarray(a), jnp.asarray(b), average)
    expected = dense.covariance(REFERENCE[2], reference, dense.points(x))
    np.testing.assert_allclose(cross, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(variance, dense.variance(REFERENCE[2], reference), rtol=1e-10)


def test_closed_form_variance_is_smooth_where_its_series_takes_over():
    """Either side of the switch the formula loses 1e-16 / length^2 to cancellation: 1e-11 of its value at 1e-4."""
    length = np.sqrt(1e-4 * np.array([0.5, 0.999, 1.001, 2.0]))
    start = np.zeros((4, 1))
    got = hc.line_variances(hk.SquaredExponential(), jnp.asarray(start), jnp.asarray(length[:, None]), True)
    s = length**2
    np.testing.assert_allclose(got, 1 - s / 12 + s**2 / 120, rtol=1e-10)


def test_closed_form_is_only_for_what_it_fits():
    rays = LineIntegrals([0.0, 0.0], [[1.0, 1.0]])
    assert not exact.has_closed_form(hk.Matern52(), rays)
    assert not exact.has_closed_form(OURS[2] + OURS[2], rays)
    assert not exact.has_closed_form(OURS[2], LineIntegrals([0.0, 0.0], [[1.0, 1.0]], rule="monte-carlo"))
    assert not exact.has_closed_form(OURS[2], Points([[0.0, 0.0]]))
