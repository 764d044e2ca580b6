"""Conditional weights, exact and local, against the dense conditional on the same grid."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import dense
from hipgp.model import kernels as hk
from hipgp.model.data import Data, observe
from hipgp.model.functionals import BoxAverages, Derivatives, Functionals, LineIntegrals, Points
from hipgp.model.grid import Grid
from hipgp.model.kernel_words import elementary
from hipgp.weights import exact as hw
from hipgp.weights import stencils
from hipgp.weights.toeplitz import embed, toeplitz_on_torus

GRIDS = {1: Grid(0.0, 0.1, 21), 2: Grid(0.0, (0.4, 0.5), (6, 5)), 3: Grid(0.0, (0.5, 0.7, 0.6), (5, 4, 4))}
every_dimension = pytest.mark.parametrize("dimension", GRIDS)


def local_weights(kernel, grid, data, p=stencils.STENCIL, dtype=np.float64):
    return stencils.LocalWeights.from_rows(
        stencils.local_weight_rows(kernel, grid, data.functionals, p), dtype
    )


def functionals(dimension, dtype=float):
    """One of each kind; points include corners, edges and a grid node."""
    rng, high = np.random.default_rng(dimension), np.array(GRIDS[dimension].upper)
    inside = lambda n, a=0.0, b=1.0: (rng.uniform(a, b, (n, dimension)) * high).astype(dtype)
    x = GRIDS[dimension].coordinates()
    points = np.concatenate([inside(5), x[[0, -1, len(x) // 2]], inside(1) * np.eye(dimension)[:1]]).astype(
        dtype
    )
    lower = inside(3, 0.0, 0.5)
    return {
        "points": Points(points),
        "derivatives": Derivatives(inside(4), direction=rng.normal(size=(4, dimension))),
        "lines": LineIntegrals(inside(1), inside(5)),
        "boxes": BoxAverages(lower, lower + inside(3, 0.1, 0.4)),
        "sums": Functionals(inside(12).reshape(4, 3, dimension), rng.normal(size=(4, 3))),
    }


def mixture(dimension, dtype=float) -> Data:
    blocks = [observe(f, np.zeros(len(f), dtype), 0.1) for f in functionals(dimension, dtype).values()]
    return functools.reduce(lambda a, b: a + b, blocks)


def reference(data, grid):
    """The dense functional with hipgp's own nodes."""
    nodes = data.nodes(grid.spacing).with_derivative_fields()
    return dense.Functional(
        *[np.asarray(f, float) for f in (nodes.x, nodes.weights, nodes.value, nodes.direction)]
    )


def dense_weights(kernel, grid, f):
    """W and v by Cholesky."""
    points = dense.points(grid.coordinates())
    k, cross = dense.covariance(kernel, points, points), dense.covariance(kernel, f, points)
    w = scipy.linalg.solve(k, cross.T, assume_a="pos").T
    return w, dense.variance(kernel, f) - np.sum(w * cross, axis=1)


KERNEL, DENSE = hk.Matern32(1.3, 0.5), dense.Matern32(1.3, 0.5)


@functools.cache
def exact(dimension):
    return hw.exact_weights(
        KERNEL, embed(KERNEL, GRIDS[dimension]), mixture(dimension).functionals, tolerance=1e-12
    )


@every_dimension
def test_exact_weights_are_the_dense_ones(dimension):
    """PCG to 1e-12 of |k*|; K's condition number here is below 1e4, and k* and v of order one."""
    grid, data = GRIDS[dimension], mixture(dimension)
    w, v = dense_weights(DENSE, grid, reference(data, grid))
    np.testing.assert_allclose(exact(dimension).rows, w, rtol=0, atol=1e-7)
    np.testing.assert_allclose(exact(dimension).residual, np.maximum(v, 0), rtol=0, atol=1e-9)


@every_dimension
def test_a_stencil_as_wide_as_the_grid_is_exact(dimension):
    grid, data = GRIDS[dimension], mixture(dimension)
    local = local_weights(KERNEL, grid, data, p=2 * max(grid.shape))
    w, v = dense_weights(DENSE, grid, reference(data, grid))
    rows = np.asarray(local.transpose_matmul(np.eye(len(data))))
    np.testing.assert_allclose(
        rows, w, rtol=0, atol=1e-8
    )  # a jitter of 1e-14 on the same matrix, condition below 1e4
    np.testing.assert_allclose(local.residual, np.maximum(v, 0), rtol=0, atol=1e-10)


