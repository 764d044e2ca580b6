"""Weights of lines that are followed anew in each product."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dense
import hipgp as hg
from hipgp.weights import matrix_free
from hipgp.weights.matrix_free import matrix_free_weights

KERNEL, DENSE_KERNEL = hg.Matern32(1.3, 0.35), dense.Matern32(1.3, 0.35)


def _ends(ndim, count, seed=0):
    return np.random.default_rng(seed).uniform(0.02, 0.98, (2, count, ndim))


def _data(ndim, count, average=False, dtype=float):
    lines = hg.LineIntegrals(*_ends(ndim, count).astype(dtype), average)
    return hg.observe(lines, np.zeros(count, dtype), noise=np.asarray(0.1, dtype))


def _grid(ndim, side):
    return hg.Grid.cover((0,) * ndim, (1.0,) * ndim, shape=tuple(side + i for i in range(ndim)))


@pytest.mark.parametrize(("ndim", "average"), [(1, False), (2, True), (3, False)])
def test_multilinear_fields_are_integrated_by_the_midpoint_of_each_step(ndim, average, monkeypatch):
    """Of a field linear in each coordinate every node is exact, but for the gain; and so is the sum over nodes."""
    grid, data = _grid(ndim, 6), _data(ndim, 50, average)
    monkeypatch.setattr(
        matrix_free, "_interpolation_gain", lambda *given: np.eye(len(matrix_free._basis([0.5] * ndim)))[0]
    )
    weights = matrix_free_weights(KERNEL, grid, data.functionals)
    slope = np.arange(1.0, ndim + 1)
    field = 0.7 + grid.coordinates() @ slope
    start, end = _ends(ndim, 50)
    length = 1.0 if average else np.linalg.norm(end - start, axis=1)
    expected = length * (0.7 + 0.5 * (start + end) @ slope)
    np.testing.assert_allclose(weights.matmul(jnp.asarray(field)), expected, rtol=1e-12)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_the_fitted_gain_is_the_one_of_least_error(ndim):
    """t'k / t'K t from dense covariances, at places that the fit did not see."""
    grid = _grid(ndim, 6)
    gain = matrix_free._interpolation_gain(KERNEL, grid)
    rng = np.random.default_rng(0)
    within = rng.uniform(size=(20, ndim))
    upper = np.array(list(itertools.product((0, 1), repeat=ndim)))
    points = dense.points(upper * np.asarray(grid.spacing))
    at = dense.points(within * np.asarray(grid.spacing))
    shares = np.prod(np.where(upper, within[:, None], 1 - within[:, None]), axis=2)
    k, cross = (dense.covariance(DENSE_KERNEL, f, points) for f in (points, at))
    best = np.sum(shares * cross, axis=1) / np.sum(shares * (shares @ k), axis=1)
    found = np.stack(matrix_free._basis(list(within.T)), axis=1) @ gain
    assert np.max(np.abs(best - 1)) > 20 * np.max(np.abs(found - best))


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_transpose_is_the_adjoint_for_every_number_of_sides(ndim):
    weights = matrix_free_weights(KERNEL, _grid(ndim, 6), _data(ndim, 40).functionals)
    rng = np.random.default_rng(1)
    u, a = rng.standard_normal((3, 2, _grid(ndim, 6).size)), rng.standard_normal((3, 2, 40))
    there, back = weights.matmul(jnp.asarray(u)), weights.transpose_matmul(jnp.asarray(a))
    assert there.shape == (3, 2, 40) and back.shape == u.shape
    np.testing.assert_allclose(np.sum(there * a), np.sum(u * back), rtol=1e-12)
    np.testing.assert_allclose(weights.matmul(jnp.asarray(u[1, 0])), there[1, 0], rtol=1e-12)
    np.testing.assert_allclose(weights.transpose_matmul(jnp.asarray(a[1, 0])), back[1, 0], rtol=1e-12)


@pytest.mark.parametrize("ndim", [2, 3])
def test_residual_variances_are_the_dense_ones_of_these_weights(ndim, monkeypatch):
    grid, count = _grid(ndim, 7), 30
    weights = matrix_free_weights(KERNEL, grid, _data(ndim, count).functionals)
    w = np.asarray(weights.matmul(jnp.eye(grid.size))).T
    nodes = _data(ndim, count).blocks[0].functional.nodes(grid.spacing)
    lines, points = dense.functionals(nodes.x, nodes.weights), dense.points(grid.coordinates())
    own = np.diag(dense.covariance(DENSE_KERNEL, lines, lines))
    cross = dense.covariance(DENSE_KERNEL, lines, points)
    on_grid = dense.covariance(DENSE_KERNEL, points, points)
    expected = own - 2 * np.sum(w * cross, axis=1) + np.sum(w * (w @ on_grid), axis=1)
    np.testing.assert_allclose(weights.residual, expected, rtol=1e-7)
    monkeypatch.setattr("hipgp.weights.residual_variance.PAIR_BUDGET", 1e5)
    some = np.asarray(matrix_free_weights(KERNEL, grid, _data(ndim, count).functionals).residual)
    assert np.mean(some) == pytest.approx(np.mean(expected), rel=0.2)


@pytest.mark.slow  # two engines in three dimensions, both to exact std
def test_the_posterior_is_as_close_to_the_exact_one_as_that_of_stored_weights():
    start, end = _ends(3, 150)
    y = np.random.default_rng(2).standard_normal(150)
    data = hg.observe(hg.LineIntegrals(start, end), y, noise=0.3)
    lines, asked = dense.line_integrals(start, end), dense.line_integrals(*_ends(3, 30, seed=5))
    exact = dense.exact_gp(DENSE_KERNEL, lines, y, np.full(150, 0.3), asked)
    std = np.sqrt(np.diag(exact.covariance))

    def errors(weights):
        post = hg.GP(KERNEL, _grid(3, 14)).condition(data, hg.Batch(weights=weights, tolerance=1e-6))
        assert post.diagnostics["weights"].startswith(weights)
        found = post.predict(hg.LineIntegrals(*_ends(3, 30, seed=5)), std="exact")
        return np.sqrt(np.mean(((found.mean - exact.mean) / std) ** 2)), np.mean(np.abs(found.std / std - 1))

    (mean, spread), (mean_stored, spread_stored) = errors("matrix-free"), errors("local")
    assert mean < min(1.2 * mean_stored, 0.1)
    assert spread < min(1.2 * spread_stored, 0.05)


@pytest.mark.quick
def test_the_posterior_is_the_dense_one_of_its_own_weights():
    """To rounding: mean and std of lines from W, K and N written down."""
    grid, y = _grid(2, 8), np.random.default_rng(3).standard_normal(40)
    data = hg.observe(hg.LineIntegrals(*_ends(2, 40)), y, noise=0.2)
    post = hg.GP(KERNEL, grid).condition(data, hg.Batch(weights="matrix-free", tolerance=1e-12))
    system = post.engine.system
    w = np.asarray(system.weights.matmul(jnp.eye(grid.size))).T
    k = np.asarray(system.toeplitz.matmul(jnp.eye(grid.size).reshape(-1, *grid.shape))).reshape(grid.size, -1)
    a = w @ k @ w.T + np.diag(system.noise)
    own = k @ w.T @ np.linalg.solve(a, post.engine.data.y)
    np.testing.assert_allclose(post.mean.ravel(), own, atol=1e-7)
    target = hg.LineIntegrals(*_ends(2, 5, seed=9))
    at = matrix_free_weights(KERNEL, grid, [target])
    wt = np.asarray(at.matmul(jnp.eye(grid.size))).T
    variance = at.residual + np.diag(wt @ k @ wt.T) - np.diag(wt @ k @ w.T @ np.linalg.solve(a, w @ k @ wt.T))
    np.testing.assert_allclose(post.predict(target, std="exact").std, np.sqrt(variance), rtol=1e-5)


def test_float32_is_float64_rounded():
    grid = _grid(3, 12)
    double, single = (
        matrix_free_weights(KERNEL, grid, _data(3, 60, dtype=t).functionals, t) for t in (float, np.float32)
    )
    u = np.random.default_rng(0).standard_normal(grid.size)
    with jax.enable_x64(True):
        np.testing.assert_allclose(
            single.matmul(jnp.asarray(u, np.float32)), double.matmul(jnp.asarray(u)), atol=2e-4
        )


@pytest.mark.parametrize(
    ("functional", "words"),
    [
        (hg.Points(np.full((2, 2), 0.5)), "LineIntegrals"),
        (hg.LineIntegrals((0.1, 0.1), [[0.5, 0.6]], nodes_per_ray=4), "with the default quadrature"),
        (hg.BoxAverages((0.1, 0.1), [[0.5, 0.6]]), "BoxAverages"),
    ],
)
def test_what_is_no_line_is_refused_with_the_way_out(functional, words):
    data = hg.observe(functional, np.zeros(len(functional)), noise=0.1)
    with pytest.raises(ValueError, match=words) as told:
        hg.GP(KERNEL, _grid(2, 6)).condition(data, hg.Batch(weights="matrix-free"))
    assert 'weights="local"' in str(told.value)


def test_integrals_and_averages_together_are_refused():
    with pytest.raises(ValueError, match="not both"):
        matrix_free_weights(KERNEL, _grid(2, 6), (_data(2, 5) + _data(2, 5, average=True)).functionals)
    both = matrix_free_weights(KERNEL, _grid(2, 6), (_data(2, 5) + _data(2, 7)).functionals)
    assert both.matmul(jnp.ones(_grid(2, 6).size)).shape == (12,)


def test_too_many_stored_weights_are_named_with_the_way_out(monkeypatch):
    data, grid = _data(3, 60), _grid(3, 16)
    held = hg.GP(KERNEL, grid).condition(data).engine.system.weights.sparse
    slices = [s for part in (held.rows, held.transposed) for s in part.slices]
    size = 12 * sum(np.count_nonzero(s.values) for s in slices)  # but for the padding
    assert matrix_free.stored_bytes(grid, data.functionals, 2, data.dtype) == pytest.approx(size, rel=0.5)
    monkeypatch.setattr("hipgp.batch.interpolation.LARGE_WEIGHTS", size / 4)
    with pytest.warns(UserWarning, match="matrix-free"):
        hg.GP(KERNEL, grid).condition(data)


def test_the_former_name_of_the_option_is_refused_with_the_new_one():
    with pytest.raises(ValueError, match=r"^weights: .*'matrix-free'.*, got 'traced'"):
        hg.Batch(weights="traced")
