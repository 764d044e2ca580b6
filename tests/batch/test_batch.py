"""The batch engine against the dense posterior: every functional, trend, space and kind of weights."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import batch_problem as problem
import dense
import hipgp as hg
from batch_problem import DENSE_KERNEL, GRID, KERNEL, KINDS, mixture, pair
from hipgp.batch import posterior
from hipgp.vecchia.group_covariances import coarse_data_nodes, coarse_nodes

# grids here are coarse, so that the dense reference is small; `test_coarse_grid.py` tests the warning
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")

EXACT = hg.Batch(tolerance=1e-9, weights="exact")
ALL = ("points", "derivatives", "rays", "boxes", "own")


def reference(f, y, std, f_star, trend=None, trend_star=None):
    return dense.svgp(DENSE_KERNEL, GRID.coordinates(), f, y, std, f_star, "noise", trend, trend_star)


def assert_agree(prediction, truth, share):
    """Mean and std within a share of a posterior std."""
    assert np.max(np.abs(prediction.mean - truth.mean) / truth.std) < share
    np.testing.assert_allclose(prediction.std, truth.std, rtol=share)


@pytest.mark.quick
@pytest.mark.parametrize("kind", [*KINDS, "mixture"])
def test_mean_and_exact_std_are_the_dense_ones(kind):
    data, f, y, std = mixture(ALL if kind == "mixture" else (kind,))
    post = hg.GP(KERNEL, GRID).condition(data, EXACT)
    target, f_star = pair("rays" if kind == "mixture" else kind, 90, 10)
    assert_agree(post.predict(target, std="exact"), reference(f, y, std, f_star), 1e-3)
    assert post.diagnostics["converged"] and post.diagnostics["iterations"] < 100


def own_dense(post, y):
    """The posterior on the grid from the engine's own W, K, N and X, by dense algebra."""
    w, k, noise, x = problem.matrices(post)
    a = w @ k @ w.T + noise
    return dense._condition(a, k @ w.T, k, y, x, post.engine.trend.on_grid(GRID))


@pytest.mark.parametrize("space", ["data", "grid"])
@pytest.mark.parametrize("trend", [None, "constant", "linear", "columns"])
def test_trends_in_both_spaces(trend, space):
    """A trend much larger than the field must cost no digits."""
    given, f, y, std = mixture(("points", "derivatives"))
    columns, used = problem.linear_columns(f), {None: 0, "constant": 1}.get(trend, 3)
    y = y + 1e4 * columns[:, :used] @ [1.0, 2.0, -3.0][:used]
    kinds = [block.functional for block in given.blocks]
    data = hg.observe(kinds[0], y[:24], std[:24]) + hg.observe(kinds[1], y[24:], std[24:])
    method = EXACT if space == "data" else hg.Batch(tolerance=1e-9, space="grid", stencil=6)
    post = hg.GP(KERNEL, GRID, trend=columns if trend == "columns" else trend).condition(data, method)
    own = own_dense(post, y)
    assert np.max(np.abs(post.mean.ravel() - own.mean) / own.std) < 1e-3
    if space == "data":
        target, f_star = pair("points", 90, 10)
        x_star = problem.linear_columns(f_star)
        found = post.predict(target, std="exact", columns=x_star if trend == "columns" else None)
        assert_agree(found, reference(f, y, std, f_star, columns[:, :used], x_star[:, :used]), 1e-3)


def test_local_weights_converge_to_the_exact_ones_as_the_stencil_grows():
    """The grid is coarse, 3 cells to a lengthscale: each two points more an axis leave a third of the error."""
    data, f, y, std = mixture(ALL)
    target, f_star = pair("rays", 90, 10)
    truth, mean_errors, std_errors = reference(f, y, std, f_star), [], []
    for stencil in (2, 4, 6):
        post = hg.GP(KERNEL, GRID).condition(data, hg.Batch(tolerance=1e-9, stencil=stencil))
        own = own_dense(post, y)
        assert np.max(np.abs(post.mean.ravel() - own.mean) / own.std) < 1e-3
        np.testing.assert_allclose(post.std("exact").ravel(), own.std, rtol=1e-3)
        found = post.predict(target, std="exact")
        mean_errors.append(np.max(np.abs(found.mean - truth.mean) / truth.std))
        std_errors.append(np.max(np.abs(found.std / truth.std - 1)))
    for errors, last in ((mean_errors, 0.1), (std_errors, 0.02)):
        assert errors[1] < errors[0] / 3 and errors[2] < errors[1] / 3 and errors[2] < last


