"""Quantities of astropy: converted to one unit, carried to the map, and refused where units are missing or do not fit."""

import numpy as np
import pytest

import hipgp as hg
from hipgp.model.frames import Frame

u = pytest.importorskip("astropy.units")

X = np.linspace(0.0, 2.0, 12)
Y = np.sin(3 * X)
KERNEL = hg.Matern32(variance=1.0, lengthscale=0.7)
GRID = hg.Grid.cover(0.0, 2.0, shape=40)


def test_noise_has_the_unit_of_y():
    data = hg.observe(hg.Points(X), Y * u.mag, noise=100 * u.mmag)
    np.testing.assert_allclose(data.blocks[0].noise, 0.1, rtol=1e-12)
    np.testing.assert_array_equal(data.y, Y)
    each = hg.observe(hg.Points(X), Y * u.mmag, noise=np.full(12, 0.1) * u.mag)
    np.testing.assert_allclose(each.blocks[0].noise, 100.0, rtol=1e-12)
    assert data.frame == Frame((), "mag")


def test_columns_of_astropy_tables_are_quantities():
    table = pytest.importorskip("astropy.table").Table({"x": X, "y": Y})
    table["x"].unit, table["y"].unit = "kpc", "mag"
    data = hg.observe(hg.Points(table["x"]), table["y"], noise=0.1 * u.mag)
    assert data.frame == Frame(("kpc",), "mag")
    table["x"].unit = None
    assert hg.observe(hg.Points(table["x"]), Y).frame == Frame()
    assert hg.Points(X * u.dimensionless_unscaled).units == ()


def test_both_ends_are_brought_to_one_unit():
    start, end = X[:, None] * u.kpc, (X[:, None] + 1) * 1000 * u.pc
    for made in (hg.LineIntegrals(start, end), hg.BoxAverages(start, end)):
        np.testing.assert_allclose(made.places()[:, 1, 0], X + 1, rtol=1e-12)
        assert made.units == ("kpc",)
    plane = hg.LineIntegrals([0.0, 0.0] * u.pc, np.ones((3, 2)) * u.kpc)
    np.testing.assert_allclose(plane.end, 1000.0)
    assert plane.units == ("pc", "pc")


def _blocks(length, field):
    """Values, integrals and slopes of one field, all in units of `length` and `field`."""
    at = hg.Points((X * u.kpc).to(length))
    rays = hg.LineIntegrals([0.0] * u.pc, (X[1:, None] * u.kpc).to(length))
    slopes = hg.Derivatives((X * u.kpc).to(length))
    per = u.mag / u.kpc
    y = {
        "at": Y * per,
        "rays": (1 - np.cos(3 * X[1:])) / 3 * u.mag,
        "slopes": 3 * np.cos(3 * X) * per / u.kpc,
    }
    noise = {"at": 0.1 * per, "rays": 0.01 * u.mag, "slopes": 0.2 * per / u.kpc}
    to = {"at": field, "rays": field * length, "slopes": field / length}
    kinds = {"at": at, "rays": rays, "slopes": slopes}
    return [hg.observe(kinds[k], y[k].to(to[k]), noise[k].to(to[k])) for k in kinds]


def _posterior(data):
    return hg.GP(KERNEL, GRID).condition(data, hg.Exact())


def test_values_integrals_and_slopes_in_any_units_have_one_posterior():
    """In the units of the first, where `dense` problems of the same numbers are exact."""
    plain = hg.observe(hg.Points(X), Y, 0.1)
    plain += hg.observe(hg.LineIntegrals([0.0], X[1:, None]), (1 - np.cos(3 * X[1:])) / 3, 0.01)
    plain += hg.observe(hg.Derivatives(X), 3 * np.cos(3 * X), 0.2)
    expected = _posterior(plain).predict(hg.Points([0.33, 1.2]))
    first = _blocks(u.kpc, u.mag / u.kpc)[0]
    for length, field in ((u.kpc, u.mag / u.kpc), (u.pc, u.mmag / u.pc), (u.lyr, u.mag / u.Mpc)):
        _, rays, slopes = _blocks(length, field)
        # rays in units of their own: (mmag / pc) times pc is mmag
        data = first + rays + slopes
        assert data.frame == Frame(("kpc",), "mag / kpc")
        found = _posterior(data).predict(hg.Points([330, 1200] * u.pc))
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9)
        np.testing.assert_allclose(found.std, expected.std, rtol=1e-9)


