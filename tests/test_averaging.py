"""Averaging over kernels: against quadrature over the dense model's parameters, in every engine, and by simulation."""

import jax
import numpy as np
import pytest
from scipy.special import ndtr

import dense
import hipgp as hg
from hipgp.learning import integration
from hipgp.learning.parameters import Bounds
from hipgp.predictions import SampleOptions
from hipgp.runtime import memory

BOUNDS = {"variance": (0.1, 10.0), "lengthscale": (0.03, 1.0)}
WITH_NOISE = BOUNDS | {"noise": (0.05, 1.0)}
AT = np.linspace(-0.2, 1.2, 8)[:, None]
pytestmark = pytest.mark.filterwarnings("ignore:the data do not determine")


def drawn(seed, count=30, at=AT, noise=None):
    """A problem whose parameters come from the prior that is flat in their logarithms: places, y, the field at `at`."""
    rng = np.random.default_rng(seed)
    variance, length, std = (np.exp(rng.uniform(*np.log(pair))) for pair in WITH_NOISE.values())
    std = std if noise is None else noise
    x = rng.uniform(0.0, 1.0, (count, 1))
    every = dense.points(np.concatenate([x, at]))
    root = np.linalg.cholesky(
        dense.covariance(dense.Matern32(variance, length), every, every) + 1e-10 * np.eye(count + len(at))
    )
    f = root @ rng.standard_normal(len(root))
    return x, f[:count] + std * rng.standard_normal(count), f[count:]


def learned(x, y, noise=None, bounds=BOUNDS):
    data = hg.observe(hg.Points(x), y, noise=noise)
    return hg.GP(hg.Matern32()).learn(data, bounds=bounds, progress=False), data


@pytest.fixture(scope="module")
def few():
    x, y, _ = drawn(5, 14, noise=0.2)
    gp, data = learned(x, y, 0.2)
    return x, y, data, gp


@pytest.fixture(scope="module")
def post(few):
    _, _, data, gp = few
    return gp.condition(data, hyperparameters="average", progress=False)


def by_quadrature(x, y, cells=24):
    """Mean, standard deviation and distribution function at AT, of the model whose parameters are integrated over."""
    ends = [np.log(pair) for pair in BOUNDS.values()]
    logs = [low + (np.arange(cells) + 0.5) * (high - low) / cells for low, high in ends]
    found = [
        dense.exact_gp(dense.Matern32(np.exp(a), np.exp(b)), dense.points(x), y, 0.2, dense.points(AT))
        for a in logs[0]
        for b in logs[1]
    ]
    density = np.array([one.objective for one in found])
    weights = np.exp(density - density.max())
    weights /= weights.sum()
    means, stds = (np.array([getattr(one, name) for one in found]) for name in ("mean", "std"))
    mean = weights @ means
    std = np.sqrt(weights @ (stds**2 + (means - mean) ** 2))
    return mean, std, lambda v: weights @ ndtr((v - means) / stds)


def test_it_is_the_integral_over_the_parameters(few, post):
    x, y, data, gp = few
    mean, std, cumulative = by_quadrature(x, y)
    found, plain = (one.predict(AT, progress=False) for one in (post, gp.condition(data, progress=False)))
    assert np.max(np.abs(found.mean - mean) / std) < 0.1
    np.testing.assert_allclose(found.std, std, rtol=0.1)
    assert np.max(np.abs(plain.std / std - 1)) > 0.15  # which the tolerance above must tell from the integral
    for q in (0.025, 0.2, 0.9):
        np.testing.assert_allclose(cumulative(found.quantile(q)), q, atol=0.03)