@every_dimension
@pytest.mark.parametrize("p", [2, 4])
def test_local_weights_are_each_stencil_s_own_conditional(dimension, p):
    """For single points: the dense conditional on the p^D grid points around it, which near an edge lie to one side."""
    grid = GRIDS[dimension]
    f = functionals(dimension)["points"]
    local = local_weights(KERNEL, grid, observe(f, np.zeros(len(f)), 0.1), p)
    rows = np.asarray(local.transpose_matmul(np.eye(len(f))))
    coordinates = grid.coordinates()
    for x, row, v in zip(f.x, rows, np.asarray(local.residual), strict=True):
        corner = np.clip(np.floor(x / grid.spacing + 1e-12).astype(int), 0, np.array(grid.shape) - 2)
        width = np.minimum(p, grid.shape)
        first = np.clip(corner - width // 2 + 1, 0, np.array(grid.shape) - width)
        box = np.meshgrid(*[np.arange(a, a + w) for a, w in zip(first, width, strict=True)], indexing="ij")
        used = np.ravel_multi_index([b.ravel() for b in box], grid.shape)
        k = DENSE.value(coordinates[used, None] - coordinates[used])
        cross = DENSE.value(coordinates[used] - x)
        expected = np.zeros(grid.size)
        expected[used] = np.linalg.solve(k, cross)
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-11)
        assert v == pytest.approx(max(1.3 - expected[used] @ cross, 0.0), abs=1e-12)


def test_a_node_on_a_grid_point_reads_it():
    """Corners, edges and inner nodes: weight one there, zero elsewhere, and nothing left over (jitter: 1e-14)."""
    grid = GRIDS[2]
    data = observe(Points(grid.coordinates()), np.zeros(grid.size), 0.1)
    local = local_weights(KERNEL, grid, data)
    np.testing.assert_allclose(local.matmul(np.eye(grid.size)), np.eye(grid.size), rtol=0, atol=1e-11)
    np.testing.assert_allclose(local.residual, 0.0, rtol=0, atol=1e-12)


@every_dimension
@pytest.mark.parametrize("kind", ["exact", "local"])
def test_transpose_is_the_adjoint(dimension, kind):
    grid, data = GRIDS[dimension], mixture(dimension)
    w = exact(dimension) if kind == "exact" else local_weights(KERNEL, grid, data)
    rng = np.random.default_rng(0)
    u, a = rng.normal(size=(3, grid.size)), rng.normal(size=(3, len(data)))
    np.testing.assert_allclose(np.sum(w.matmul(u) * a, 1), np.sum(u * w.transpose_matmul(a), 1), rtol=1e-12)
    assert np.all(np.asarray(w.residual) >= 0)


ENDS = [(hk.SquaredExponential(1.0, 1.2), np.float64), (hk.Matern52(1.0, 3.0), np.float32)]
ENDS += [(hk.Matern12(1.0, 0.01), np.float64)]


@pytest.mark.parametrize(("kernel", "dtype"), ENDS)
def test_residual_variances_are_never_negative(kernel, dtype):
    """Smooth kernels on a fine grid leave v at rounding; a rough one leaves it at k**. Never NaN, never below zero."""
    rays, points = functionals(2, dtype)["lines"], functionals(2, dtype)["points"]
    data = observe(points, np.zeros(len(points), dtype), 0.1) + observe(rays, np.zeros(len(rays), dtype), 0.1)
    toeplitz = embed(kernel, GRIDS[2], dtype)
    for w in (
        hw.exact_weights(kernel, toeplitz, data.functionals),
        local_weights(kernel, GRIDS[2], data, 4, dtype),
    ):
        assert w.residual.dtype == w.matmul(np.ones(GRIDS[2].size, dtype)).dtype == dtype
        assert np.all(np.asarray(w.residual) >= 0)
        assert np.all(np.isfinite(w.matmul(np.ones(GRIDS[2].size, dtype))))


def test_float32_weights_are_float64_ones_rounded():
    """Computed in float64 and kept in float32: 1e-7 relative, once."""
    data = mixture(2, np.float32)
    single = local_weights(KERNEL, GRIDS[2], data, 4, np.float32)
    double = local_weights(KERNEL, GRIDS[2], data, 4, np.float64)
    unit = np.eye(len(data))
    a, b = single.transpose_matmul(unit.astype(np.float32)), double.transpose_matmul(unit)
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * float(np.max(np.abs(b))))
    np.testing.assert_allclose(single.residual, double.residual, rtol=1e-6, atol=1e-7)