def test_std_given_all_observations_is_that_of_the_dense_gp():
    """With each observation's nodes and its noise, residual variance included, as the neighbours have them."""
    data, _, y, _ = mixture(ALL)
    target, _ = pair("rays", 90, 10)
    post = hg.GP(KERNEL, GRID).condition(data, hg.Batch())
    nodes, at = coarse_data_nodes(post.engine.data, KERNEL), coarse_nodes(target, KERNEL)
    noise = np.sqrt(post.engine.noise_variance)
    whole = dense.exact_gp(DENSE_KERNEL, problem.twin(nodes), y, noise, problem.twin(at))
    np.testing.assert_allclose(post.predict(target, std="vecchia").std, whole.std, rtol=1e-6)


def test_the_std_of_an_average_over_many_points_is_not_that_of_a_few():
    x = np.linspace(0.0, 1.0, 400)
    data = hg.observe(hg.Points(x), np.sin(9 * x), noise=0.3)
    gp = hg.GP(hg.Matern32(lengthscale=0.02), hg.Grid.cover(0.0, 1.0, shape=300))
    post = gp.condition(data, hg.Batch())
    whole = hg.BoxAverages([0.0], [1.0])
    sampled, exact = post.predict(whole, std="samples"), post.predict(whole, std="exact")
    assert sampled.std_error is not None and exact.std[0] < 0.02
    assert abs(sampled.std[0] - exact.std[0]) < 4 * sampled.std_error[0]
    np.testing.assert_array_equal(post.predict(whole).std, exact.std)  # so few are factored


@pytest.mark.parametrize(
    ("kinds", "settings"),
    [
        (("points",), {}),
        pytest.param(("points",), {"neighbours": 0}, marks=pytest.mark.slow),
        (("points", "rays"), {"residual": "bound"}),
    ],
)
def test_the_evidence_is_the_dense_one(kinds, settings):
    data, _, y, _ = mixture(kinds)
    post = hg.GP(KERNEL, GRID, trend="constant").condition(data, hg.Batch(tolerance=1e-6, **settings))
    found = post.log_evidence(probes=2048 if "neighbours" in settings else 64)
    assert abs(found.value - dense_evidence(post, y)) < 4 * found.error + 1e-4
    assert found.error < 0.3


def dense_evidence(post, y):
    """The log evidence from the engine's own W, K, N and X, by dense algebra."""
    w, k, noise, x = problem.matrices(post)
    a = w @ k @ w.T + noise
    rest = y - x @ post.engine.beta
    bound = np.asarray(post.engine.system.weights.residual) / np.diag(noise)
    missed = np.sum(bound) if post.engine.method.residual == "bound" else 0.0
    return -0.5 * (rest @ np.linalg.solve(a, rest) + np.linalg.slogdet(2 * np.pi * a)[1] + missed)


def test_the_evidence_in_grid_space_is_the_dense_one(monkeypatch):
    """Probed along every direction of the torus, where its estimate has no error; few probes are right within theirs."""
    data, _, y, _ = mixture(("points",))
    grid = hg.Grid.cover(GRID.lower, GRID.upper, shape=(5, 4))
    method = hg.Batch(tolerance=1e-6, space="grid")
    post = hg.GP(KERNEL, grid, trend="constant").condition(data, method)
    truth, few = dense_evidence(post, y), post.log_evidence(probes=64)
    assert abs(few.value - truth) < 4 * few.error and few.error < 2.0
    torus = post.engine.system.toeplitz.torus
    every = np.sqrt(torus.size) * np.eye(torus.size)
    monkeypatch.setattr(jax.random, "rademacher", lambda key, shape, dtype: jnp.asarray(every, dtype))
    assert post.log_evidence(probes=torus.size).value == pytest.approx(truth, abs=1e-3)


