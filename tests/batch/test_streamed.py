"""Points that are read once and not kept give the posterior that all of them in memory give."""

import jax.numpy as jnp
import numpy as np
import pytest

import dense
import hipgp as hg
from hipgp.weights import information
from hipgp.weights.stencils import local_weight_rows

GRIDS = {
    1: hg.Grid.cover(0.0, 1.0, shape=12),
    2: hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(7, 6)),
    3: hg.Grid.cover((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), shape=(5, 4, 6)),
}
COUNT = 150


def problem(dimension):
    rng = np.random.default_rng(dimension)
    x, y = rng.uniform(0, 1, (COUNT, dimension)), rng.normal(size=COUNT)
    x[0], x[1] = 0.0, 1.0  # the corners of the grid
    return x, y, rng.uniform(0.1, 0.3, COUNT)


def batches(x, y, noise, size=37):
    return [(x[i : i + size], y[i : i + size], noise[i : i + size]) for i in range(0, len(y), size)]


def exact(dimension, at):
    """Mean and covariance on the grid and the variance at points, with a kernel written by hand."""
    x, y, noise = problem(dimension)
    grid, p = GRIDS[dimension], 4
    kernel, points = hg.Matern32(1.3, 0.4), dense.points(grid.coordinates())
    k = dense.covariance(dense.Matern32(1.3, 0.4), points, points)
    rows = local_weight_rows(kernel, grid, [hg.Points(x)], p)
    target = local_weight_rows(kernel, grid, [hg.Points(at)], p)
    w, t = rows.matrix.toarray(), target.matrix.toarray()
    gain = np.linalg.solve(w @ k @ w.T + np.diag(noise**2 + rows.residual), w @ k).T
    covariance = k - gain @ w @ k
    return gain @ y, covariance, np.sqrt(np.diag(t @ covariance @ t.T) + target.residual)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Blocks of 128 points in pieces of 64 and chunks of 32, so that some are full and some are not."""
    monkeypatch.setattr(information, "BLOCK", (128, 128))
    monkeypatch.setattr(information, "PIECE", (64, 64))
    monkeypatch.setattr(information, "CHUNK", (32, 32))


def fit(dimension, **settings):
    gp = hg.GP(hg.Matern32(1.3, 0.4), GRIDS[dimension])
    stream = hg.observe_from(batches(*problem(dimension)), rows=COUNT)
    return gp.condition(stream, hg.Batch(tolerance=1e-13, **settings), progress=False)


# 1-D and 3-D go as 2-D does, and compile all of it again
@pytest.mark.parametrize(
    "dimension", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_mean_and_std_are_those_of_the_dense_posterior(dimension):
    at = np.random.default_rng(9).uniform(0, 1, (5, dimension))
    mean, _, std = exact(dimension, at)
    post = fit(dimension)
    assert post.diagnostics["observations"] == COUNT and post.diagnostics["kl_nats"] < 1e-13
    np.testing.assert_allclose(post.mean.ravel(), mean, rtol=0, atol=1e-6)
    # a variance is off by at most 2e-6 of the prior's, which is at most ten times as large as these
    np.testing.assert_allclose(post.predict(hg.Points(at)).std, std, rtol=1e-5)


@pytest.mark.slow  # fifteen seconds: thousands of draws, to tell a noise that is drawn twice, or not at all
def test_draws_have_the_posterior_s_mean_and_covariance(tmp_path):
    """Within 5 standard errors of 1,984 draws, which are solved for 64 at a time."""
    mean, covariance, _ = exact(2, np.full((1, 2), 0.5))
    post = fit(2)
    post.save(tmp_path / "map.hipgp")
    draws = hg.load(tmp_path / "map.hipgp").sample(1_984, progress=False).reshape(1_984, -1)
    np.testing.assert_array_equal(draws[:64], post.sample(64, progress=False).reshape(64, -1))
    variance = np.diag(covariance)
    assert np.max(np.abs(draws.mean(axis=0) - mean) / np.sqrt(variance / 1_984)) < 5
    error = np.sqrt((covariance**2 + np.outer(variance, variance)) / 1_984)
    assert np.max(np.abs(np.cov(draws.T) - covariance) / error) < 5
    std, error = post.std(samples=192, progress=False, return_error=True)
    assert np.max(np.abs(std.ravel() - np.sqrt(variance)) / error.ravel()) < 5


def test_the_sums_do_not_depend_on_threads_or_batches(monkeypatch):
    one = fit(2).mean
    monkeypatch.setattr(information, "TOGETHER", 0)
    monkeypatch.setattr(information, "SORTED", 0)
    np.testing.assert_allclose(fit(2).mean, one, rtol=0, atol=1e-10)
    gp = hg.GP(hg.Matern32(1.3, 0.4), GRIDS[2])
    stream = hg.observe_from(lambda: iter(batches(*problem(2), size=COUNT)))
    found = gp.condition(stream, hg.Batch(tolerance=1e-13), progress=False).mean
    np.testing.assert_allclose(found, one, rtol=0, atol=1e-10)
    x, y, noise = problem(2)
    there = [
        (jnp.asarray(x[:64]), jnp.asarray(y[:64]), noise[:64]),
        (jnp.asarray(x[64:]), y[64:], noise[64:]),
    ]
    found = gp.condition(hg.observe_from(there), hg.Batch(tolerance=1e-13), progress=False).mean
    np.testing.assert_allclose(found, one, rtol=0, atol=1e-10)


def test_a_map_grows_by_another_stream(tmp_path):
    gp, settings = hg.GP(hg.Matern32(1.3, 0.4), GRIDS[2]), hg.Batch(tolerance=1e-13)
    parts = batches(*problem(2))
    first = gp.condition(hg.observe_from(parts[:2]), settings, progress=False)
    first.save(tmp_path / "map.hipgp")
    both = hg.load(tmp_path / "map.hipgp").update(hg.observe_from(parts[2:]), progress=False)
    assert both.diagnostics["observations"] == COUNT
    np.testing.assert_allclose(both.mean, fit(2).mean, rtol=0, atol=1e-10)
    data = hg.observe(hg.Points(problem(2)[0]), problem(2)[1], 0.1)
    with pytest.raises(ValueError, match="more: expected something made by observe"):
        gp.condition(data, progress=False).update(hg.observe_from(parts))


def test_a_folder_of_parquet_files_is_read_file_by_file(tmp_path):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    x, y, noise = problem(2)
    table = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "depth": y, "error": noise, "other": "words"})
    for number in range(3):
        table[number * 50 : (number + 1) * 50].to_parquet(tmp_path / f"part-{number}.parquet")
    gp = hg.GP(hg.Matern32(1.3, 0.4), GRIDS[2])
    columns = {"coordinates": ("a", "b"), "value": "depth", "noise": "error"}
    stream = hg.observe_from(tmp_path, **columns)
    assert "150" in repr(stream)
    post = gp.condition(stream, hg.Batch(tolerance=1e-13), progress=False)
    np.testing.assert_allclose(post.mean, fit(2).mean, rtol=0, atol=1e-10)
    with pytest.raises(
        ValueError, match=r"coordinates, value, noise: expected columns of the dataset .*, got c"
    ):
        hg.observe_from(tmp_path, **(columns | {"value": "c"}))
    content = bytearray((tmp_path / "part-1.parquet").read_bytes())
    content[8:200] = bytes(192)  # the pages, not the footer
    (tmp_path / "part-1.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"batches: expected Parquet files that can be read, got .*part-1"):
        gp.condition(hg.observe_from(tmp_path, **columns), progress=False)
    (tmp_path / "part-2.parquet").write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"batches: expected Parquet files that can be read, got .*part-2"):
        hg.observe_from(tmp_path, **columns)


def test_bad_batches_are_refused_in_words():
    gp = hg.GP(hg.Matern32(1.3, 0.4), GRIDS[2], noise=0.1)
    x, y = np.full((3, 2), 0.5), np.ones(3)
    far, lost = x.copy(), y.copy()
    far[1, 0], lost[2] = 2.0, np.nan
    for bad, words in (
        ([(x, y), (far, y)], "places within the grid .*, got 1 others"),
        ([(x, lost)], "expected finite values"),
        ([(x, y[:2])], "batches: expected places"),
        ([x], "batches: expected pairs"),
        ([], "batches: expected observations, got none"),
        ([(x[:, :1], y)], "in 2 dimensions like the grid, got 1"),
    ):
        with pytest.raises(ValueError, match=words):
            gp.condition(hg.observe_from(bad), progress=False)
    with pytest.raises(ValueError, match=r"batches: expected a folder of Parquet files, .*, got int"):
        hg.observe_from(3)
    good = hg.observe_from([(x, y)], noise=0.1)
    for model, method, words in (
        (hg.GP(gp.kernel), None, "grid: expected one with observe_from"),
        (hg.GP(gp.kernel, GRIDS[2], link="exp"), None, "link, trend: expected none"),
        (gp, hg.Exact(), "method: expected Batch"),
        (gp, hg.Batch(space="data"), "method: expected Batch"),
    ):
        with pytest.raises(ValueError, match=words):
            model.condition(good, method, progress=False)
    post = gp.condition(good, progress=False)
    for call, words in (
        (post.log_evidence, "method: expected an engine that gives the log evidence"),
        (lambda: post.predict([[3.0, 3.0]]), "predictions beyond the grid"),
        (lambda: post.predict(hg.BoxAverages([[0.5, 0.5]], [[3.0, 3.0]])), "places within the grid"),
        (lambda: post.update(hg.observe(hg.Points(x), y, 0.1)), "update"),
        (post.leave_out, "leave-out predictions"),
        (lambda: post.predict(x, "vecchia"), "std: expected"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