def test_predictions_of_integrals_and_slopes_are_per_unit_of_their_places():
    post = _posterior(_blocks(u.kpc, u.mag / u.kpc)[0])
    far, near = (
        hg.LineIntegrals([0.0] * unit, [[size]] * unit) for unit, size in ((u.kpc, 1.5), (u.pc, 1500.0))
    )
    np.testing.assert_allclose(post.predict(near).mean, 1000 * post.predict(far).mean, rtol=1e-10)
    np.testing.assert_allclose(post.predict(near).std, 1000 * post.predict(far).std, rtol=1e-8)
    np.testing.assert_allclose(post.sample(2, at=near), 1000 * post.sample(2, at=far), rtol=1e-6)
    slopes = (hg.Derivatives([0.5] * u.kpc), hg.Derivatives([500.0] * u.pc))
    np.testing.assert_allclose(post.predict(slopes[0]).mean, 1000 * post.predict(slopes[1]).mean, rtol=1e-10)


def test_units_go_with_the_map(tmp_path):
    post = hg.GP(KERNEL, GRID).condition(hg.observe(hg.Points(X * u.kpc), Y * u.mag, 0.1 * u.mag))
    assert post.labels.axis(0) == "x [kpc]" and post.labels.value() == "field [mag]"
    assert post.to_xarray()["x"].attrs["units"] == "kpc" and post.to_xarray()["mean"].attrs["units"] == "mag"
    post.save(tmp_path / "m")
    back = hg.load(tmp_path / "m")
    np.testing.assert_allclose(
        back.predict([500.0] * u.pc).mean, post.predict([0.5] * u.kpc).mean, rtol=1e-10
    )
    with pytest.raises(
        ValueError, match=r"^functional: expected places in 'kpc' like the data, got plain numbers"
    ):
        back.predict([0.5])
    with pytest.raises(
        ValueError, match=r"^functional: expected a unit that converts to 'kpc' like the others, got 's'"
    ):
        back.predict([0.5] * u.s)
    with pytest.raises(ValueError, match=r"^unit: expected mag like the data, got mmag"):
        back.labelled(unit="mmag")
    assert back.labelled(("d",), name="A").labels.value() == "A [mag]"


def test_a_learned_kernel_keeps_its_units():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 4, 80)
    y = np.sin(3 * x) + 0.1 * rng.standard_normal(80)
    gp = hg.GP(hg.Matern32()).learn(hg.observe(hg.Points(x * u.kpc), y * u.mag, 0.1 * u.mag), progress=False)
    assert " kpc ±" in repr(gp)
    posts = [
        gp.condition(hg.observe(hg.Points(x * u.kpc), y * u.mag, 0.1 * u.mag)),
        gp.condition(hg.observe(hg.Points(1000 * x * u.pc), 1000 * y * u.mmag, 100 * u.mmag)),
    ]
    found = [post.predict([0.5] * u.kpc) for post in posts]
    np.testing.assert_allclose(found[0].mean, found[1].mean, rtol=1e-6)
    np.testing.assert_allclose(found[0].std, found[1].std, rtol=1e-6)
    with pytest.raises(
        ValueError, match=r"^functional: expected quantities in 'kpc' like the others, got plain numbers"
    ):
        gp.condition(hg.observe(hg.Points(x), y, 0.1))


