"""Quantities of pint are converted and carried as those of astropy are, whose answers they must give."""

import numpy as np
import pytest

import hipgp as hg

pint = pytest.importorskip("pint")
UNITS = pint.get_application_registry()
X = np.linspace(0.0, 2.0, 9)
Y = np.sin(3 * X)


def observed(x, y, noise):
    return hg.observe(hg.Points(x), y, noise)


def test_noise_and_places_are_converted():
    data = observed(X * UNITS.km, Y * UNITS.m, 20 * UNITS.cm)
    np.testing.assert_allclose(data.blocks[0].noise, 0.2)
    assert data.frame.axes == ("km",) and data.frame.field == "m"
    more = observed(1000 * X * UNITS.m, 100 * Y * UNITS.cm, 20 * UNITS.cm)
    both = data + more
    np.testing.assert_allclose(both.functionals[1].x[:, 0], X)
    np.testing.assert_allclose(both.y, np.tile(Y, 2))
    feet = data + observed(X / 0.0003048 * UNITS.foot, Y * UNITS.m, 1 * UNITS.foot)
    np.testing.assert_allclose(feet.functionals[1].x[:, 0], X)
    np.testing.assert_allclose(feet.blocks[1].noise, 0.3048)


def test_predictions_ask_for_a_unit_and_integrals_carry_it():
    post = hg.GP(hg.Matern32(1.0, 0.5)).condition(
        observed(X * UNITS.km, Y * UNITS.m, 0.1 * UNITS.m), hg.Exact(), progress=False
    )
    assert post.labels.unit == "m" and post.labels.axis_units == ("km",)
    here, there = post.predict([500.0] * UNITS.m).mean, post.predict([0.5] * UNITS.km).mean
    np.testing.assert_array_equal(here, there)
    with pytest.raises(ValueError, match=r"expected places in 'km' like the data, got plain numbers"):
        post.predict([0.5])
    rays = hg.LineIntegrals([[0.0]] * UNITS.km, [[1.0]] * UNITS.km)
    assert hg.observe(rays, [2.0] * UNITS.m, 1 * UNITS.m).frame.field == "m / km"


def test_astropy_and_pint_in_one_data_set():
    u = pytest.importorskip("astropy.units")
    both = observed(X * u.km, Y * u.m, 20 * u.cm) + observed(1000 * X * UNITS.m, Y * UNITS.m, 20 * UNITS.cm)
    np.testing.assert_allclose(both.functionals[1].x[:, 0], X)


def test_units_of_pint_alone_and_units_that_do_not_convert():
    share = observed(X, 1e6 * Y * UNITS.ppm, 2e5 * UNITS.ppm)  # astropy has no ppm
    assert share.frame.field == "ppm"
    np.testing.assert_allclose(observed(X, Y * UNITS.percent, 1e4 * UNITS.ppm).blocks[0].noise, 1.0)
    with pytest.raises(
        ValueError, match=r"^noise: expected a unit that converts to 'm' like the others, got 's'"
    ):
        observed(X, Y * UNITS.m, 1 * UNITS.s)
    with pytest.raises(
        ValueError, match=r"^noise: expected quantities in 'm' like the others, got plain numbers"
    ):
        observed(X, Y * UNITS.m, 1.0)


def test_the_regressor_converts():
    estimator = pytest.importorskip("hipgp.estimator")
    model = estimator.HIPGPRegressor(hg.Matern32(1.0, 0.5), noise=0.1, learn=False)
    model.fit(X[:, None] * UNITS.km, Y)
    assert model.units_ == ("km",)
    plain = hg.HIPGPRegressor(hg.Matern32(1.0, 0.5), noise=0.1, learn=False).fit(X[:, None], Y)
    found = model.predict(np.array([[500.0]]) * UNITS.m)
    np.testing.assert_allclose(found, plain.predict([[0.5]]), rtol=1e-12)
