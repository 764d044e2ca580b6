"""Learning with links and likelihoods: what data were simulated from comes back."""

import numpy as np
import pytest

import hipgp as hg
from hipgp.learning.learned import Learned
from hipgp.nonlinear import learning

GRID = hg.Grid.cover(0.0, 10.0, shape=120)
KERNEL = hg.Matern52(0.8, 0.7)
X = np.linspace(0.1, 9.9, 350)


def field(seed, variance=0.8):
    rng = np.random.default_rng(seed)
    cov = np.asarray(hg.Matern52(variance, 0.7)(X[:, None], X[:, None])) + 1e-9 * np.eye(len(X))
    return np.linalg.cholesky(cov) @ rng.standard_normal(len(X)), rng


def test_a_kernel_is_learned_from_counts():
    f, rng = field(0)
    data = hg.observe(hg.Points(X), rng.poisson(np.exp(f + 2)), likelihood=hg.Poisson())
    gp = hg.GP(hg.Matern52(0.3, 2.0), GRID, trend="constant", link="exp").learn(data, progress=False)
    assert 0.4 < gp.kernel.lengthscale < 1.2 and 0.3 < gp.kernel.variance < 2.0
    assert gp.link.name == "exp" and len(gp.learned.names) == 2
    post = gp.condition(
        data, progress=False
    )  # starts from what learning knew, and ends where a fresh start does
    fresh = hg.GP(gp.kernel, GRID, trend="constant", link="exp").condition(data, progress=False)
    assert post.diagnostics["rounds"] <= 6 < fresh.diagnostics["rounds"]
    np.testing.assert_allclose(post.mean, fresh.mean, rtol=0.01)


def test_few_counts_in_many_cells_do_not_look_like_a_flat_field():
    """From a smooth first field the search once ended at an endless lengthscale."""
    f, rng = field(4, 1.5)
    data = hg.observe(hg.Points(X), rng.poisson(0.5 * np.exp(f)), likelihood=hg.Poisson(0.5))
    gp = hg.GP(hg.Matern52(1.0, 5.0), GRID, trend="constant", link="exp").learn(data, progress=False)
    assert 0.3 < gp.kernel.lengthscale < 1.5 and 0.4 < gp.kernel.variance < 4.0


def test_outliers_do_not_drag_noise_and_kernel_down():
    f, rng = field(1)
    noise = 0.1 * rng.standard_t(2.0, len(X))
    data = hg.observe(hg.Points(X), f + noise, likelihood=hg.StudentT())
    start = hg.GP(hg.Matern52(0.5, 1.0), GRID)
    gp = start.learn(data, progress=False)
    assert 0.06 < gp.noise < 0.16 and 1.2 < gp.parameters["StudentT.df"] < 4.0
    found = gp.condition(data, progress=False).predict(hg.Points(X), progress=False)
    plain = start.learn(hg.observe(hg.Points(X), f + noise), progress=False)
    other = plain.condition(hg.observe(hg.Points(X), f + noise), progress=False)
    worse = other.predict(hg.Points(X), progress=False)
    assert np.sqrt(np.mean((found.mean - f) ** 2)) < 0.92 * np.sqrt(np.mean((worse.mean - f) ** 2))


def test_the_dispersion_of_counts_is_learned():
    f, rng = field(2, 0.4)
    mean = np.exp(f + 3)
    y = rng.negative_binomial(4.0, 4.0 / (4.0 + mean)).astype(float)
    data = hg.observe(hg.Points(X), y, likelihood=hg.NegativeBinomial())
    gp = hg.GP(hg.Matern52(0.5, 1.0), GRID, trend="constant", link="exp").learn(data, progress=False)
    assert 2.5 < gp.parameters["NegativeBinomial.dispersion"] < 6.5


def test_the_noise_of_a_positive_field_is_learned():
    f, rng = field(3, 0.4)
    y = np.exp(f) + 0.1 * rng.standard_normal(len(X))
    gp = hg.GP(KERNEL, GRID, link="exp").learn(hg.observe(hg.Points(X), y), progress=False)
    assert 0.085 < gp.noise < 0.115


def test_a_turn_goes_no_farther_than_its_linearisation_holds():
    """Real extinctions took a step from variance 1 to 11,000, after which exp(f) is no number."""
    names, kernel = ["Matern32.variance", "Matern32.lengthscale"], hg.Matern32(1.0, 0.3)
    far = Learned(
        hg.Matern32(11_000.0, 0.2), None, names, np.array([11_000.0, 0.2]), np.eye(2), [], 0.0, {}, [], 0.0
    )
    near = learning._near(far, kernel, None, 1.0)
    np.testing.assert_allclose(near.values, [np.e, 0.2])
    np.testing.assert_allclose([near.kernel.variance, near.kernel.lengthscale], [np.e, 0.2])
    assert learning._near(near, hg.Matern32(2.0, 0.3), None, 1.0) is near
    half = learning._near(near, hg.Matern32(2.0, 0.3), None, 0.5)
    np.testing.assert_allclose(half.values, np.sqrt([2.0 * np.e, 0.3 * 0.2]))


@pytest.mark.slow  # some forty seconds: turns of learning with integrals
def test_the_noise_of_integrals_is_learned_with_the_kernel():
    """In turns with the kernel, from the misfit at the present one, it would creep."""
    f, rng = field(5, 0.8)
    starts = rng.integers(0, len(X) - 12, 150)
    rows = starts[:, None] + np.arange(12)
    lines = hg.Functionals(X[rows][..., None], np.full(12, 1 / 12))
    y = np.exp(f)[rows].mean(axis=1) + 0.2 * rng.standard_normal(150)
    gp = hg.GP(KERNEL, GRID, trend="constant", link="exp").learn(hg.observe(lines, y), progress=False)
    assert 0.17 < gp.noise < 0.23 and "noise" in gp.learned.names
