"""Exact weights on demand: in float32 for float32 data, with honest residual variances, and no more FFTs than they need."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dense
import hipgp as hg
from hipgp.model.functionals import LineIntegrals
from hipgp.model.grid import Grid
from hipgp.model.kernels import Matern32
from hipgp.runtime import memory
from hipgp.variational.data_space import Held
from hipgp.variational.minibatch_weights import SolveSummary, compiled_weights, exact_source
from hipgp.variational.whitening import whiten
from variational_problem import gp_problem

KERNEL, DENSE = Matern32(1.3, 0.3), dense.Matern32(1.3, 0.3)
SHAPE = (10, 9)
COUNT = 6
FAR = 4096.0  # of which float32 resolves 5e-4


def lines(rng, away=0.0):
    """Ends on multiples of 1/64, which float32 holds even far from zero."""
    ends = rng.integers(0, 65, (2, COUNT, 2)) / 64 + away
    return LineIntegrals(*ends.astype(np.float32))


def found(dtype, away=0.0, limit=500, stencil=None):
    grid = Grid.cover((away, away), (away + 1, away + 1), shape=SHAPE)
    rays, whitening = lines(np.random.default_rng(0), away), whiten(KERNEL, grid, "toeplitz")
    source = exact_source(KERNEL, grid, [rays], 1e-10, limit, np.dtype(dtype), stencil)
    rows = compiled_weights(source, KERNEL, whitening, (np.arange(COUNT),))
    return rows, np.asarray(whitening.root_transpose(rows.w)), rays, grid


@pytest.fixture(scope="module")
def reference():
    """k = R'w has the Gram matrix k*' K^-1 k*, whatever the root; v is what it leaves of k**."""
    _, _, rays, grid = found(float)
    nodes = LineIntegrals(rays.start.astype(float), rays.end.astype(float)).nodes(grid.spacing)
    f, points = dense.functionals(nodes.x, nodes.weights, None), dense.points(grid.coordinates())
    cross, gram = dense.covariance(DENSE, f, points), dense.covariance(DENSE, points, points)
    explained = cross @ np.linalg.solve(gram, cross.T)
    return explained, dense.variance(DENSE, f) - np.diag(explained)


@pytest.mark.parametrize(("dtype", "digits"), [(np.float64, 1e-9), (np.float32, 3e-6)])
def test_whitened_weights_are_the_dense_ones(reference, dtype, digits):
    """To the digits of the dtype, in units of the largest prior variance; nothing in float32 is done in float64."""
    rows, k, _, _ = found(dtype)
    explained, v = reference
    unit = np.max(np.diag(explained))
    assert rows.w.dtype == k.dtype == dtype and rows.v.dtype == np.float64
    np.testing.assert_allclose(k.astype(float) @ k.T.astype(float), explained, rtol=0, atol=digits * unit)
    np.testing.assert_allclose(rows.v, np.maximum(v, 0), rtol=0, atol=digits * unit)


def test_residual_variances_are_those_of_the_weights_found_however_few_the_iterations():
    """Three iterations in float32 waste information, and v says how much: k** - 2 w'k* + w'K w of these very weights."""
    rows, _, rays, grid = found(np.float32, limit=3)
    nodes = LineIntegrals(rays.start.astype(float), rays.end.astype(float)).nodes(grid.spacing)
    f, points = dense.functionals(nodes.x, nodes.weights, None), dense.points(grid.coordinates())
    w, cross = np.asarray(rows.w, float), dense.covariance(DENSE, f, points)
    quadratic = np.sum((w @ dense.covariance(DENSE, points, points)) * w, axis=1)
    expected = dense.variance(DENSE, f) - 2 * np.sum(w * cross, axis=1) + quadratic
    np.testing.assert_allclose(rows.v, expected, rtol=0, atol=1e-6 * np.max(dense.variance(DENSE, f)))
    error = np.linalg.norm(cross - w @ dense.covariance(DENSE, points, points), axis=1)
    np.testing.assert_allclose(rows.error, error / np.linalg.norm(cross, axis=1), rtol=1e-3)
    assert np.all(rows.iterations == 3) and not np.any(rows.converged)


def test_solves_that_begin_at_local_weights_end_at_the_same_and_sooner(reference):
    """And a limit of three iterations, reached by both, leaves less than a hundredth of the information lost."""
    rows, k, _, _ = found(float, stencil=4)
    explained, v = reference
    np.testing.assert_allclose(k @ k.T, explained, rtol=0, atol=1e-9 * np.max(np.diag(explained)))
    assert np.all(np.asarray(rows.iterations) <= np.asarray(found(float)[0].iterations))
    (few, *_), (cold, *_) = found(float, limit=3, stencil=4), found(float, limit=3)
    assert np.all(few.error < 0.05 * cold.error) and np.all(few.error > 0)
    assert np.max(few.v - v) < 0.01 * np.max(cold.v - v)


def test_stored_weights_are_those_on_demand_and_serve_another_fit():
    """Of float32 data they are kept in float32; products with float64 vectors are in float64."""
    rng, grid = np.random.default_rng(1), Grid.cover((0, 0), (1, 1), shape=SHAPE)
    x, y = rng.uniform(size=(5, 2)).astype(np.float32), rng.normal(size=5 + COUNT).astype(np.float32)
    data = hg.observe(hg.Points(x), y[:5], noise=0.5) + hg.observe(lines(rng), y[5:], noise=0.5)
    method = hg.Variational("block", (3, 3), batch_size=4)
    first = method.fit(gp_problem(KERNEL, grid, data), progress=False)
    stored = first.problem.source
    for count, functional, begin in ((5, data.functionals[0], 0), (COUNT, data.functionals[1], 5)):
        source = exact_source(KERNEL, grid, [functional], 1e-10, 200, np.dtype(np.float32))
        rows = compiled_weights(source, KERNEL, first.whitening, (np.arange(count),))
        here = slice(begin, begin + count)
        np.testing.assert_allclose(stored.stored.rows[here], rows.w, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(stored.stored.residual[here], rows.v, rtol=1e-4, atol=1e-6)
    assert stored.stored.rows.dtype == np.float32
    w, u, a = np.asarray(stored.stored.rows, float), rng.normal(size=(2, 90)), rng.normal(size=(2, 11))
    np.testing.assert_allclose(stored.stored.matmul(u), u @ w.T, rtol=1e-12)
    np.testing.assert_allclose(stored.stored.transpose_matmul(a), a @ w, rtol=1e-11)
    problem, other = gp_problem(KERNEL, grid, data), hg.Variational("mean-field", batch_size=4)
    ended = SolveSummary(20, 19.5, 0.01, 3)
    again = other.fit(
        problem, progress=False, held=Held(stored, ended)
    )  # the optimal mean is that of every family
    np.testing.assert_allclose(again.whitened_mean, first.whitened_mean, atol=1e-8)
    assert again.problem.source is stored
    told = again.diagnostics
    assert (
        told["pcg_iterations_max"] == 20 and told["pcg_relative_error_max"] == 0.01 and not told["converged"]
    )


def test_a_place_far_from_zero_costs_no_digits():
    here, there = (found(np.float32, away)[0] for away in (0.0, FAR))
    np.testing.assert_allclose(here.w, there.w, rtol=0, atol=2e-5 * float(jnp.max(jnp.abs(here.w))))


def test_an_iteration_is_two_pairs_of_transforms_in_the_dtype_of_the_data():
    """Counted in the compiled program: K and the preconditioner in the loop; once the true residual, and R'w for v."""
    grid = Grid.cover((0, 0), (1, 1), shape=SHAPE)
    whitening = whiten(KERNEL, grid, "toeplitz")
    source = exact_source(KERNEL, grid, [lines(np.random.default_rng(0))], 1e-10, 20, np.dtype(np.float32))
    solve = jax.jit(lambda i: source.weights(KERNEL, whitening, (i,)))
    program = solve.lower(jnp.arange(COUNT)).compile().as_text()
    counts = sorted(part.count(" fft(") for part in program.split("\n}\n"))
    assert sum(counts) == 8 and counts[-2:] == [4, 4]
    assert "c128" not in program


@pytest.mark.parametrize(
    ("settings", "argument"), [({"whitening": "cholesky"}, "whitening"), ({"family": "full"}, "family")]
)
def test_a_dense_matrix_too_large_is_refused_with_its_bytes(settings, argument, monkeypatch):
    monkeypatch.setattr(memory, "_host_bytes", lambda: 2.0**20)
    grid = Grid.cover((0, 0), (1, 1), shape=(20, 20))
    data = hg.observe(hg.Points(np.full((2, 2), 0.5)), np.zeros(2), noise=0.1)
    with pytest.raises(ValueError, match=rf"{argument}: expected a problem that fits into memory.* bytes\)"):
        hg.Variational(**settings).fit(gp_problem(KERNEL, grid, data))
    monkeypatch.setattr(memory, "_host_bytes", lambda: 2.0**36)
    hg.Variational(**settings).blocks(whiten(KERNEL, grid, "toeplitz"), grid)