def test_closed_form_lines_give_the_same_weights():
    """For a squared exponential exact weights of lines come without quadrature; a dense converged rule agrees."""
    kernel, grid = hk.SquaredExponential(1.3, 0.5), GRIDS[2]
    rays = functionals(2)["lines"]
    exact = hw.exact_weights(kernel, embed(kernel, grid), [rays], tolerance=1e-13)
    f = dense.line_integrals(rays.start, rays.end)
    w, v = dense_weights(dense.SquaredExponential(1.3, 0.5), grid, f)
    np.testing.assert_allclose(exact.rows, w, rtol=0, atol=1e-7)
    np.testing.assert_allclose(exact.residual, v, rtol=0, atol=1e-9)


# ---------------------------------------------------------------- the design's table

# kernel, lengthscale in cells: exact v, and what p = 2, 4, 6, 8 add (2-D, variance 1).
TABLE = {
    ("Matern12", 3): (1.4e-1, 1.2e-3, 3.0e-5, 1.4e-7, 1.8e-8),
    ("Matern32", 1): (1.4e-1, 1.2e-2, 5.7e-4, 3.2e-5, 1.8e-6),
    ("Matern32", 8): (4.2e-4, 4.1e-4, 2.0e-5, 2.0e-6, 2.3e-7),
    ("Matern52", 3): (8.0e-4, 2.6e-3, 2.0e-4, 3.6e-5, 7.1e-6),
    ("SquaredExponential", 3): (4.0e-9, 3.9e-4, 1.9e-6, 3.3e-8, 2.9e-9),
}


QUICK = {("Matern32", 1), ("Matern32", 8)}  # each is a solve and a handful of compilations


@pytest.mark.parametrize(
    ("name", "cells"), [pytest.param(*row, marks=[] if row in QUICK else pytest.mark.slow) for row in TABLE]
)
def test_local_converges_to_exact_as_the_design_s_table_says(name, cells):
    """Random places in a 40 x 40 grid, ten cells from its edges (where one-sided stencils would add more).

    15%: the table has two digits, and its places were other ones. The prototype behind it had a nugget of some 1e-9,
    which is all that its smallest squared-exponential entries show; ours must not be above them.
    """
    grid = Grid(0.0, 1.0, (40, 40))
    kernel, coordinates = elementary()[name](1.0, float(cells)), grid.coordinates()
    x = np.random.default_rng(0).uniform(10, 29, (500, 2))
    nugget = 1e-13 if name == "SquaredExponential" else 0.0
    factor = scipy.linalg.cholesky(kernel(coordinates, coordinates) + nugget * np.eye(grid.size), lower=True)
    root = scipy.linalg.solve_triangular(factor, kernel(coordinates, x), lower=True)
    exact = 1 - np.mean(np.sum(root**2, axis=0))
    data = observe(Points(x), np.zeros(len(x)), 0.1)
    residuals = [float(np.mean(local_weights(kernel, grid, data, p).residual)) for p in (2, 4, 6, 8)]
    excess = np.array(residuals) - exact
    assert np.all(np.diff(residuals) < 0) and excess[-1] > -1e-12
    if name == "SquaredExponential":
        np.testing.assert_allclose(excess[:3], TABLE[name, cells][1:4], rtol=0.15)
        assert exact < TABLE[name, cells][0] and excess[3] < TABLE[name, cells][4]
    else:
        np.testing.assert_allclose([exact, *excess], TABLE[name, cells], rtol=0.15)


# ---------------------------------------------------------------- the implicit gradient

PARAMETERS = {  # variances, lengthscales per axis, a shape: all of them at once
    "sum": lambda p, d: (hk.Matern32(p[0], p[1 : 1 + d]) + hk.SquaredExponential(p[4], p[5]), d),
    "product": lambda p, d: (hk.Matern52(p[0], p[1 : 1 + d]) * hk.RationalQuadratic(p[4], p[5], p[6]), d),
}
DENSE_PARAMETERS = {
    "sum": lambda p, d: dense.Matern32(p[0], p[1 : 1 + d]) + dense.SquaredExponential(p[4], p[5]),
    "product": lambda p, d: dense.Matern52(p[0], p[1 : 1 + d]) * dense.RationalQuadratic(p[4], p[5], p[6]),
}
VALUES = np.array([1.3, 0.35, 0.45, 0.4, 0.6, 0.3, 0.8])