def test_the_points_follow_a_density_that_is_known():
    """A normal distribution cut off at a bound, from a start that is off and far too narrow."""
    box = Bounds(np.array([-8.0, -1.0]), np.array([8.0, 8.0]))
    precision = np.array([[2.0, -1.2], [-1.2, 1.0]])
    log_density = lambda v: -0.5 * float((v - 0.5) @ precision @ (v - 0.5))
    found = integration.importance_sampled(log_density, np.array([-1.0, 1.5]), 0.02 * np.eye(2), box)
    a, b = np.meshgrid(*(np.linspace(low, high, 801) for low, high in zip(*box, strict=True)), indexing="ij")
    grid = np.stack([a.ravel(), b.ravel()], 1)
    truth = np.exp(-0.5 * np.einsum("ni,ij,nj->n", grid - 0.5, precision, grid - 0.5))
    truth /= truth.sum()
    chosen, shares = integration.evenly_chosen(found.points, found.weights, 64)
    for points, weights, close in (
        (found.points, found.weights, 0.1),
        (found.points[chosen], shares, 0.2),
    ):
        mean = truth @ grid
        spread = np.sqrt(truth @ (grid - mean) ** 2)
        np.testing.assert_allclose(weights @ points, mean, atol=close * spread.min())
        np.testing.assert_allclose(np.sqrt(weights @ (points - mean) ** 2), spread, rtol=2 * close)