@pytest.mark.quick
def test_samples_have_the_dense_moments_jointly_across_functionals():
    data, f, y, std = mixture(("points", "derivatives", "rays"), noise=0.3)
    post = hg.GP(KERNEL, GRID, trend="linear").condition(data, hg.Batch(tolerance=1e-4, stencil=6))
    targets = [pair(name, 90, 3) for name in ("points", "derivatives", "boxes")]
    f_star = dense.concatenate(*[t[1] for t in targets])
    truth = reference(f, y, std, f_star, problem.linear_columns(f), problem.linear_columns(f_star))
    count = 1500
    draws = np.concatenate([post.sample(count, key=5, at=t[0]) for t in targets], axis=1)
    white = (draws - truth.mean) / truth.std
    assert np.max(np.abs(white.mean(axis=0))) < 4.5 / np.sqrt(count) + 0.02
    correlation = truth.covariance / np.outer(truth.std, truth.std)
    assert np.max(np.abs(np.cov(white.T) - correlation)) < 5.5 / np.sqrt(count) + 0.02


@pytest.mark.quick
def test_samples_on_the_grid_are_reproducible_and_certified(monkeypatch):
    data, *_ = mixture(("points",))
    post = hg.GP(KERNEL, GRID).condition(data, hg.Batch())
    bounds = []  # in nats, of the solves for the draws
    monkeypatch.setattr(posterior, "warn_if_far", lambda kl_bound, *_: bounds.append(kl_bound))
    first = post.sample(5, key=3)
    assert 0 < bounds[0] <= post.diagnostics["tolerance_nats"]
    assert first.shape == (5, *GRID.shape)
    np.testing.assert_array_equal(first, post.sample(5, key=jax.random.key(3)))
    np.testing.assert_allclose(first[:2], post.sample(2, key=3), atol=1e-3)
    assert np.max(np.abs(first - post.sample(5, key=4))) > 0.1


@pytest.mark.quick
@pytest.mark.parametrize("space", ["data", "grid"])
@pytest.mark.parametrize("trend", [None, "linear"])
def test_the_certificate_is_an_upper_bound(space, trend):
    data, *_ = mixture(("points", "derivatives"), noise=0.02)
    gp = hg.GP(KERNEL, GRID, trend=trend)
    few = 2 if space == "data" else None  # a poor preconditioner: the solve takes more than one step
    for tolerance in (100.0, 1.0, 0.01):
        post = gp.condition(data, hg.Batch(tolerance=tolerance, space=space, neighbours=few))
        truth = problem.true_kl(post)
        assert truth <= post.diagnostics["kl_nats"] * (1 + 1e-6) <= tolerance * (1 + 1e-6)
        assert truth > 0


def test_the_certificate_holds_whatever_the_units():
    data, _, y, std = mixture(("points",))
    for unit, offset in ((1e-8, 0.0), (1e8, 0.0), (1.0, 1e7)):
        kernel = hg.Matern52(1.3 * unit**2, KERNEL.lengthscale)
        scaled = hg.observe(data.blocks[0].functional, offset + unit * y, noise=unit * std)
        post = hg.GP(kernel, GRID, trend="constant").condition(scaled, hg.Batch(tolerance=0.01))
        assert problem.true_kl(post) <= post.diagnostics["kl_nats"] <= 0.01


@pytest.mark.quick
@pytest.mark.parametrize("space", ["data", pytest.param("grid", marks=pytest.mark.slow)])
def test_float32_agrees_to_a_thousandth_of_a_std(space):
    method = hg.Batch(tolerance=1e-7, space=space)
    x, y = np.float32(problem.places(0, 60)), np.float32(mixture(("points", "derivatives", "rays"))[2][:60])
    small = hg.observe(hg.Points(x), y)
    wide = hg.observe(hg.Points(np.float64(x)), np.float64(y))
    gp = hg.GP(KERNEL, GRID, noise=0.1, trend="constant")
    one, two = gp.condition(small, method), gp.condition(wide, method)
    assert one.mean.dtype == np.float32 and two.mean.dtype == np.float64
    own = own_dense(two, np.asarray(two.engine.data.y))
    assert np.max(np.abs(one.mean.ravel() - own.mean) / own.std) < 1e-3
    for post in (one, two):
        np.testing.assert_allclose(post.std("exact").ravel(), own.std, rtol=1e-3)
    assert np.all(np.isfinite(one.sample(4)))
    assert one.diagnostics["kl_nats"] < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("space", ["data", "grid"])