@every_dimension
@pytest.mark.parametrize("name", PARAMETERS)
def test_gradient_of_the_solve_is_the_dense_one(dimension, name):
    """d(r' K^-1 b): by the implicit rule, by the dense formula -(K^-1 r)' dK (K^-1 b), and by differences of r' K^-1 b.

    The solve is to 1e-12 and condition numbers are below 1e4; differences with a step of 1e-5 are good to 1e-7.
    """
    grid = GRIDS[dimension]
    r, b = np.random.default_rng(4).normal(size=(2, 3, grid.size))
    kernel = PARAMETERS[name](VALUES, dimension)[0]
    toeplitz = embed(kernel, grid)
    assert toeplitz.clipped_mass < 1e-9  # so that K on the torus is the kernel's own matrix
    torus = toeplitz.torus

    @jax.jit
    @jax.value_and_grad
    def form(p, b):
        toeplitz = toeplitz_on_torus(PARAMETERS[name](p, dimension)[0], torus)
        return jnp.sum(r * hw.solve_grid(toeplitz, b, tolerance=1e-12).value)

    x = grid.coordinates()
    matrix = lambda p: DENSE_PARAMETERS[name](p, dimension).value(x[:, None] - x)
    dense_form = lambda p: np.sum(r * np.linalg.solve(matrix(p), b.T).T)
    value, gradient = form(VALUES, b)
    assert float(value) == pytest.approx(dense_form(VALUES), rel=1e-8)
    k = matrix(VALUES)
    left, right = np.linalg.solve(k, r.T).T, np.linalg.solve(k, b.T).T
    for i in range(len(VALUES)):
        step = 1e-5 * np.eye(len(VALUES))[i]
        change = (matrix(VALUES + step) - matrix(VALUES - step)) / 2e-5
        expected = -np.sum((left @ change) * right)
        assert float(gradient[i]) == pytest.approx(expected, rel=1e-6, abs=1e-6)
        difference = (dense_form(VALUES + step) - dense_form(VALUES - step)) / 2e-5
        assert float(gradient[i]) == pytest.approx(difference, rel=1e-5, abs=1e-5)


def test_gradient_in_the_right_hand_side_and_forward_mode():
    grid = GRIDS[1]
    toeplitz = embed(KERNEL, grid)
    r, b = np.random.default_rng(5).normal(size=(2, 1, grid.size))
    k = KERNEL(grid.coordinates(), grid.coordinates())
    total = lambda b: jnp.sum(r * hw.solve_grid(toeplitz, b, tolerance=1e-13).value)
    expected = np.linalg.solve(k, r.T).T
    np.testing.assert_allclose(jax.jit(jax.grad(total))(b), expected, rtol=1e-7, atol=1e-7)
    _, slope = jax.jit(lambda b: jax.jvp(total, (b,), (r,)))(b)
    assert float(slope) == pytest.approx(np.sum(expected * r), rel=1e-8)


def test_the_solve_says_what_happened():
    toeplitz = embed(KERNEL, GRIDS[2])
    b = np.random.default_rng(6).normal(size=(2, GRIDS[2].size))
    solve = eqx.filter_jit(hw.solve_grid)
    good, cut = solve(toeplitz, b), solve(toeplitz, b, 1e-10, 2)
    assert np.all(good.converged) and np.all(good.error <= 1.1e-10) and np.all(good.iterations > 2)
    assert not np.any(cut.converged) and cut.iterations.tolist() == [2, 2] and np.all(cut.error > 1e-6)


def test_unconverged_weights_have_larger_residuals_never_smaller():
    """v = k** - 2 w'k* + w'K w holds for any w: two steps of CG may waste information, not invent it."""
    data = mixture(2)
    toeplitz = embed(KERNEL, GRIDS[2])
    good, cut = (
        np.asarray(hw.exact_weights(KERNEL, toeplitz, data.functionals, 1e-12, n).residual) for n in (1000, 2)
    )
    assert np.all(cut >= good - 1e-12) and np.max(cut - good) > 1e-4


def test_too_many_exact_weights_name_the_memory_and_the_way_out():
    grid = Grid(0.0, 1.0, (1000, 1000))
    toeplitz = eqx.tree_at(lambda t: t.torus.grid, embed(KERNEL, GRIDS[2]), grid)
    with pytest.raises(ValueError, match=r'weights: "exact" would need 37 GiB .* use weights="local"'):
        hw.exact_weights(KERNEL, toeplitz, [Points(np.full((5000, 2), 0.5))])