def test_a_mixture_is_made_of_its_parts(post, few):
    x, y, _, _ = few
    kernels, weights = post.engine.method.over.kernels, post.engine.weights
    assert np.sum(weights) == pytest.approx(1.0)
    found = [
        dense.exact_gp(
            dense.Matern32(float(k.variance), float(k.lengthscale)), dense.points(x), y, 0.2, dense.points(AT)
        )
        for k in kernels
    ]
    evidence = np.array([one.objective for one in found])
    expected = post.engine.method.over.weights * np.exp(evidence - post.engine.method.over.log_likelihoods)
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-6)
    means, stds = (np.array([getattr(one, name) for one in found]) for name in ("mean", "std"))
    p = post.predict(AT, progress=False)
    np.testing.assert_allclose(p.mean, weights @ means, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(p.std, np.sqrt(weights @ (stds**2 + means**2) - p.mean**2), rtol=1e-6)
    np.testing.assert_allclose(weights @ ndtr((p.quantile(0.1) - means) / stds), 0.1, atol=1e-9)
    lower, upper = p.interval(0.9)
    assert np.all(lower < p.mean) and np.all(p.mean < upper)
    wider = p.with_noise(0.3)
    np.testing.assert_allclose(wider.std, np.hypot(p.std, 0.3), rtol=1e-9)
    np.testing.assert_allclose(
        weights @ ndtr((wider.quantile(0.7) - means) / np.hypot(stds, 0.3)), 0.7, atol=1e-9
    )
    left = post.leave_out()
    own = [
        dense.exact_gp(
            dense.Matern32(float(k.variance), float(k.lengthscale)),
            dense.points(np.delete(x, 3, 0)), np.delete(y, 3), 0.2, dense.points(x[3:4]),
        )
        for k in kernels
    ]  # fmt: skip
    mean = weights @ np.array([one.mean[0] for one in own])
    second = weights @ np.array([one.std[0] ** 2 + 0.2**2 + one.mean[0] ** 2 for one in own])
    np.testing.assert_allclose([left.mean[3], left.std[3]], [mean, np.sqrt(second - mean**2)], rtol=1e-6)


def test_draws_have_its_moments(post):
    p = post.predict(AT, progress=False)
    drawn_ = post.sample(1000, key=1, at=hg.Points(AT), progress=False)
    assert np.max(np.abs(drawn_.mean(axis=0) - p.mean) / p.std) < 0.12
    np.testing.assert_allclose(drawn_.std(axis=0), p.std, rtol=0.1)
    inside = np.mean((drawn_ > p.interval()[0]) & (drawn_ < p.interval()[1]), axis=0)
    np.testing.assert_allclose(inside, 0.95, atol=0.03)


def test_units_change_nothing(few, post):
    x, y, _, _ = few
    large = hg.observe(hg.Points(1e3 * x), 1e100 * y, noise=0.2e100)
    bounds = {"variance": (1e199, 1e201), "lengthscale": (30.0, 1e3)}
    other = hg.GP(hg.Matern32()).learn(large, bounds=bounds, progress=False)
    found = other.condition(large, hyperparameters="average", progress=False).predict(
        1e3 * AT, progress=False
    )
    p = post.predict(AT, progress=False)
    np.testing.assert_allclose(found.std / 1e100, p.std, rtol=1e-3)
    np.testing.assert_allclose(found.quantile(0.1) / 1e100, p.quantile(0.1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(hg.Batch(tolerance=1e-6), id="batch"),
        pytest.param(hg.Variational("full"), id="variational", marks=pytest.mark.slow),  # compiles as long
    ],
)
def test_every_engine_averages(few, method, tmp_path, monkeypatch):
    monkeypatch.setattr(integration, "POINTS", 4)
    data, grid = few[2], hg.Grid.cover(-0.25, 1.25, shape=120)
    gp = hg.GP(hg.Matern32(), grid).learn(data, bounds=BOUNDS, progress=False, polish=False)
    post = gp.condition(data, method, hyperparameters="average", progress=False)
    weights, kernels = post.engine.weights, post.engine.method.over.kernels
    exact = [hg.GP(k, grid).condition(data, hg.Exact(), progress=False).predict(AT) for k in kernels]
    mean = weights @ np.array([one.mean for one in exact])
    std = np.sqrt(weights @ np.array([one.std**2 + (one.mean - mean) ** 2 for one in exact]))
    p = post.predict(AT, progress=False)
    assert np.max(np.abs(p.mean - mean) / std) < 0.03
    np.testing.assert_allclose(p.std, std, rtol=0.03)
    post.save(tmp_path / "map.zarr.zip")
    again = hg.load(tmp_path / "map.zarr.zip")
    np.testing.assert_allclose(again.predict(AT, progress=False).quantile(0.2), p.quantile(0.2), rtol=1e-5)
    np.testing.assert_allclose(again.std(progress=False), post.std(progress=False), rtol=1e-5)
    assert again.diagnostics["hyperparameters"] == post.diagnostics["hyperparameters"]


def test_the_trend_is_integrated_over_too(few, monkeypatch):
    """Weights follow the likelihood with the coefficients integrated out, not at their best."""
    monkeypatch.setattr(integration, "POINTS", 6)
    x, y, data, _ = few
    gp = hg.GP(hg.Matern32(), trend="linear").learn(data, bounds=BOUNDS, progress=False)
    engine = gp.condition(data, hyperparameters="average", progress=False).engine
    over, columns = engine.method.over, np.column_stack([np.ones(len(x)), x])
    restricted = [
        dense.exact_gp(dense.Matern32(float(k.variance), k.lengthscale), dense.points(x), y, 0.2, dense.points(AT[:1]), columns,
                       columns[:1]).objective
        for k in over.kernels
    ]  # fmt: skip
    weights = over.weights * np.exp(restricted - over.log_likelihoods)
    np.testing.assert_allclose(engine.weights, weights / np.sum(weights), rtol=1e-6)


def test_posteriors_that_do_not_fit_into_memory_together_are_refused(few, monkeypatch):
    _, _, data, gp = few
    monkeypatch.setattr(memory, "bytes_available", lambda: 3e4)
    gp.condition(data, hg.Exact(), progress=False)
    with pytest.raises(ValueError, match=r"32 posteriors, one for each kernel, .*hyperparameters=\"best\""):
        gp.condition(data, hg.Exact(), hyperparameters="average", progress=False)


def test_a_transformed_field_keeps_to_its_side_of_zero(monkeypatch):
    monkeypatch.setattr(integration, "POINTS", 4)
    rng = np.random.default_rng(2)
    x = rng.uniform(0.0, 1.0, (20, 1))
    counts = rng.poisson(np.exp(1 + np.sin(6 * x[:, 0])))
    data = hg.observe(hg.Points(x), counts.astype(float), likelihood=hg.Poisson())
    gp = hg.GP(hg.Matern52(), hg.Grid.cover(-0.1, 1.1, shape=40), trend="constant", link="exp")
    gp = gp.learn(data, progress=False)
    plain, average = (
        gp.condition(data, method=hg.Exact(), hyperparameters=h, progress=False) for h in ("best", "average")
    )
    at = np.linspace(0.0, 1.0, 5)[:, None]
    one, all_ = plain.predict(at, progress=False), average.predict(at, progress=False)
    assert np.all(all_.quantile(0.001) > 0)
    assert np.all(all_.quantile(0.999) > one.quantile(0.99))
    parts = average.engine.parts
    share = average.engine.weights @ [
        np.mean(
            part.sample(SampleOptions(4000, jax.random.key(0)), hg.Points(at)) <= all_.quantile(0.9), axis=0
        )
        for part in parts
    ]
    np.testing.assert_allclose(share, 0.9, atol=0.02)
    new = average.predict(at, noisy=True, progress=False)
    q = new.quantile(0.8)
    np.testing.assert_allclose(q, np.round(q), atol=1e-6)
    assert np.all(new.cdf(np.round(q)) >= 0.8) and np.all(new.cdf(np.round(q) - 1) < 0.8)
    lower, upper = average.interval(0.9)
    assert lower.shape == (40,) and np.all(lower > 0) and np.all(upper > lower)


def covered(seeds):
    """The shares of the field within 95% intervals, over problems: of the best kernel, and of the average."""
    at = np.random.default_rng(99).uniform(0.0, 1.0, (20, 1))
    best, average = [], []
    for seed in seeds:
        x, y, f = drawn(seed, 30, at)
        gp, data = learned(x, y, None, WITH_NOISE)
        for hyperparameters, shares in (("best", best), ("average", average)):
            p = gp.condition(data, hyperparameters=hyperparameters, progress=False).predict(
                at, progress=False
            )
            lower, upper = p.interval(0.95)
            shares.append(np.mean((f > lower) & (f < upper)))
    return np.array(best), np.array(average)


@pytest.mark.slow  # learns from many small data sets
def test_intervals_hold_more_than_those_of_the_best_kernel_alone(monkeypatch):
    """Of a dozen problems; `benchmarks/averaging.py` has hundreds."""
    monkeypatch.setattr(integration, "POINTS", 16)
    best, average = covered(range(12))
    assert np.mean(average) == pytest.approx(0.95, abs=0.03)
    assert np.mean(best) < np.mean(average) - 0.02


@pytest.mark.slow
def test_intervals_hold_as_much_as_they_say():
    best, average = covered(range(1000, 1200))
    assert np.mean(average) == pytest.approx(0.95, abs=0.015)
    assert np.mean(best) < 0.935


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda gp, d: hg.GP(hg.Matern32()).condition(d, hyperparameters="average"), 'expected "best" with a kernel'),
        (lambda gp, d: gp.condition(d, hyperparameters="all"), 'hyperparameters: expected "best" or "average"'),
        (lambda gp, d: gp.condition(d, hyperparameters="average", checkpoint="a"), "checkpoint: expected None"),
        (
            lambda gp, d: gp.condition(d, hg.Variational(learn=True), hyperparameters="average"),
            r"expected \"best\" with Variational\(learn=True\)",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_averaged_is_refused(few, make, words):
    _, _, data, gp = few
    with pytest.raises(ValueError, match=words):
        make(gp, data)


def test_what_only_one_kernel_has_is_refused(post):
    for ask in (post.log_evidence, post.log_evidence_gradient):
        with pytest.raises(ValueError, match=r'expected "best" for the .* averaged over'):
            ask()
