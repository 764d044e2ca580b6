"""A Gaussian process scales with its data, however large or small their numbers are; data far from zero are told."""

import warnings

import jax
import numpy as np
import pytest

import hipgp as hg
from hipgp.model import scaling

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, 150)
Y = np.sin(6 * X) + 0.1 * RNG.normal(size=150)
AT = np.linspace(0.05, 0.95, 7)
GRID = hg.Grid.cover(0.0, 1.0, shape=32)

# Powers of two: y, noise and variance are then scaled without rounding, even where the variance is 2^-1062, about
# 1e-320, of which float64 holds only some ten bits.
FACTORS = {
    np.float64: (-531, -100, 40, 498),
    np.float32: (-83, 83),
}  # 1e-160, 1e-30, 1e12, 1e150; 1e-25, 1e25
CASES = [(dtype, power) for dtype, powers in FACTORS.items() for power in powers]
ENGINES = {"batch": None, "variational": hg.Variational("full", weights="local")}

pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")  # grids here are small on purpose


def problem(power, dtype, kernel=None):
    kernel = hg.Matern32(1.0, 0.3) if kernel is None else kernel
    y, noise = np.ldexp(Y.astype(dtype), power), np.ldexp(dtype(0.1), power)
    data = hg.observe(hg.Points(X.astype(dtype)), y, noise)
    return scaling.scaled_kernel(kernel, power), data


def conditioned(power, dtype, method=None, trend=None, kernel=None):
    kernel, data = problem(power, dtype, kernel)
    return hg.GP(kernel, GRID, trend=trend).condition(data, method or hg.Batch(), progress=False)


def in_units(post, dtype):
    """All that a posterior says, in its own units of y."""
    at = hg.Points(AT.astype(dtype))
    p = post.predict(at, progress=False)
    draws = post.sample(2, at=at, progress=False)
    return [p.mean, p.std, post.mean, post.std(progress=False), draws, post.sample(1, progress=False)]


@pytest.mark.parametrize(
    ("dtype", "power", "trend"), [(*case, None) for case in CASES] + [(np.float64, -531, "linear")]
)
def test_the_batch_posterior_scales(dtype, power, trend):
    check_scales(dtype, power, conditioned(0, dtype, None, trend), conditioned(power, dtype, None, trend))


@pytest.mark.parametrize(("dtype", "power"), [(np.float64, -531), (np.float64, 498), (np.float32, -83)])
def test_the_variational_posterior_scales(dtype, power):
    method = ENGINES["variational"]
    check_scales(dtype, power, conditioned(0, dtype, method), conditioned(power, dtype, method))


def check_scales(dtype, power, one, other):
    """On a CPU each rounding is the same in both units. A GPU adds up in any order, and that is seen in float32.

    One rounding of each y moves a draw at the edge of this grid by 1.6e-5 in float32, and by 3e-14 in float64.
    """
    single = 1e-5 if jax.default_backend() == "cpu" else 1e-4
    rtol = 1e-11 if dtype is np.float64 else single
    for a, b in zip(in_units(one, dtype), in_units(other, dtype), strict=True):
        assert b.dtype == a.dtype
        np.testing.assert_allclose(np.ldexp(b.astype(float), -power), a, rtol=rtol, atol=rtol)
    shift = len(Y) * power * np.log(2)
    rtol = 1e-9 if dtype is np.float64 else 1e-4
    np.testing.assert_allclose(other.log_evidence().value + shift, one.log_evidence().value, rtol=rtol)
    assert other.kernel.variance == np.ldexp(1.0, 2 * power)