def test_on_a_gpu_the_system_lies_there_and_float32_loses_no_digits(space):
    """Products of float32 matrices in TF32, with three digits, would put the mean further off."""
    x, y = np.float32(problem.places(0, 60)), np.float32(mixture(("points", "derivatives", "rays"))[2][:60])
    gp = hg.GP(KERNEL, GRID, noise=0.1)
    post = gp.condition(hg.observe(hg.Points(x), y), hg.Batch(tolerance=1e-7, space=space))
    assert {device.platform for device in post.engine.system.noise.devices()} == {"gpu"}
    own = own_dense(post, np.asarray(post.engine.data.y))
    assert np.max(np.abs(post.mean.ravel() - own.mean) / own.std) < 1e-3


def test_duplicated_observations_do_not_break_the_preconditioner():
    x = problem.places(0, 30)
    x = np.concatenate([x, x, x, x + 1e-9])
    y = np.sin(5 * x[:, 0])
    post = hg.GP(KERNEL, GRID).condition(hg.observe(hg.Points(x), y, noise=1e-3), hg.Batch())
    assert post.diagnostics["converged"] and post.diagnostics["iterations"] < 100
    small = hg.observe(hg.Points(np.float32(x)), np.float32(y), noise=np.float32(1e-2))
    assert np.all(np.isfinite(hg.GP(KERNEL, GRID).condition(small, hg.Batch()).mean))


def test_one_observation_is_enough():
    post = hg.GP(KERNEL, GRID).condition(hg.observe(hg.Points([[0.5, 0.5]]), [2.0], noise=0.1), hg.Batch())
    found = post.predict(hg.Points([[0.5, 0.5]]))
    prior, noise = 1.3, 0.01  # variances; the residual at the place is that of the observation
    np.testing.assert_allclose(found.mean, 2.0 * prior / (prior + noise), rtol=1e-6)
    np.testing.assert_allclose(found.std, np.sqrt(prior * noise / (prior + noise)), rtol=1e-6)


def test_not_converged_says_how_far_and_what_to_try():
    data, *_ = mixture(("points",), noise=1e-3)
    with pytest.warns(UserWarning, match=r"stopped after 2 steps at most .* nats .* try more max_iterations"):
        post = hg.GP(KERNEL, GRID).condition(data, hg.Batch(max_iterations=2, neighbours=0))
    assert not post.diagnostics["converged"] and post.diagnostics["kl_nats"] > 0.01


@pytest.mark.parametrize(
    ("trend", "words"),
    [
        ("constant", "determine 0 of them"),
        ("linear", "determine 2 of them"),
        (np.ones((3, 1)), "one row per"),
    ],
)
def test_a_trend_that_the_data_do_not_determine(trend, words):
    slopes = hg.observe(hg.Derivatives(problem.places(0), axis=0), np.ones(24), noise=0.1) + hg.observe(
        hg.Derivatives(problem.places(1), axis=1), np.ones(24), noise=0.1
    )
    with pytest.raises(ValueError, match=f"trend: expected .*{re.escape(words)}"):
        hg.GP(KERNEL, GRID, trend=trend).condition(slopes, hg.Batch())


def test_one_simulation_tells_no_error():
    data, *_ = mixture(("points",))
    post = hg.GP(KERNEL, GRID).condition(data, hg.Batch())
    with pytest.raises(ValueError, match="samples: expected a whole number of at least 2"):
        post.predict(hg.Points([[0.5, 0.5]]), std="samples", samples=1)
