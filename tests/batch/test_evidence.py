"""The log evidence's gradient against differences of the dense one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import batch_problem as problem
import hipgp as hg
from batch_problem import GRID, KERNEL
from hipgp.batch import evidence
from hipgp.batch.ordering import in_order
from hipgp.learning.parameters import Layout
from hipgp.model.problem import Problem

# grids here are coarse, so that the dense reference is small; `test_coarse_grid.py` tests the warning
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")


def dense_bound(vector, layout, data, trend, noise, residual="noise"):
    """log p(y) from the engine's own matrices, the trend's coefficients at their best."""
    kernel, found = layout.unpack(jnp.asarray(vector))
    gp = hg.GP(jax.tree.map(np.asarray, kernel), GRID, noise if found is None else float(found), trend)
    post = gp.condition(data, hg.Batch(space="data", residual=residual))
    w, k, variance, x = problem.matrices(post)
    a = w @ k @ w.T + variance
    y = data.y
    if x.shape[1]:
        y = y - x @ np.linalg.solve(x.T @ np.linalg.solve(a, x), x.T @ np.linalg.solve(a, y))
    missed = np.asarray(post.engine.system.weights.residual) / np.diag(variance)
    bound = np.sum(missed) if residual == "bound" else 0.0
    return -0.5 * (y @ np.linalg.solve(a, y) + np.linalg.slogdet(a)[1] + len(y) * np.log(2 * np.pi) + bound)


def differences(bound, vector):
    """The gradient by central differences."""
    return np.array([(bound(vector + e) - bound(vector - e)) / 2e-4 for e in 1e-4 * np.eye(len(vector))])


def every_probe(post):
    """All unit vectors, so that the trace is no estimate; scaled, for the mean over probes is taken."""
    rows = np.flatnonzero(np.asarray(post.system.random_signs(2, jax.random.key(0)))[0])
    probes = np.zeros((len(rows), post.system.random_signs(1, jax.random.key(0)).shape[1]))
    probes[np.arange(len(rows)), rows] = np.sqrt(len(rows))
    return jnp.asarray(probes)


@pytest.mark.parametrize(
    ("kinds", "trend", "learn_noise", "residual"),
    [
        pytest.param(("points",), "linear", True, "noise", marks=pytest.mark.quick),
        (("points",), None, True, "bound"),
        pytest.param(("rays",), None, True, "noise", marks=pytest.mark.quick),
        (("points", "derivatives"), "constant", False, "noise"),
        pytest.param(("boxes", "points"), None, False, "noise", marks=pytest.mark.slow),  # a compilation each
        pytest.param(("own",), "constant", False, "noise", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_gradient_is_that_of_the_dense_bound(kinds, trend, learn_noise, residual):
    """To rounding for points. Of several nodes, how their residuals correlate is held: a few percent of the gradient's
    own statistical std, about sqrt(N / 2)."""
    data, _, y, _ = problem.mixture(kinds)
    if learn_noise:
        data = hg.observe(data.blocks[0].functional, y)
    layout = Layout.of(KERNEL, learn_noise)
    vector = layout.pack(KERNEL, 0.12) + 0.1
    kernel, found = layout.unpack(jnp.asarray(vector))
    noise = None if found is None else float(found)
    tight = hg.Batch(space="data", residual=residual, tolerance=1e-12)
    given = jax.tree.map(np.asarray, kernel), GRID, data, noise, hg.GP(KERNEL, GRID, trend=trend).trend
    post = tight.fit(Problem(*given))
    slope = evidence.slope(post, every_probe(post), 1e-12)
    bound = lambda v: dense_bound(v, layout, data, trend, noise, residual)
    assert slope.evidence.value == pytest.approx(bound(vector), abs=1e-4)
    assert slope.gradient.names == tuple(layout.names())
    exact = differences(bound, vector)
    single = all(block.functional.single for block in data.blocks)
    atol = 1e-4 * np.max(np.abs(exact)) if single else 0.03 * np.sqrt(len(data) / 2)
    np.testing.assert_allclose(slope.gradient.values, exact, rtol=0, atol=atol)


def test_a_few_probes_estimate_it_with_the_spread_that_theory_gives():
    """Over many keys the mean is right, and one key's error is below the statistical error of the parameters."""
    data, _, _, _ = problem.mixture(("points",))
    layout = Layout.of(KERNEL, False)
    given = Problem(KERNEL, GRID, data, None, hg.GP(KERNEL, GRID).trend)
    post = evidence.differentiable(hg.Batch(), GRID).fit(given)
    signs = lambda key: post.system.random_signs(8, jax.random.key(key))
    found = [evidence.slope(post, signs(key)).gradient.values for key in range(24)]
    same = hg.Batch().log_evidence_slope(given, 8, jax.random.key(0)).gradient.values
    np.testing.assert_allclose(same, found[0], rtol=1e-6)
    exact = differences(lambda v: dense_bound(v, layout, data, None, None), layout.pack(KERNEL, None))
    spread = np.std(found, axis=0, ddof=1)
    assert np.all(np.abs(np.mean(found, axis=0) - exact) < 4 * spread / np.sqrt(24) + 1e-4)
    assert np.all(spread < 0.3 * np.sqrt(len(data)))


