"""Joint residuals of points of one cell, against the same model written down densely, and against the exact GP."""

import numpy as np
import pytest
from scipy.linalg import cho_factor, cho_solve

import dense
import hipgp as hg
from hipgp.weights import joint_residuals as residuals
from hipgp.weights.stencil_geometry import stencil_offsets
from hipgp.weights.stencils import local_weight_rows

# grids here are coarse, so that the dense reference is small; `test_coarse_grid.py` tests the warning
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")

GRID = hg.Grid((0.0, 0.0), (0.25, 0.2), (6, 7))
KERNEL, DENSE_KERNEL = hg.Matern12(1.3, (0.15, 0.12)), dense.Matern12(1.3, (0.15, 0.12))
TIGHT = hg.Batch(tolerance=1e-10, space="data")
NOISE = 0.4


def crowded(seed, count=60):
    """Streets: several points around each of a few places, some at one and the same."""
    rng = np.random.default_rng(seed)
    middles = np.random.default_rng(0).uniform(0.1, 1.1, (12, 2))
    x = middles[rng.integers(0, len(middles), count)] + 0.02 * rng.standard_normal((count, 2))
    x[: count // 4] = x[count // 4 : 2 * (count // 4)]
    return x


def observed(seed=1, count=60):
    x = crowded(seed, count)
    y = np.random.default_rng(seed).standard_normal(count)
    return x, y, hg.observe(hg.Points(x), y, NOISE)


def k(a, b):
    return DENSE_KERNEL.value(a[:, None] - b[None])


def model(x, grid=GRID):
    """W, and the covariance of residuals of points with one stencil, from the dense kernel alone."""
    rows = local_weight_rows(KERNEL, grid, [hg.Points(x)]).matrix
    # of the two cells of a point on a grid line, either will do: W's own
    first = np.stack(np.unravel_index(rows.indices.reshape(len(x), -1)[:, 0], grid.shape), axis=-1)
    steps = stencil_offsets(grid, 4)[0]
    w = np.zeros((len(x), grid.size))
    cross, inside = [], k(steps * np.asarray(grid.spacing), steps * np.asarray(grid.spacing))
    for i, corner in enumerate(first):
        points = (corner + steps) * np.asarray(grid.spacing)
        cross.append(k(x[i : i + 1], points)[0])
        w[i, np.ravel_multi_index(tuple((corner + steps).T), grid.shape)] = np.linalg.solve(inside, cross[-1])
    c = np.array(cross)
    same = np.all(first[:, None] == first[None], axis=-1)
    return w, np.where(same, k(x, x) - c @ np.linalg.solve(inside, c.T), 0.0)


def posterior(x, y, at, grid=GRID):
    """Mean and covariance at targets, all of the joint prior written down."""
    both = np.concatenate([x, at])
    w, r = model(both, grid)
    prior = w @ k(grid.coordinates(), grid.coordinates()) @ w.T + r
    n = len(x)
    factor = cho_factor(prior[:n, :n] + NOISE**2 * np.eye(n))
    cross = prior[n:, :n]
    return cross @ cho_solve(factor, y), prior[n:, n:] - cross @ cho_solve(factor, cross.T)


@pytest.mark.parametrize("pairs", [2**20, 300], ids=["all at once", "few at a time"])
def test_mean_and_std_are_the_dense_ones(pairs, monkeypatch):
    monkeypatch.setattr(residuals, "PAIRS_AT_ONCE", pairs)
    x, y, data = observed()
    # among the data, on them, and in a cell without
    at = np.concatenate([crowded(2, 30), x[:5], [[0.03, 1.15]]])
    post = hg.GP(KERNEL, GRID).condition(data, TIGHT)
    assert post.diagnostics["residual"] == "joint"
    mean, covariance = posterior(x, y, at)
    found = post.predict(hg.Points(at), std="exact")
    np.testing.assert_allclose(found.mean, mean, atol=1e-5)
    np.testing.assert_allclose(found.std, np.sqrt(np.diag(covariance)), rtol=1e-5)
    alone = hg.GP(KERNEL, GRID).condition(data, hg.Batch(tolerance=1e-10, space="data", residual="noise"))
    assert np.max(np.abs(alone.predict(hg.Points(at)).mean - mean)) > 0.1  # the test can tell


def test_points_on_grid_lines():
    """Each is of two cells: which one must not depend on the rounding of whoever asks."""
    grid = hg.Grid.cover((0.0, 0.0), (7.0, 1.0), shape=(50, 6))
    x = np.stack([np.linspace(0.0, 7.0, 99), np.full(99, 0.5)], axis=1)  # on the lines, and halfway
    y = np.random.default_rng(5).standard_normal(99)
    at = np.concatenate([grid.coordinates()[::3], x[:-1] + np.array([0.05, 0.0])])
    post = hg.GP(KERNEL, grid).condition(hg.observe(hg.Points(x), y, NOISE), TIGHT)
    assert post.diagnostics["residual"] == "joint"
    mean, covariance = posterior(x, y, at, grid)
    found = post.predict(hg.Points(at), std="exact")
    np.testing.assert_allclose(found.mean, mean, atol=1e-5)
    np.testing.assert_allclose(found.std, np.sqrt(np.diag(covariance)), rtol=1e-5)


def test_std_by_solves_and_by_factor_agree(monkeypatch):
    _, _, data = observed()
    post = hg.GP(KERNEL, GRID, trend="constant").condition(data, TIGHT)
    at = hg.Points(crowded(3, 10))
    factored = post.predict(at, std="exact").std
    monkeypatch.setattr("hipgp.batch.decisions.FACTORED", 0)
    np.testing.assert_allclose(post.predict(at, std="exact").std, factored, rtol=1e-4)


def test_samples_have_the_dense_moments():
    x, y, data = observed()
    at = crowded(2, 12)
    post = hg.GP(KERNEL, GRID).condition(data, hg.Batch(tolerance=1e-6, space="data"))
    mean, covariance = posterior(x, y, at)
    count, std = 3000, np.sqrt(np.diag(covariance))
    draws = post.sample(count, key=1, at=hg.Points(at))
    assert np.max(np.abs(draws.mean(axis=0) - mean) / std) < 4.5 / np.sqrt(count)
    np.testing.assert_allclose(draws.std(axis=0), std, rtol=4.5 / np.sqrt(2 * count))


def test_std_by_samples_with_a_trend():
    """Its errors against those stated, which are below a tenth."""
    _, _, data = observed()
    post = hg.GP(KERNEL, GRID, trend="linear").condition(data, TIGHT)
    at = hg.Points(crowded(2, 40))
    exact, sampled = post.predict(at, std="exact"), post.predict(at, std="samples", samples=200)
    pulls = (sampled.std - exact.std) / sampled.std_error
    assert np.sqrt(np.mean(pulls**2)) < 1.5
    assert np.max(sampled.std_error / exact.std) < 0.1


def test_closer_to_the_exact_gp_than_noise_is():
    x, y, data = observed(count=200)
    at = crowded(5, 100)
    exact = k(at, x) @ np.linalg.solve(k(x, x) + NOISE**2 * np.eye(len(x)), y)
    far = {}
    for residual in ("joint", "noise"):
        post = hg.GP(KERNEL, GRID).condition(data, hg.Batch(residual=residual, space="data"))
        far[residual] = np.sqrt(np.mean((post.predict(hg.Points(at)).mean - exact) ** 2))
    assert far["joint"] < 0.5 * far["noise"]


def test_crowded_cells_are_cut_and_draws_have_the_covariance(monkeypatch):
    monkeypatch.setattr(residuals, "LARGEST_BLOCK", 5)
    x, _, data = observed()
    post = hg.GP(KERNEL, GRID).condition(data, TIGHT)
    cells = post.engine.lazy.cells.get()
    assert np.max(np.diff(cells.starts)) == 5
    own = post.engine.system.residuals
    eye = np.eye(len(x))
    matrix, root = np.asarray(own.covariance.matmul(eye)), np.asarray(own.root.matmul(eye)).T
    np.testing.assert_allclose(root @ root.T, matrix, atol=1e-9)
    ordered = np.asarray(post.engine.data.blocks[0].functional.places()[:, 0])
    _, whole = model(ordered)
    np.testing.assert_allclose(matrix, np.where(cells.block[:, None] == cells.block, whole, 0.0), atol=1e-9)
    at = hg.Points(crowded(2, 30))
    joint = cells.regression(np.asarray(at.places()[:, 0]), post.engine.target(at).rows.matrix)
    for row in range(30):  # neighbours of one block alone, and its regression
        near = joint.cross[[row]].indices
        assert len(set(cells.block[near])) <= 1
        both = np.concatenate([np.asarray(at.places()[[row], 0]), ordered[near]])
        _, r = model(both)
        np.testing.assert_allclose(
            joint.variance[row], r[0, 0] - r[0, 1:] @ np.linalg.pinv(r[1:, 1:], 1e-8) @ r[1:, 0], atol=1e-6
        )


def test_single_precision_and_a_file(tmp_path):
    x, y, data = observed()
    single = hg.observe(hg.Points(x.astype(np.float32)), y.astype(np.float32), np.float32(NOISE))
    at = hg.Points(crowded(2, 30))
    want = hg.GP(KERNEL, GRID).condition(data, TIGHT).predict(at)
    post = hg.GP(KERNEL, GRID).condition(single, hg.Batch(tolerance=1e-4, space="data"))
    np.testing.assert_allclose(post.predict(at).mean, want.mean, atol=2e-3)
    post.save(tmp_path / "map.zarr")
    np.testing.assert_allclose(
        hg.load(tmp_path / "map.zarr").predict(at).mean, post.predict(at).mean, atol=1e-5
    )


def test_targets_away_from_all_data():
    """In cells without a point nothing is added, and nothing fails."""
    _, _, data = observed()
    post = hg.GP(KERNEL, GRID).condition(data, hg.Batch(space="data"))
    joint = post.engine.on_device(post.engine.target(hg.Points([[0.03, 1.15]]))).joint
    assert joint.cross.nnz == 0 and joint.variance[0] > 0
    assert np.all(np.isfinite(post.predict(hg.Points([[0.03, 1.15]])).mean))


@pytest.mark.parametrize("noise", [1e-3, 50.0], ids=["far below", "far above"])
def test_where_it_does_not_matter_or_cannot_be_certified_residuals_are_noise(noise):
    x, y, _ = observed()
    post = hg.GP(KERNEL, GRID).condition(hg.observe(hg.Points(x), y, noise), hg.Batch(space="data"))
    assert post.diagnostics["residual"] == "noise"
