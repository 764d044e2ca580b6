"""The reference itself, against finite differences, plain sums and the identities between its models."""

import numpy as np
import pytest

import dense

SMOOTH = {
    "matern32": dense.Matern32,
    "matern52": dense.Matern52,
    "squared exponential": dense.SquaredExponential,
    "rational quadratic": lambda v=1.0, ell=1.0: dense.RationalQuadratic(v, ell, alpha=0.7),
    "gneiting 2": lambda v=1.0, ell=1.0: dense.Gneiting(v, 4 * np.asarray(ell), alpha=2.0),
    "sum": lambda v=1.0, ell=1.0: dense.Matern32(v, ell) + dense.SquaredExponential(0.3, 2.0),
    "product": lambda v=1.0, ell=1.0: dense.Matern52(v, ell) * dense.Matern32(0.8, 1.5),
}
ROUGH = {
    "matern12": dense.Matern12,
    "gneiting 1": lambda v=1.0, ell=1.0: dense.Gneiting(v, 4 * np.asarray(ell), alpha=1.0),
}
KERNELS = SMOOTH | ROUGH
LENGTHSCALES = {1: 0.8, 2: (0.7, 1.3), 3: (0.7, 1.3, 0.9)}

every_kernel = pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS.keys())
smooth_kernel = pytest.mark.parametrize("make", SMOOTH.values(), ids=SMOOTH.keys())
every_dimension = pytest.mark.parametrize("dimension", [1, 2, 3])
both_residuals = pytest.mark.parametrize("residual", ["bound", "noise"])


def central_difference(function, delta, step=1e-5):
    """The derivative of `function` in the last axis of delta, as a new last axis."""
    moves = step * np.eye(delta.shape[-1])
    return np.stack([(function(delta + e) - function(delta - e)) / (2 * step) for e in moves], axis=-1)


# ---------------------------------------------------------------- kernels


@every_kernel
@every_dimension
def test_gradient_and_hessian_are_derivatives(make, dimension):
    kernel = make(1.7, LENGTHSCALES[dimension])
    delta = np.random.default_rng(0).normal(size=(50, dimension))
    np.testing.assert_allclose(kernel.gradient(delta), central_difference(kernel.value, delta), atol=2e-8)
    np.testing.assert_allclose(kernel.hessian(delta), central_difference(kernel.gradient, delta), atol=2e-7)