@pytest.mark.parametrize(
    ("kinds", "settings"),
    [
        (("points",), {"space": "grid"}),
        (("points",), {"residual": "bound"}),
        (("rays",), {"weights": "matrix-free"}),
    ],
    ids=str,
)
def test_a_posterior_gives_the_gradient_by_name_whatever_its_settings(kinds, settings):
    """Where it cannot be had of the settings it is that of the nearest ones, as `evidence.differentiable` says."""
    data = problem.mixture(kinds)[0]
    post = hg.GP(KERNEL, GRID).condition(data, hg.Batch(**settings))
    found = post.log_evidence_gradient(probes=64)
    layout = Layout.of(KERNEL, False)
    residual = settings.get("residual", "noise")
    exact = differences(
        lambda v: dense_bound(v, layout, data, None, None, residual), layout.pack(KERNEL, None)
    )
    assert found.names == tuple(layout.names())
    np.testing.assert_allclose(found.values, exact, rtol=0, atol=0.25 * np.sqrt(len(data)))
    assert np.max(np.abs(exact)) > 0.35 * np.sqrt(len(data))  # or the tolerance would pass zeros


def test_learning_and_conditioning_see_the_same_model():
    """The settings of learning build the system of conditioning, residuals included; only exact weights become local."""
    plain = hg.Batch(space="data", residual="bound", neighbours=7, stencil=2, tolerance=0.5)
    assert evidence.differentiable(plain, GRID) == plain
    assert evidence.differentiable(hg.Batch(), GRID) == hg.Batch(space="data", residual="joint")
    assert evidence.differentiable(hg.Batch(space="grid"), GRID).residual == "noise"
    exact = evidence.differentiable(hg.Batch(weights="exact"), GRID)
    assert (exact.weights, exact.stencil, exact.residual) == ("local", 8, "noise")


def test_learning_sees_joint_residuals_as_conditioning_does():
    """Points on a grid that is too coarse for the kernel: the evidence that learning climbs, and its gradient."""
    given, tight = coarse_points(), hg.Batch(tolerance=1e-12)
    post = evidence.differentiable(tight, GRID).fit(given, progress=False)
    assert post.diagnostics["residual"] == "joint"
    slope = evidence.slope(post, every_probe(post), 1e-12)
    layout = Layout.of(given.kernel, False)
    bound = lambda v: dense_bound(v, layout, given.data, None, None, "joint")
    vector = layout.pack(given.kernel, None)
    exact = differences(bound, vector)
    assert slope.evidence.value == pytest.approx(bound(vector), abs=1e-4)
    np.testing.assert_allclose(slope.gradient.values, exact, rtol=0, atol=1e-4 * np.max(np.abs(exact)))


def coarse_points():
    """Points, crowded in some cells, on a grid that is too coarse for the kernel."""
    x = np.concatenate([problem.places(3, 30), 0.1 + 0.05 * problem.places(4, 5)])
    kernel = hg.Matern32(variance=1.3, lengthscale=0.22)
    y = np.random.default_rng(5).normal(size=len(x))
    data = in_order(hg.observe(hg.Points(x), y, noise=0.3))[0]
    return Problem(kernel, GRID, data, None, hg.GP(kernel, GRID).trend)
