"""The paper's engine against the dense SVGP on the same grid: every functional and a mixture, in 1-D, 2-D and 3-D."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dense
from hipgp.model.data import observe
from hipgp.model.functionals import Derivatives, Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Matern12, SquaredExponential
from hipgp.predictions import SampleOptions
from hipgp.variational.engine import Variational
from hipgp.variational.full_pass import full_pass
from hipgp.variational.minibatch_weights import minibatches
from hipgp.variational.whitening import whiten
from variational_problem import (
    CASES,
    COUNT,
    GRIDS,
    as_dense,
    close,
    every_dimension,
    every_functional,
    gp_problem,
    inside,
    kernels,
    observed,
    slow,
)


def dense_root(whitening):
    return np.asarray(whitening.root(jnp.eye(whitening.size))).T


# ---------------------------------------------------------------- full rank is the dense SVGP


@every_functional
@every_dimension
def test_full_rank_is_the_dense_svgp(make, dimension):
    grid, (kernel, plain) = GRIDS[dimension], kernels(dimension)
    rng = np.random.default_rng(1)
    functional, y = make(rng, dimension), rng.normal(size=COUNT)
    post = Variational("full").fit(gp_problem(kernel, grid, observe(functional, y, noise=0.2)))
    f = as_dense(functional, grid)
    expected = dense.svgp(plain, grid.coordinates(), f, y, 0.2, f)
    mean, std, _ = post.predict(functional)
    close(mean, expected.mean)
    close(std, expected.std)
    close(post.elbo(), expected.objective)
    assert post.diagnostics["converged"]


@pytest.mark.quick
@pytest.mark.parametrize(("dimension", "residual"), CASES)
def test_full_rank_of_a_mixture(dimension, residual):
    grid, (kernel, plain) = GRIDS[dimension], kernels(dimension)
    data, f = observed(dimension)
    at = dense.points(grid.coordinates())
    expected = dense.svgp(plain, grid.coordinates(), f, data.y, data.noise_std(None), at, residual)
    for whitening in ("toeplitz", "cholesky"):
        post = Variational("full", whitening=whitening, residual=residual, batch_size=20).fit(
            gp_problem(kernel, grid, data)
        )
        close(post.grid_mean().ravel(), expected.mean)
        close(post.grid_std()[0].ravel(), expected.std)
        close(post.diagnostics["elbo"], expected.objective)
        assert post.elbo() == pytest.approx(post.diagnostics["elbo"])


# ---------------------------------------------------------------- structured families


@pytest.mark.parametrize("family", ["mean-field", pytest.param("block", marks=pytest.mark.quick)])
@every_dimension
def test_structured_optimum_is_the_dense_one(dimension, family):
    """In closed form, and by natural gradients with all data and with minibatches."""
    grid, (kernel, plain) = GRIDS[dimension], kernels(dimension)
    data, f = observed(dimension, noise=0.5)
    settings = {"family": family, "block_shape": (5, 3, 2)[:dimension]}
    post = Variational(**settings, direct=True).fit(gp_problem(kernel, grid, data))
    root, blocks = dense_root(post.whitening), np.asarray(post.q.blocks.index)
    model = plain, grid.coordinates(), f, data.y, data.noise_std(None)
    real = [b[b < post.whitening.size] for b in blocks]
    m, s = dense.svgp_optimum(*model, root=root, blocks=real)
    close(post.whitened_mean.ravel(), m)
    close(post.elbo(), dense.svgp_elbo(m, s, *model, root=root))
    mean, cov = dense.svgp_predict(
        m, s, plain, grid.coordinates(), dense.points(grid.coordinates()), root=root
    )
    close(post.grid_mean().ravel(), mean)
    close(post.grid_std()[0].ravel() ** 2, np.diag(cov))
    whole = Variational(**settings, direct=False, batch_size=1000, epochs=1).fit(
        gp_problem(kernel, grid, data)
    )
    close(whole.whitened_mean, post.whitened_mean)
    close(whole.whitened_covariance, post.whitened_covariance)
    close(whole.elbo(), post.elbo())
    if family == "mean-field" and dimension != 2:
        return
    small = Variational(**settings, direct=False, batch_size=15, epochs=30).fit(
        gp_problem(kernel, grid, data)
    )
    close(small.whitened_covariance, post.whitened_covariance)
    close(small.whitened_mean, post.whitened_mean)
    close(small.elbo(), post.elbo())
    assert len(small.diagnostics["elbo_trace"]) == 30


def test_the_papers_own_steps_reach_the_optimum():
    """A constant small step on all data, where every update is appendix B.1.2 as it stands."""
    grid, (kernel, _) = GRIDS[1], kernels(1)
    data, _ = observed(1, noise=1.5)
    direct = Variational("mean-field", direct=True).fit(gp_problem(kernel, grid, data))
    settings = {"family": "mean-field", "direct": False, "batch_size": 1000, "step": 0.05, "epochs": 1000}
    post = Variational(**settings).fit(gp_problem(kernel, grid, data), progress=False)
    close(post.whitened_mean, direct.whitened_mean, 1e-4)
    close(post.whitened_covariance, direct.whitened_covariance, 1e-6)


def test_blocks_are_better_than_points_and_worse_than_all():
    grid, (kernel, _) = GRIDS[2], kernels(2)
    data, _ = observed(2)
    bounds = [
        Variational(family, shape).fit(gp_problem(kernel, grid, data)).diagnostics["elbo"]
        for family, shape in (("mean-field", None), ("block", (2, 2)), ("block", (4, 4)), ("full", None))
    ]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("step", [1e-3, 1.0])
def test_no_step_diverges(step):
    """Strong data, small minibatches, one-point blocks: the plain update explodes."""
    grid, (kernel, _) = GRIDS[2], kernels(2)
    data, _ = observed(2, noise=1e-3)
    settings = {"family": "mean-field", "direct": False, "batch_size": 5, "epochs": 10}
    post = Variational(**settings, step=step).fit(gp_problem(kernel, grid, data))
    mean, std, _ = post.predict(Points(grid.coordinates()))
    assert np.all(np.isfinite(mean)) and np.all(np.abs(mean) < 50) and np.all(std > 0)
    assert np.all(np.isfinite(post.diagnostics["elbo_trace"]))
    assert not post.diagnostics["converged"] and "nats short" in post.diagnostics["message"]


def test_automatic_steps_on_strong_data():
    grid, (kernel, _) = GRIDS[2], kernels(2)
    data, _ = observed(2, noise=1e-2)
    settings = {"family": "mean-field", "direct": False, "batch_size": 5}
    bounds = [
        Variational(**settings, epochs=n).fit(gp_problem(kernel, grid, data)).diagnostics["elbo"]
        for n in (5, 60)
    ]
    best = Variational("mean-field").fit(gp_problem(kernel, grid, data)).diagnostics["elbo"]
    assert best >= bounds[1] > bounds[0]


# ---------------------------------------------------------------- local weights, sampling, float32


@pytest.mark.parametrize("dimension", [1, 2])
def test_local_weights_of_the_whole_grid_are_exact(dimension):
    grid, (kernel, _) = GRIDS[dimension], kernels(dimension)
    data, _ = observed(dimension)
    exact = Variational("full").fit(gp_problem(kernel, grid, data))
    local = Variational("full", weights="local", stencil=12).fit(gp_problem(kernel, grid, data))
    close(local.grid_mean(), exact.grid_mean())
    close(local.grid_std()[0], exact.grid_std()[0])
    close(local.elbo(), exact.elbo())
    lines = data.blocks[2].functional
    for found, expected in zip(local.predict(lines)[:2], exact.predict(lines)[:2], strict=True):
        close(found, expected)


def test_draws_have_the_posterior_moments():
    grid, (kernel, _) = GRIDS[2], kernels(2)
    data, _ = observed(2)
    post = Variational("block", (3, 2)).fit(gp_problem(kernel, grid, data))
    draws = post.sample(SampleOptions(20_000, jax.random.key(0)))
    assert draws.shape == (20_000, *grid.shape)
    np.testing.assert_allclose(draws.mean(axis=0), post.grid_mean(), atol=0.04)
    np.testing.assert_allclose(draws.std(axis=0), post.grid_std()[0], rtol=0.04)
    boxes = data.blocks[3].functional
    seen, (mean, std, _) = post.sample(SampleOptions(20_000, jax.random.key(1)), boxes), post.predict(boxes)
    assert seen.shape == (20_000, COUNT)
    np.testing.assert_allclose(seen.mean(axis=0), mean, atol=0.04)
    np.testing.assert_allclose(seen.std(axis=0), std, rtol=0.04)


@pytest.mark.parametrize(
    ("direct", "weights", "step"), [(True, "exact", None), (False, "local", None), (False, "exact", 0.3)]
)
def test_float32_agrees(direct, weights, step, monkeypatch):
    monkeypatch.setattr("hipgp.variational.minibatch_weights.FLOAT64", 0)  # as if minibatches were large
    grid, (kernel, _) = GRIDS[2], kernels(2)
    rng = np.random.default_rng(5)
    x, y = inside(rng, 2, count=60), rng.normal(size=60)
    settings = Variational(
        "block", (3, 2), weights=weights, direct=direct, step=step, batch_size=20, epochs=5
    )
    found = []
    for dtype in (np.float64, np.float32):
        data = observe(Points(x.astype(dtype)), y.astype(dtype), noise=dtype(0.1))
        post = settings.fit(gp_problem(kernel, grid, data))
        found.append((post.grid_mean(), post.grid_std()[0], *post.predict(Points(x.astype(dtype)))[:2]))
    for double, single in zip(*found, strict=True):
        assert single.dtype == np.float32 and double.dtype == np.float64 and np.all(np.isfinite(single))
    (mean, std, mean_at, std_at), (mean32, std32, mean32_at, std32_at) = found
    for a, b, s in (
        (mean, mean32, std),
        (std, std32, std),
        (mean_at, mean32_at, std_at),
        (std_at, std32_at, std_at),
    ):
        assert np.max(np.abs(a - b) / s) < 1e-3


# ---------------------------------------------------------------- bad input, streaming, section 5.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"family": "blocks"}, "family: expected one of 'mean-field'"),
        ({"weights": "exactly"}, "weights: expected one of"),
        ({"whitening": "fft"}, "whitening: expected one of"),
        ({"residual": "none"}, "residual: expected one of"),
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
        ({"epochs": 2.5}, "epochs: expected a whole number"),
        ({"step": 1.5}, "step: expected a number above 0 and at most 1, got 1.5"),
        ({"learning_rate": -1.0}, "learning_rate: expected"),
        ({"tolerance": 0.0}, "tolerance: expected"),
        ({"stencil": 3}, "stencil: expected an even number"),
        ({"block_shape": (2, 0)}, "block_shape: expected a whole number of at least 1, got 0"),
        ({"max_iterations": 0}, "max_iterations: expected"),
        ({"predict_max_iterations": None}, "predict_max_iterations: expected"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ValueError, match=message):
        Variational(**settings)


def test_fits_that_make_no_sense():
    grid, (kernel, _) = GRIDS[2], kernels(2)
    rng = np.random.default_rng(8)
    data = observe(Points(inside(rng, 2)), np.ones(COUNT), noise=0.1)
    with pytest.raises(ValueError, match=r"block_shape: expected 2 whole numbers.*got \(2, 2, 2\)"):
        Variational(block_shape=(2, 2, 2)).fit(gp_problem(kernel, grid, data))
    with pytest.raises(ValueError, match="noise: expected the noise of every observation"):
        Variational().fit(gp_problem(kernel, grid, observe(data.blocks[0].functional, data.y)))
    with pytest.raises(ValueError, match="reach outside the grid"):
        Variational().fit(gp_problem(kernel, grid, observe(Points([[5.0, 0.0]]), [1.0], noise=0.1)))
    slopes = observe(Derivatives(inside(rng, 2)), np.ones(COUNT), noise=0.1)
    with pytest.raises(ValueError, match="kernel: expected one whose draws have a derivative"):
        Variational().fit(gp_problem(Matern12(1.0, 0.3), grid, slopes))
    post = Variational("mean-field").fit(gp_problem(Matern12(1.0, 0.3), grid, data))
    with pytest.raises(ValueError, match="kernel: expected one whose draws have a derivative"):
        post.predict(slopes.blocks[0].functional)


@slow  # compiles two ways to the same weights
def test_weights_batch_by_batch_are_those_of_the_table(monkeypatch):
    grid, (kernel, _) = GRIDS[2], kernels(2)
    data, _ = observed(2)
    settings = Variational("block", (3, 2), direct=False, batch_size=10, epochs=4)
    held = settings.fit(gp_problem(kernel, grid, data))
    monkeypatch.setattr("hipgp.variational.engine.are_stored", lambda *_: False)
    streamed = settings.fit(gp_problem(kernel, grid, data))
    close(streamed.whitened_mean, held.whitened_mean)
    close(streamed.elbo(), held.elbo())
    assert streamed.diagnostics["pcg_iterations_max"] == held.diagnostics["pcg_iterations_max"] > 0
    with pytest.raises(ValueError, match="direct: expected weights that fit"):
        Variational("block", (3, 2), direct=True).fit(gp_problem(kernel, grid, data))


def test_minibatches_are_unbiased():
    """One after another they see each observation once, whatever the sizes of the blocks."""
    seen = [np.zeros(n) for n in (7, 1, 12)]
    for selection in minibatches((7, 1, 12), 4, np.random.default_rng(0)):
        begin = 0
        for counts, index in zip(seen, selection.index, strict=True):
            np.add.at(counts, index, selection.mask[begin : begin + len(index)])
            begin += len(index)
    for counts in seen:
        np.testing.assert_array_equal(counts, 1)


def test_a_short_pcg_is_told():
    grid, (kernel, _) = GRIDS[2], kernels(2)
    data, _ = observed(2)
    post = Variational("full", max_iterations=1).fit(gp_problem(kernel, grid, data))
    assert not post.diagnostics["converged"] and "raise max_iterations" in post.diagnostics["message"]
    assert post.diagnostics["pcg_iterations_max"] == 1


def test_the_mean_gap_is_bounded():
    """Half the squared gradient is never less than what the bound has to gain."""
    grid, (kernel, _) = GRIDS[2], kernels(2)
    data, _ = observed(2)
    short = Variational("block", (3, 2), direct=False, batch_size=15, epochs=1).fit(
        gp_problem(kernel, grid, data)
    )
    best = Variational("block", (3, 2)).fit(gp_problem(kernel, grid, data))
    gain = best.elbo() - short.elbo()
    assert 0 < gain <= short.diagnostics["mean_gap_nats_bound"]
    gradient = full_pass(short.q, short.problem).gradient
    assert 0.5 * float(gradient @ gradient) == pytest.approx(short.diagnostics["mean_gap_nats_bound"])


@pytest.mark.data
@pytest.mark.parametrize("whitening", ["toeplitz", pytest.param("cholesky", marks=slow)])
@pytest.mark.parametrize(
    ("derivatives", "error", "spread"), [(True, 0.01925, 0.01982), (False, 0.03095, 0.02842)]
)
def test_section_5_3(data_folder, derivatives, error, spread, whitening):
    """The paper's derivative problem, in float64; its inducing points are 80 in [-1, 1]."""
    file = np.load(data_folder / "derivatives" / "derivatives.npz")
    z = {name: file[name].astype(float) for name in ("x", "y", "x_derivative", "dy", "x_test", "f_test")}
    data = observe(Points(z["x"]), z["y"], noise=0.05)
    if derivatives:
        data = data + observe(Derivatives(z["x_derivative"]), z["dy"], noise=0.2)
    grid = Grid.cover(-1.0, 1.0, shape=80)
    post = Variational("full", whitening=whitening).fit(gp_problem(SquaredExponential(0.5, 0.1), grid, data))
    mean, std, _ = post.predict(Points(z["x_test"]))
    assert np.sqrt(np.mean((mean - z["f_test"]) ** 2)) == pytest.approx(error, abs=5e-6)
    assert np.mean(std) == pytest.approx(spread, abs=5e-6)


def test_whitenings_have_the_same_root():
    grid, (kernel, _) = GRIDS[3], kernels(3)
    for kind in ("toeplitz", "cholesky"):
        root = dense_root(whiten(kernel, grid, kind))
        np.testing.assert_allclose(root @ root.T, kernel(grid.coordinates(), grid.coordinates()), atol=1e-12)
