"""Columns and coordinates called longitude and latitude: on a plane in kilometres, or refused, but never plain numbers."""

import sys

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import hipgp as hg

pyproj = pytest.importorskip("pyproj")

RNG = np.random.default_rng(1)
COUNT = 12
TABLE = pd.DataFrame({"Lat": RNG.uniform(44, 46, COUNT), "Lon": RNG.uniform(-76, -74, COUNT)})
Y = np.sin(np.arange(COUNT))
KERNEL = hg.Matern32(1.0, 80.0)
ELLIPSOID = pyproj.Geod(ellps="WGS84")


@pytest.fixture(scope="module")
def post():
    data = hg.observe(TABLE.assign(rain=Y), "rain", 0.1)
    return hg.GP(KERNEL).condition(data, hg.Exact(), progress=False)


def test_distances_are_those_on_the_ellipsoid():
    data = hg.observe(TABLE.assign(rain=Y, error=0.1), "rain", "error")
    assert data.frame.axes == ("km", "km") and "aeqd" in data.frame.crs
    x, (i, j) = data.functionals[0].x, np.triu_indices(COUNT, 1)
    lon, lat = TABLE["Lon"].to_numpy(), TABLE["Lat"].to_numpy()
    *_, metres = ELLIPSOID.inv(lon[i], lat[i], lon[j], lat[j])
    np.testing.assert_allclose(np.linalg.norm(x[i] - x[j], axis=1), metres / 1000, rtol=2e-4)


def test_predictions_take_degrees_in_tables_and_arrays(post):
    found = post.predict(TABLE, progress=False)
    expected = post.predict(hg.observe(TABLE.assign(rain=Y), "rain", 0.1).functionals[0].given_in(post.units))
    assert list(found.columns) == ["Lat", "Lon", "mean", "std"]
    np.testing.assert_allclose(found["mean"], expected.mean, rtol=1e-9)
    grid = xr.Dataset(coords={"lat": [44.5, 45.0, 45.5], "lon": [-75.5, -74.5]})
    on_grid = post.predict(grid, progress=False)
    assert on_grid["mean"].sizes == {"lat": 3, "lon": 2} or on_grid["mean"].sizes == {"lon": 2, "lat": 3}
    at = pd.DataFrame({"lon": [-74.5], "lat": [45.5]})
    one = float(on_grid["mean"].sel(lon=-74.5, lat=45.5))
    np.testing.assert_allclose(one, post.predict(at, progress=False)["mean"].iloc[0], rtol=1e-9)


def test_cells_of_an_array_are_points_or_averages_on_the_plane():
    array = xr.DataArray(
        Y[:6].reshape(2, 3), dims=("lat", "lon"), coords={"lat": [44.0, 45.0], "lon": [-76.0, -75.0, -74.0]}
    )
    points, cells = (hg.observe(array, noise=0.1, kind=kind) for kind in ("points", "averages"))
    table = pd.DataFrame({"lon": np.tile([-76.0, -75.0, -74.0], 2), "lat": np.repeat([44.0, 45.0], 3)})
    same = hg.observe(table.assign(z=Y[:6]), "z", 0.1)
    np.testing.assert_allclose(points.functionals[0].x, same.functionals[0].x)
    np.testing.assert_array_equal(cells.y, Y[:6])
    corners = [ELLIPSOID.polygon_area_perimeter([-0.5, 0.5, 0.5, -0.5], [lat - 0.5] * 2 + [lat + 0.5] * 2)[0]
               for lat in (44.0, 45.0)]  # fmt: skip
    # edges along geodesics there and along parallels here
    np.testing.assert_allclose(cells.functionals[0].area, np.repeat(corners, 3) / 1e6, rtol=3e-3)
    np.testing.assert_allclose(np.mean(cells.functionals[0].places()[0], axis=0)[1], -55.6, atol=2.0)


def test_the_regressor_counts_in_km():
    sklearn = pytest.importorskip("hipgp.estimator")
    model = sklearn.HIPGPRegressor(KERNEL, noise=0.1, learn=False, method=hg.Exact(), trend=None)
    found = model.fit(TABLE, Y).predict(TABLE)
    assert model.crs_ and model.units_ == ("km", "km")
    data = hg.observe(TABLE.assign(rain=Y), "rain", 0.1)
    expected = hg.GP(KERNEL).condition(data, hg.Exact(), progress=False).predict(data.functionals[0])
    np.testing.assert_allclose(found, expected.mean, rtol=1e-8)
    np.testing.assert_allclose(model.predict(TABLE[2:4]), found[2:4], rtol=1e-9)
    with pytest.raises(ValueError, match="X: expected columns in 'km', 'km' like those of fit"):
        model.predict(TABLE.to_numpy())


@pytest.mark.parametrize(
    "call",
    [
        lambda: hg.Points(TABLE),
        lambda: hg.LineIntegrals(TABLE, TABLE + 1),
        lambda: hg.observe(TABLE.assign(depth=1.0, rain=Y), "rain"),
        lambda: hg.observe(xr.DataArray(np.ones((2, 2, 2)), {"lon": [0, 1], "lat": [0, 1], "depth": [0, 1]})),
    ],
)
def test_degrees_where_plain_coordinates_are_expected_are_refused(call):
    with pytest.raises(ValueError, match=r"got longitude and latitude \([Ll]on, [Ll]at\).*hg.Region.of"):
        call()


def test_the_whole_earth_and_a_missing_package_are_refused(monkeypatch):
    world = pd.DataFrame({"lon": [-170.0, 0.0, 170.0], "lat": [-60.0, 0.0, 60.0], "z": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=r"use hg.sphere\(lon, lat\) and a kernel in three dimensions"):
        hg.observe(world, "z")
    monkeypatch.setitem(sys.modules, "pyproj", None)
    with pytest.raises(ImportError, match=r"need pyproj .*give plain degrees"):
        hg.observe(TABLE.assign(z=Y), "z")


def test_axes_that_the_user_called_lon_and_lat_stay_plain_numbers():
    data = hg.observe(hg.Points(TABLE[["Lon", "Lat"]].to_numpy()), Y, 0.1)
    found = hg.GP(hg.Matern32(1.0, 1.0)).condition(data, hg.Exact(), progress=False)
    named = found.labelled(("Lon", "Lat"))
    np.testing.assert_array_equal(
        named.predict(TABLE, progress=False)["mean"], found.predict(data.functionals[0]).mean
    )