@smooth_kernel
@every_dimension
def test_limits_at_zero_distance(make, dimension):
    kernel, zero = make(1.7, LENGTHSCALES[dimension]), np.zeros((1, dimension))
    np.testing.assert_array_equal(kernel.gradient(zero), 0.0)
    expected = central_difference(kernel.gradient, zero, step=1e-8)
    np.testing.assert_allclose(kernel.hessian(zero), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", ROUGH.values(), ids=ROUGH.keys())
def test_rough_kernels_have_no_derivative_at_zero(make):
    assert np.all(np.isnan(make().gradient(np.zeros((1, 2)))))
    assert np.all(np.isnan(make().hessian(np.zeros((1, 2)))))


def test_known_values():
    one = np.array([[1.0]])
    assert dense.Matern12().value(one) == pytest.approx(np.exp(-1))
    assert dense.Matern32().value(one) == pytest.approx((1 + 3**0.5) * np.exp(-(3**0.5)))
    assert dense.Matern52().value(one) == pytest.approx((1 + 5**0.5 + 5 / 3) * np.exp(-(5**0.5)))
    assert dense.SquaredExponential().value(one) == pytest.approx(np.exp(-0.5))
    assert dense.RationalQuadratic(alpha=2.0).value(one) == pytest.approx(1.25**-2)
    assert dense.Gneiting().value(0.5 * one) == pytest.approx(1.5**-3 / np.pi)
    assert dense.Gneiting().value(1.5 * one) == 0.0


# ---------------------------------------------------------------- functionals


def mixture(dimension, rng, derivatives=True):
    """Points, rays, boxes and, if wanted, derivatives in the unit cube."""
    lower = rng.uniform(0, 0.6, (4, dimension))
    parts = [
        dense.points(rng.uniform(0, 1, (6, dimension))),
        dense.line_integrals(rng.uniform(0, 0.3, dimension), rng.uniform(0.5, 1, (5, dimension)), 6, 2),
        dense.box_averages(lower, lower + rng.uniform(0.1, 0.4, (4, dimension)), order=4),
    ]
    if derivatives:
        parts.append(dense.derivatives(rng.uniform(0, 1, (5, dimension)), axis=dimension - 1))
        parts.append(
            dense.derivatives(rng.uniform(0, 1, (3, dimension)), direction=rng.normal(size=(3, dimension)))
        )
    return dense.concatenate(*parts)


@every_kernel
@every_dimension
def test_covariance_is_symmetric_and_positive(make, dimension):
    f = mixture(dimension, np.random.default_rng(1), derivatives=make in SMOOTH.values())
    k = dense.covariance(make(1.7, LENGTHSCALES[dimension]), f, f)
    np.testing.assert_allclose(k, k.T, rtol=1e-12, atol=1e-12)
    eigenvalues = np.linalg.eigvalsh(k)
    assert eigenvalues[0] > -1e-12 * eigenvalues[-1]


def test_covariance_in_blocks_is_the_same(monkeypatch):
    kernel, f = dense.Matern32(), mixture(2, np.random.default_rng(2))
    whole = dense.covariance(kernel, f, f)
    monkeypatch.setattr(dense, "LARGEST_BLOCK", 1)
    np.testing.assert_allclose(dense.covariance(kernel, f, f), whole, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(dense.variance(kernel, f), np.diag(whole), rtol=1e-12)


@every_dimension
def test_derivatives_are_limits_of_differences(dimension):
    """The covariance with (f(x + h d) - f(x - h d)) / 2h tends to that with the derivative along d, on both sides."""
    rng, h = np.random.default_rng(3), 1e-4
    kernel, x = dense.SquaredExponential(1.0, 0.7), rng.uniform(0, 1, (4, dimension))
    d = rng.normal(size=(4, dimension))
    exact = dense.concatenate(dense.points(x), dense.derivatives(x, direction=d))
    ends = np.stack([x + h * d, x - h * d], axis=1)
    differences = dense.concatenate(
        dense.points(x), dense.functionals(ends, np.tile([0.5 / h, -0.5 / h], (4, 1)))
    )
    expected = dense.covariance(kernel, exact, exact)
    np.testing.assert_allclose(dense.covariance(kernel, exact, differences), expected, atol=1e-6)
    np.testing.assert_allclose(dense.covariance(kernel, differences, differences), expected, atol=1e-5)


def test_integral_of_the_derivative_is_the_difference():
    kernel, rng = dense.Matern52(1.0, 0.6), np.random.default_rng(4)
    start, end = rng.uniform(0, 1, (5, 2)), rng.uniform(0, 1, (5, 2))
    line = dense.line_integrals(start, end, average=True)
    slope = dense.functionals(line.nodes, line.weights, direction=end - start)
    difference = dense.functionals(np.stack([end, start], axis=1), np.tile([1.0, -1.0], (5, 1)))
    other = dense.points(rng.uniform(0, 1, (7, 2)))
    np.testing.assert_allclose(
        dense.covariance(kernel, slope, other), dense.covariance(kernel, difference, other), atol=1e-8
    )


def test_boxes_and_lines_integrate_polynomials():
    box = dense.box_averages([[0.0, 1.0]], [[2.0, 4.0]], order=3)
    x = box.nodes[0]
    assert box.weights[0] @ (x[:, 0] ** 2 * x[:, 1]) == pytest.approx(4 / 3 * 2.5)
    line = dense.line_integrals([0.0, 0.0], [[3.0, 4.0]], order=3, panels=2)
    assert line.weights[0] @ line.nodes[0, :, 0] ** 2 == pytest.approx(5 * 3.0)


# ---------------------------------------------------------------- models


def problem(dimension, seed=5):
    rng = np.random.default_rng(seed)
    f = mixture(dimension, rng)
    y, noise = rng.normal(size=len(f.value)), rng.uniform(0.2, 0.5, len(f.value))
    per_axis = {1: 15, 2: 5, 3: 3}[dimension]
    axes = np.meshgrid(*[np.linspace(-0.1, 1.1, per_axis)] * dimension, indexing="ij")
    return f, y, noise, np.stack([a.ravel() for a in axes], axis=-1), mixture(dimension, rng)


@smooth_kernel
@every_dimension
def test_elbo_is_below_the_log_marginal_likelihood(make, dimension):
    kernel = make(1.2, LENGTHSCALES[dimension])
    f, y, noise, grid, f_star = problem(dimension)
    exact = dense.exact_gp(kernel, f, y, noise, f_star)
    sparse = dense.svgp(kernel, grid, f, y, noise, f_star)
    assert sparse.objective <= exact.objective
    assert np.all(np.linalg.eigvalsh(sparse.covariance) > -1e-9)


@every_kernel
@both_residuals
@every_dimension
def test_inducing_points_at_the_data_give_the_exact_gp(make, residual, dimension):
    kernel, rng = make(1.2, LENGTHSCALES[dimension]), np.random.default_rng(6)
    x, y = rng.uniform(0, 2, (12, dimension)), rng.normal(size=12)
    f, f_star = dense.points(x), mixture(dimension, rng, derivatives=make in SMOOTH.values())
    exact = dense.exact_gp(kernel, f, y, 0.3, f_star)
    sparse = dense.svgp(kernel, x, f, y, 0.3, f_star, residual=residual)
    assert sparse.objective == pytest.approx(exact.objective, rel=1e-8)
    np.testing.assert_allclose(sparse.mean, exact.mean, atol=1e-8)
    np.testing.assert_allclose(sparse.covariance, exact.covariance, atol=1e-8)


@both_residuals
@every_dimension
def test_explicit_optimum_agrees_with_the_collapsed_form(residual, dimension):
    kernel = dense.Matern32(1.2, LENGTHSCALES[dimension])
    f, y, noise, grid, f_star = problem(dimension)
    collapsed = dense.svgp(kernel, grid, f, y, noise, f_star, residual=residual)
    m, s = dense.svgp_optimum(kernel, grid, f, y, noise, residual)
    mean, covariance = dense.svgp_predict(m, s, kernel, grid, f_star)
    np.testing.assert_allclose(mean, collapsed.mean, atol=1e-9)
    np.testing.assert_allclose(covariance, collapsed.covariance, atol=1e-9)
    elbo = dense.svgp_elbo(m, s, kernel, grid, f, y, noise, residual)
    assert elbo == pytest.approx(collapsed.objective, rel=1e-10)
    for scale in (1 - 1e-3, 1 + 1e-3):
        assert dense.svgp_elbo(scale * m, s, kernel, grid, f, y, noise, residual) < elbo
        assert dense.svgp_elbo(m, scale * s, kernel, grid, f, y, noise, residual) < elbo


def test_the_full_rank_optimum_does_not_depend_on_the_root():
    kernel = dense.Matern32(1.2, 0.7)
    f, y, noise, grid, f_star = problem(2)
    inducing = dense.points(grid)
    values, vectors = np.linalg.eigh(dense.covariance(kernel, inducing, inducing))
    root = vectors * np.sqrt(values)
    collapsed = dense.svgp(kernel, grid, f, y, noise, f_star)
    m, s = dense.svgp_optimum(kernel, grid, f, y, noise, root=root)
    mean, covariance = dense.svgp_predict(m, s, kernel, grid, f_star, root=root)
    np.testing.assert_allclose(mean, collapsed.mean, atol=1e-9)
    np.testing.assert_allclose(covariance, collapsed.covariance, atol=1e-9)
    assert dense.svgp_elbo(m, s, kernel, grid, f, y, noise, root=root) == pytest.approx(collapsed.objective)


def test_families_are_nested():
    """Mean-field, then blocks, then full rank: the same mean, and a bound that grows; each S is a stationary point."""
    kernel = dense.Matern32(1.2, 0.7)
    f, y, noise, grid, _ = problem(2)
    indices = np.arange(len(grid))
    bounds = []
    for size in (1, 5, len(grid)):
        m, s = dense.svgp_optimum(kernel, grid, f, y, noise, blocks=np.split(indices, len(grid) // size))
        bounds.append(dense.svgp_elbo(m, s, kernel, grid, f, y, noise))
        for scale in (1 - 1e-3, 1 + 1e-3):
            assert dense.svgp_elbo(m, scale * s, kernel, grid, f, y, noise) < bounds[-1]
    assert bounds[0] < bounds[1] < bounds[2]


@both_residuals
def test_sparse_gp_converges_to_the_exact_gp(residual):
    kernel, rng = dense.Matern52(1.0, 0.5), np.random.default_rng(7)
    f, f_star = mixture(1, rng), mixture(1, rng)
    y = rng.normal(size=len(f.value))
    exact = dense.exact_gp(kernel, f, y, 0.3, f_star)
    errors = []
    for count in (9, 33, 129):
        grid = np.linspace(-0.1, 1.1, count)[:, None]
        sparse = dense.svgp(kernel, grid, f, y, 0.3, f_star, residual=residual)
        errors.append(np.max(np.abs(sparse.mean - exact.mean)))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


@both_residuals
def test_flat_trend_is_the_limit_of_a_wide_prior(residual):
    """A trend with coefficients N(0, wide^2) adds wide^2 X X' to the kernel; flat is its limit, likelihood rescaled."""
    kernel, rng, wide = dense.Matern52(1.0, 0.5), np.random.default_rng(8), 1e3
    f, f_star = dense.points(rng.uniform(0, 1, (20, 1))), dense.points(rng.uniform(0, 1, (6, 1)))
    x, x_star = (np.concatenate([np.ones((len(g.value), 1)), g.nodes[:, 0]], axis=1) for g in (f, f_star))
    y = x @ [2.0, -1.0] + rng.normal(size=20)
    a = dense.covariance(kernel, f, f) + 0.09 * np.eye(20) + wide**2 * x @ x.T
    cross = dense.covariance(kernel, f_star, f) + wide**2 * x_star @ x.T
    prior = dense.covariance(kernel, f_star, f_star) + wide**2 * x_star @ x_star.T
    exact = dense.exact_gp(kernel, f, y, 0.3, f_star, x, x_star)
    np.testing.assert_allclose(exact.mean, cross @ np.linalg.solve(a, y), atol=1e-5)
    np.testing.assert_allclose(exact.covariance, prior - cross @ np.linalg.solve(a, cross.T), atol=1e-5)
    proper = -0.5 * (y @ np.linalg.solve(a, y) + np.linalg.slogdet(2 * np.pi * a)[1])
    assert exact.objective == pytest.approx(proper + np.log(2 * np.pi * wide**2), abs=1e-5)
    sparse = dense.svgp(kernel, f.nodes[:, 0], f, y, 0.3, f_star, residual, x, x_star)
    np.testing.assert_allclose(sparse.mean, exact.mean, atol=1e-6)
    np.testing.assert_allclose(sparse.coefficients, exact.coefficients, atol=1e-6)