@pytest.mark.parametrize("factor", [1e-150, 1e-30, 1e12, 1e150])
def test_factors_that_are_no_powers_of_two(factor):
    data = hg.observe(hg.Points(X), factor * Y, 0.1 * factor)
    p = (
        hg.GP(hg.Matern32(factor**2, 0.3), GRID)
        .condition(data, hg.Batch(), progress=False)
        .predict(hg.Points(AT))
    )
    q = conditioned(0, np.float64).predict(hg.Points(AT))
    np.testing.assert_allclose(p.mean / factor, q.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(p.std / factor, q.std, rtol=1e-9)


def test_ordinary_numbers_are_left_as_they_are():
    for power in (-200, 0, 200):
        kernel, data = problem(power, np.float64)
        assert scaling.exponent(kernel, data, None) == 0
    kernel, data = problem(25, np.float32)
    assert scaling.exponent(kernel, data, None) == 0


def test_sums_and_products_scale():
    kernel = hg.Matern12(0.5, 0.1) + hg.Matern52(2.0, 0.3) * hg.Matern32(0.7, 1.0)
    scaled = scaling.scaled_kernel(kernel, 3)
    zero = np.zeros((1, 1))
    assert scaled(zero, zero) == 64 * kernel(zero, zero) == 64 * scaling.prior_variance(kernel)
    one, other = (conditioned(power, np.float64, kernel=kernel) for power in (0, -400))
    np.testing.assert_allclose(np.ldexp(other.mean, 400), one.mean, rtol=1e-11, atol=1e-11)


def test_a_noise_of_the_gp_scales_and_a_map_keeps_its_unit(tmp_path):
    data = hg.observe(hg.Points(X), np.ldexp(Y, -480))
    gp = hg.GP(hg.Matern32(2.0**-960, 0.3), GRID, noise=np.ldexp(0.1, -480))
    post = gp.condition(data, hg.Batch(), progress=False)
    assert post.noise == gp.noise and post.kernel.variance == gp.kernel.variance
    post.save(tmp_path / "map.hipgp")
    again = hg.load(tmp_path / "map.hipgp")
    # a GPU adds up in any order: the same draws twice differ there in the last digits
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * np.max(np.abs(b)))
    for a, b in zip(in_units(post, np.float64), in_units(again, np.float64), strict=True):
        same(a, b)
    same(np.ldexp(again.mean, 480), conditioned(0, np.float64).mean)
    assert again.labelled(name="f").noise == gp.noise


def test_the_estimator_scales():
    pytest.importorskip("sklearn")
    settings = {"learn": False, "grid": GRID}
    fit = lambda power: hg.HIPGPRegressor(
        kernel=hg.Matern32(2.0 ** (2 * power), 0.3), noise=np.ldexp(0.1, power), **settings
    ).fit(X[:, None], np.ldexp(Y, power))
    places = np.append(AT, 1.3)[:, None]  # one of them beyond the grid
    for call in (lambda m: m.predict(places, return_std=True), lambda m: m.sample_y(places, 2)):
        one, other = (np.asarray(call(fit(power))) for power in (0, -450))
        np.testing.assert_allclose(np.ldexp(other, 450), one, rtol=1e-9, atol=1e-9)


def test_sizes_that_cannot_be_squared_together_are_refused():
    data = hg.observe(hg.Points(X.astype(np.float32)), Y.astype(np.float32), np.float32(1e-30))
    gp = hg.GP(hg.Matern32(1e30, 0.3), GRID)
    with pytest.raises(
        ValueError, match=r"^y, noise, variance: expected .* float32, got sizes from 1e-30 to 1e\+15"
    ):
        gp.condition(data, progress=False)


def test_noise_too_small_beside_the_field_is_refused():
    """In any unit the square of their ratio is beyond float64: the mean was zero, with overflows on the way."""
    data = hg.observe(hg.Points(X), 1e-160 * Y, 1e-161)
    with pytest.raises(ValueError, match=r"^y, noise, variance: expected .* from 1e-161 to 1;"):
        hg.GP(hg.Matern32(1.0, 0.3), GRID).condition(data, hg.Batch(), progress=False)
    scaling.exponent(hg.Matern32(1.0, 0.3), hg.observe(hg.Points(X), 1e-160 * Y, 0.1), None)  # all but zero


# --- learning ---------------------------------------------------------------------------------------------------------


def learned(power, dtype=np.float64, start="data", bounds=None, trend=None):
    data = hg.observe(hg.Points(X.astype(dtype)), np.ldexp(Y.astype(dtype), power))
    gp = hg.GP(hg.Matern32(2.0 ** (2 * power), 0.3), GRID, noise=np.ldexp(0.2, power), trend=trend)
    return gp.learn(data, start=start, bounds=bounds and bounds(power), progress=False)


