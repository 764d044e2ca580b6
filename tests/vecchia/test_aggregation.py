"""Bins of points: who goes together, and the factor against the dense matrix that it stands for."""

import jax.numpy as jnp
import numpy as np
import pytest

import dense
import hipgp as hg
from hipgp.batch import variances
from hipgp.model.kernel_scales import typical_lengthscale
from hipgp.vecchia import aggregation
from hipgp.vecchia import factor as vecchia

KERNEL, DENSE = hg.Matern12(1.0, 0.5), dense.Matern12(1.0, 0.5)


def crowded(count=120, seed=0):
    """Points in a few tight crowds, with different noises, some at one place."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(12, 2))[rng.integers(12, size=count)] + 0.01 * rng.standard_normal((count, 2))
    x[10:20] = x[10]
    return x, rng.uniform(0.3, 0.6, count) ** 2


def found_clusters(x, noise, kernel=KERNEL):
    return aggregation.cluster_points(kernel, x, noise, typical_lengthscale(kernel, x.shape[1]))


def test_the_factor_is_that_of_the_bins_exactly():
    x, noise = crowded()
    own = found_clusters(x, noise)
    assert own is not None and own.max() + 1 < 90
    data = hg.observe(hg.Points(x), np.zeros(len(x)), noise=1.0)
    found = vecchia.vecchia_factor(KERNEL, vecchia.choose_conditioning_sets(KERNEL, data, len(x)), noise)
    assert "clusters" in found.description
    f = dense.points(np.asarray(aggregation.clusters_as_points(x, own, noise)[0].x)[:, 0])
    belongs = np.eye(own.max() + 1)[own]
    p = belongs @ dense.covariance(DENSE, f, f) @ belongs.T + np.diag(noise)
    s = np.asarray(found.factor.matmul(jnp.eye(len(x)))).T
    np.testing.assert_allclose(s.T @ s, np.linalg.inv(p), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.factor.transpose_matmul(jnp.eye(len(x))), s, rtol=1e-10, atol=1e-10)
    assert float(found.log_determinant) == pytest.approx(np.linalg.slogdet(p)[1], rel=1e-9)


@pytest.mark.parametrize(
    ("kernel", "share"),
    [(hg.Matern12(1.0, 0.5), aggregation.ROUGH), (hg.Matern32(1.0, 0.5), aggregation.SMOOTH)],
)
def test_no_bin_is_wider_than_its_noise_allows_and_many_come_near_that(kernel, share):
    x, noise = crowded(600)
    own = found_clusters(x, noise, kernel)
    wide = 0
    for b in range(own.max() + 1):
        rows = np.flatnonzero(own == b)
        assert 1 <= len(rows) <= aggregation.LARGEST_CLUSTER
        width = np.linalg.norm(np.ptp(x[rows], axis=0) / 0.5)
        gap = 2 * (1.0 - float(kernel.evaluate(jnp.array([[0.5 * width], [0.0]]))[0]))
        assert len(rows) == 1 or len(rows) * gap <= 1.001 * share * noise[rows].min()
        wide += len(rows) * gap > 0.05 * share * noise[rows].min()
    assert wide > 0.3 * own.max()


def test_points_that_the_noise_can_tell_apart_stand_alone():
    x = np.random.default_rng(1).uniform(size=(200, 2))
    assert found_clusters(x, np.full(200, 1e-6)) is None
    near = vecchia.choose_conditioning_sets(KERNEL, hg.observe(hg.Points(x), np.zeros(200), 1e-3))
    assert "clusters" not in vecchia.vecchia_factor(KERNEL, near, np.full(200, 1e-6)).description


def test_a_crowd_at_one_place_is_shared_out():
    own = found_clusters(np.zeros((100, 2)), np.ones(100))
    assert np.bincount(own).max() <= aggregation.LARGEST_CLUSTER and np.bincount(own).min() > 5


def test_crowded_noisy_points_take_fewer_steps_and_the_same_answer():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(6000, 2))
    data = hg.observe(hg.Points(x), np.sin(9 * x[:, 0]) + rng.standard_normal(6000), noise=1.0)
    gp = hg.GP(hg.Matern32(1.0, 0.3), hg.Grid.cover((0, 0), (1, 1), shape=(60, 60)))
    post = gp.condition(data, hg.Batch(space="data", tolerance=1e-4))
    plain = gp.condition(data, hg.Batch(space="data", neighbours=0, tolerance=1e-4))
    assert "clusters" in post.diagnostics["preconditioner"]
    assert post.diagnostics["iterations"] < 0.5 * plain.diagnostics["iterations"]
    std = post.std()
    assert np.max(np.abs(post.mean - plain.mean) / std) < 0.1
    small = hg.observe(hg.Points(np.float32(x)), np.float32(data.y), noise=np.float32(1.0))
    single = gp.condition(small, hg.Batch(space="data"))
    assert single.mean.dtype == np.float32 and single.diagnostics["converged"]
    assert "clusters" in single.diagnostics["preconditioner"]
    assert np.max(np.abs(single.mean - plain.mean) / std) < 0.3


@pytest.mark.parametrize(
    "kernel",
    [hg.Matern32(1.0, 0.3), pytest.param(hg.Matern12(1.0, 0.5), marks=pytest.mark.slow)],
    ids=["smooth", "rough"],
)
def test_std_of_crowded_noisy_points_is_the_exact_one(kernel, monkeypatch):
    """The nearest thirty points alone leave it wide where the field is smooth."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(4000, 2))
    data = hg.observe(hg.Points(x), rng.standard_normal(4000), noise=1.0)
    post = hg.GP(kernel, hg.Grid.cover((0, 0), (1, 1), shape=(40, 40)), trend="constant").condition(data)
    targets = hg.Points(rng.uniform(0.02, 0.98, (30, 2)))
    exact = post.predict(targets, "exact").std
    ratio = post.predict(targets, "vecchia").std / exact
    assert 0.97 < np.min(ratio) and np.max(ratio) < 1.1 and np.mean(ratio) < 1.06
    if kernel.differentiable:
        monkeypatch.setattr(variances, "cluster_points", lambda *_: None)
        assert np.mean(post.predict(targets, "vecchia").std / exact) > 1.15
