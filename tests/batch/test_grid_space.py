"""The grid-space system: its product, and a preconditioner that is exact where it should be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hipgp as hg
from hipgp.batch import grid_space
from hipgp.weights import stencils, toeplitz

# grids here are coarse, so that the dense reference is small; `test_coarse_grid.py` tests the warning
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")

TORI = {
    "1-D, even": ((7,), (16,)),
    "1-D, odd": ((7,), (15,)),
    "2-D": ((4, 5), (9, 10)),
    "3-D": ((3, 2, 3), (6, 5, 6)),
}


def system_of(shape, torus_shape, noise=0.005):
    """A value at each grid point but some, so that G is diagonal; noise differs from point to point."""
    grid = hg.Grid(origin=(0.0,) * len(shape), spacing=(1.0,) * len(shape), shape=shape)
    kernel = hg.Matern12(1.3, 0.6)
    rng = np.random.default_rng(0)
    x = grid.coordinates()[rng.permutation(grid.size)[: grid.size - 2]]
    variance = noise * rng.uniform(0.5, 2.0, len(x))
    k = toeplitz.toeplitz_on_torus(kernel, toeplitz.Torus(grid, torus_shape, False))
    w = stencils.local_weight_rows(kernel, grid, [hg.Points(x)], p=2)
    return grid_space.grid_system(k, w, variance, points=True)


@pytest.mark.parametrize("sizes", TORI.values(), ids=TORI)
def test_unknowns_have_the_scalar_product_of_the_torus(sizes):
    with jax.enable_x64(True):
        system = system_of(*sizes)
        torus = system.toeplitz.torus
        e = np.random.default_rng(1).standard_normal((2, torus.size))
        x = system.unknowns(system.modes(jnp.asarray(e), torus.shape))
        np.testing.assert_allclose(x @ x.T, e @ e.T, rtol=1e-12)
        drawn = system.toeplitz.root(jnp.asarray(e).reshape(2, *torus.shape)).reshape(2, -1)
        np.testing.assert_allclose(system.root(x), drawn, atol=1e-12)
        u = np.random.default_rng(2).standard_normal((2, system.toeplitz.torus.grid.size))
        np.testing.assert_allclose(
            np.sum(system.root(x) * u), np.sum(x * system.root_transpose(jnp.asarray(u))), rtol=1e-12
        )


@pytest.mark.parametrize("sizes", TORI.values(), ids=TORI)
def test_with_all_modes_and_values_on_grid_points_the_preconditioner_is_the_inverse(sizes):
    with jax.enable_x64(True):
        system = system_of(*sizes)
        torus = system.toeplitz.torus
        assert len(system.low.inverse) == torus.size
        e = jnp.asarray(np.random.default_rng(3).standard_normal((3, torus.size)))
        x = system.unknowns(system.modes(e, torus.shape))
        np.testing.assert_allclose(system.precondition(system.matmul(x)), x, atol=1e-9)


@pytest.mark.parametrize("torus_shape", [(9, 10), (10, 11)], ids=["even", "odd"])
def test_with_all_modes_and_all_lines_the_preconditioner_is_the_inverse(torus_shape):
    grid = hg.Grid(origin=(0.0, 0.0), spacing=(1.0, 1.0), shape=(4, 5))
    rng = np.random.default_rng(0)
    ends = rng.uniform(0, 1, (2, 40, 2)) * [3, 4]
    kernel = hg.Matern32(1.3, 0.9)
    with jax.enable_x64(True):
        k = toeplitz.toeplitz_on_torus(kernel, toeplitz.Torus(grid, torus_shape, False))
        w = stencils.local_weight_rows(kernel, grid, [hg.LineIntegrals(*ends)], p=2)
        system = grid_space.grid_system(k, w, rng.uniform(0.05, 0.2, 40), points=False)
        e = jnp.asarray(rng.standard_normal((3, k.torus.size)))
        x = system.unknowns(system.modes(e, torus_shape))
        np.testing.assert_allclose(system.precondition(system.matmul(x)), x, atol=1e-9)


@pytest.mark.slow  # three solves, each compiled
def test_more_crossing_lines_than_grid_points_are_solved_in_grid_space(monkeypatch):
    """Neighbours say little of lines that cross: in data space several times the steps."""
    rng = np.random.default_rng(0)
    start, end = rng.uniform(size=(2, 800, 2))
    data = hg.observe(hg.LineIntegrals(start, end), np.sin(3 * start[:, 0]) * end[:, 1], noise=0.02)
    gp = hg.GP(hg.Matern32(1.0, 0.2), hg.Grid.cover((0, 0), (1, 1), shape=(20, 20)))
    found = gp.condition(data, hg.Batch(tolerance=1e-8))
    other = gp.condition(data, hg.Batch(space="data", tolerance=1e-8))
    assert found.diagnostics["space"] == "grid"
    np.testing.assert_allclose(found.mean, other.mean, atol=1e-4)
    assert found.diagnostics["iterations"] < 0.3 * other.diagnostics["iterations"]
    monkeypatch.setattr(grid_space, "LINES", 600)  # some stand for all
    fewer = gp.condition(data, hg.Batch(tolerance=1e-8))
    np.testing.assert_allclose(fewer.mean, other.mean, atol=1e-4)


def test_values_and_slopes_in_grid_space():
    """In single precision, against data space in double. Slopes have no density: their modes are measured."""
    x = np.random.default_rng(0).uniform(size=(600, 2))

    def conditioned(dtype, space):
        places = x.astype(dtype)
        slopes = hg.observe(hg.Derivatives(places, axis=0), np.cos(3 * places[:, 0]), noise=dtype(0.1))
        values = hg.observe(hg.Points(places[:50]), np.sin(3 * places[:50, 0]) / 3, noise=dtype(0.05))
        gp = hg.GP(hg.Matern52(1.0, 0.3), hg.Grid.cover((0, 0), (1, 1), shape=(16, 16)))
        return gp.condition(slopes + values, hg.Batch(space=space, tolerance=1e-4))

    found, other = conditioned(np.float32, "grid"), conditioned(np.float64, "data")
    assert found.diagnostics["converged"] and found.diagnostics["iterations"] < 40
    assert found.mean.dtype == np.float32
    np.testing.assert_allclose(found.mean, other.mean, atol=3e-3)


@pytest.mark.quick
def test_few_modes_save_most_steps_and_the_answer_is_that_of_data_space(monkeypatch):
    """Smooth and crowded: hundreds of steps with the circulant alone."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(3000, 2))
    y = np.sin(5 * x[:, 0]) * x[:, 1] + 0.3 * rng.standard_normal(3000)
    data = hg.observe(hg.Points(x), y, noise=0.3)
    gp = hg.GP(hg.SquaredExponential(1.0, 0.3), hg.Grid.cover((0, 0), (1, 1), shape=(24, 24)))
    found = gp.condition(data, hg.Batch(space="grid", tolerance=1e-8))
    other = gp.condition(data, hg.Batch(space="data", tolerance=1e-8))
    np.testing.assert_allclose(found.mean, other.mean, atol=1e-4)
    monkeypatch.setattr(grid_space, "POINT_MODES", (0, 0))
    plain = gp.condition(data, hg.Batch(space="grid", tolerance=1e-8))
    assert "0 modes" in plain.diagnostics["preconditioner"]
    assert found.diagnostics["iterations"] < 0.1 * plain.diagnostics["iterations"]


@pytest.mark.parametrize("shape", [(12,), (9, 7), (3, 30), (5, 4, 6)], ids=str)
def test_the_product_of_w_with_itself(shape, monkeypatch):
    """However points are cut up on the way, and on grids narrower than a stencil."""
    rng = np.random.default_rng(0)
    grid = hg.Grid.cover((0,) * len(shape), (1,) * len(shape), shape=shape)
    data = hg.observe(hg.Points(rng.uniform(size=(40, len(shape)))), np.zeros(40))
    matrix = stencils.local_weight_rows(hg.Matern32(1.0, 0.2), grid, data.functionals).matrix
    precision = rng.uniform(1.0, 9.0, 40)
    monkeypatch.setattr(grid_space, "AT_ONCE", 3 * 4 ** len(shape))
    monkeypatch.setattr(grid_space, "GROUP", 2)
    w = matrix.toarray()
    found = grid_space._product(matrix, precision).toarray()
    np.testing.assert_allclose(found, w.T @ (precision[:, None] * w), atol=1e-10)