@pytest.mark.parametrize(
    ("dtype", "power", "start"),
    [(np.float64, 490, "data"), (np.float64, -490, "kernel"), (np.float32, -83, "data")],
)
def test_learning_scales(dtype, power, start):
    one, other = learned(0, dtype, start), learned(power, dtype, start)
    close = {"rtol": 1e-6}
    np.testing.assert_allclose(np.ldexp(other.kernel.variance, -2 * power), one.kernel.variance, **close)
    np.testing.assert_allclose(other.kernel.lengthscale, one.kernel.lengthscale, **close)
    np.testing.assert_allclose(np.ldexp(other.noise, -power), one.noise, **close)
    powers = power * np.array([2, 0, 1])
    np.testing.assert_allclose(np.ldexp(other.learned.values, -powers), one.learned.values, **close)
    shift, atol = power * np.log(2), 1e-8 if dtype is np.float64 else 1e-6
    np.testing.assert_allclose(other.learned.objective - shift, one.learned.objective, atol=atol)
    last, first = other.learned.trace[-1], one.learned.trace[-1]
    np.testing.assert_allclose(last["objective"] - shift, first["objective"], atol=atol)
    np.testing.assert_allclose(np.ldexp(last["noise"], -power), first["noise"], **close)


def test_bounds_of_learning_scale():
    bounds = lambda power: {
        "Matern32.variance": (2.0 ** (2 * power) / 8, 2.0 ** (2 * power) / 4),
        "noise": (2.0**power / 4, 2.0**power / 2),
        "lengthscale": (0.2, 0.4),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parameters on their bounds
        one, other = learned(0, bounds=bounds), learned(-490, bounds=bounds)
    np.testing.assert_allclose(np.ldexp(other.learned.values, [980, 0, 490]), one.learned.values, rtol=1e-6)


def test_a_variance_that_cannot_be_learned_is_refused():
    with pytest.raises(ValueError, match=r"^y: expected values between 1e-150 and 1e.150"):
        hg.GP(hg.Matern32(), GRID).learn(hg.observe(hg.Points(X), 1e-160 * Y), progress=False)


# --- far from zero ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1e12, -1e4])
def test_data_far_from_zero_without_a_trend_are_told(offset):
    data = hg.observe(hg.Points(X), offset + Y, 0.1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hg.GP(hg.Matern32(1.0, 0.3), GRID).condition(data, hg.Batch(), progress=False)
    assert any('trend="constant"' in str(w.message) and "from zero" in str(w.message) for w in told)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hg.GP(hg.Matern32(1.0, 0.3), GRID).learn(data, progress=False)
    assert any('trend="constant"' in str(w.message) for w in told)


def test_integrals_far_from_zero_are_told():
    start, end = np.zeros((150, 1)), X[:, None]
    data = hg.observe(hg.LineIntegrals(start, end), 1e4 * X + 0.1 * Y, 0.1)
    with pytest.warns(UserWarning, match="from zero"):
        hg.GP(hg.Matern32(1.0, 0.3), GRID).condition(data, hg.Batch(), progress=False)


def test_with_a_trend_an_offset_changes_nothing_but_the_mean():
    """1e12 leaves float64 some 1e-4 of y: about a thousandth of the noise."""
    for offset, tolerance in ((1e6, 1e-6), (1e12, 2e-2)):
        posts, gps = [], []
        for shift in (0.0, offset):
            data = hg.observe(hg.Points(X), shift + Y)
            gps.append(hg.GP(hg.Matern32(1.0, 0.3), GRID, trend="constant").learn(data, progress=False))
            posts.append(gps[-1].condition(data, progress=False).predict(hg.Points(AT), progress=False))
        np.testing.assert_allclose(gps[1].learned.values, gps[0].learned.values, rtol=tolerance)
        np.testing.assert_allclose(posts[1].std, posts[0].std, rtol=tolerance)
        np.testing.assert_allclose(posts[1].mean - offset, posts[0].mean, atol=tolerance)


def test_ordinary_offsets_are_not_told():
    data = hg.observe(hg.Points(X), 5.0 + Y, 0.1)
    hg.GP(hg.Matern32(1.0, 0.3), GRID).condition(data, hg.Batch(), progress=False)
    scaling.warn_if_far_from_zero(
        hg.observe(hg.Points(X), np.full(150, 5.0)), GRID, hg.GP(hg.Matern32(), GRID).trend, None
    )
    slopes = hg.observe(hg.Derivatives(X), 1e6 + Y, 0.1)
    scaling.warn_if_far_from_zero(slopes, GRID, hg.GP(hg.Matern32(), GRID).trend, hg.Matern32())