LINES = hg.LineIntegrals([0.0], X[1:, None])
PLAIN, KPC = hg.observe(hg.Points(X), Y, 0.1), hg.observe(hg.Points(X * u.kpc), Y, 0.1)
REFUSED = {
    "noise without": (lambda: hg.observe(hg.Points(X), Y * u.mag, 0.1), "noise: expected quantities in 'mag' like"),
    "noise with": (lambda: hg.observe(hg.Points(X), Y, 0.1 * u.mag), "noise: expected plain numbers like the others"),
    "noise of another kind": (lambda: hg.observe(hg.Points(X), Y * u.mag, 0.1 * u.s), "noise: expected a unit that conv"),
    "an end without": (lambda: hg.BoxAverages(X * u.pc, X + 1), "upper: expected quantities in 'pc' like the others"),
    "an end of another kind": (lambda: hg.BoxAverages([1.0] * u.pc, [2.0] * u.s), "upper: expected a unit that converts"),
    "integrals along plain numbers": (lambda: hg.observe(LINES, np.ones(11) * u.mag, 1 * u.mag), "y: expected plain numbers"),
    "places without": (lambda: KPC + PLAIN, "functional: expected quantities in 'kpc' like the others, got plain numbers"),
    "places with": (lambda: PLAIN + KPC, "functional: expected plain numbers like the others, got quantities in 'kpc'"),
    "values without": (lambda: hg.observe(hg.Points(X), Y * u.mag) + PLAIN, "y: expected quantities in 'mag' like"),
    "a list": (lambda: hg.Points([1 * u.kpc, 2 * u.kpc]), "x: expected plain numbers, got Quantity in units of 'kpc'"),
}  # fmt: skip


@pytest.mark.parametrize(("do", "message"), REFUSED.values(), ids=REFUSED)
def test_units_that_are_missing_or_do_not_fit_are_refused(do, message):
    with pytest.raises(ValueError, match="^" + message):
        do()


def test_parameters_of_likelihoods_are_not_converted():
    fine = hg.observe(hg.Points(X), Y * u.mag, 0.1 * u.mag)
    with pytest.raises(ValueError, match=r"^y: expected values of a field in 'mag' .* likelihood"):
        fine + hg.observe(hg.Points(X), Y * u.mmag, 0.1 * u.mag, likelihood=hg.StudentT())


def test_places_on_the_sky_are_cartesian_inside():
    """Of any frame of the sky, with distances in any unit or parallaxes; zero is the Sun in any unit."""
    coordinates = pytest.importorskip("astropy.coordinates")
    sky = coordinates.SkyCoord(
        l=[0, 90, 0] * u.deg, b=[0, 0, 90] * u.deg, distance=[1, 2, 3] * u.kpc, frame="galactic"
    )
    for given in (sky, sky.icrs):
        assert hg.Points(given).units == ("kpc",) * 3
        np.testing.assert_allclose(hg.Points(given).x, np.diag([1.0, 2.0, 3.0]), atol=1e-12)
    rays = hg.LineIntegrals(np.zeros(3), sky.icrs)
    np.testing.assert_allclose(rays.length, [1, 2, 3], rtol=1e-12)
    parallax = coordinates.Distance(parallax=[1.0, 2.0] * u.mas)
    stars = coordinates.SkyCoord(ra=[10, 20] * u.deg, dec=[0, 1] * u.deg, distance=parallax)
    np.testing.assert_allclose(hg.LineIntegrals(np.zeros(3), stars).length, [1000, 500], rtol=1e-9)
    kernel = hg.Matern32(lengthscale=2.0)
    post = hg.GP(kernel).condition(
        hg.observe(hg.Points(sky), [1.0, 2.0, 3.0], 0.1), hg.Exact(), progress=False
    )
    found = post.predict(sky.icrs)
    assert list(found.to_frame().columns) == ["ra", "dec", "distance", "mean", "std"]
    np.testing.assert_allclose(found.mean, post.predict(hg.Points(sky)).mean, rtol=1e-9)
    with pytest.raises(ValueError, match="SkyCoord with distances, got directions alone"):
        hg.Points(coordinates.SkyCoord(l=[0] * u.deg, b=[0] * u.deg, frame="galactic"))
    far = coordinates.SkyCoord(ra=[10, 20] * u.deg, dec=[0, 1] * u.deg, distance=[1, np.nan] * u.kpc)
    with pytest.raises(ValueError, match="finite distances, got nan kpc in row 1"):
        hg.Points(far)
