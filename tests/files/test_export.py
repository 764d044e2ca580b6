"""Maps in the formats of other programs, opened by independent readers, and predictions in the shape of what was asked."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import hipgp as hg
from hipgp.apps.cli import app

pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (40, 2)) * [2.0, 1.0]
GRID = hg.Grid.cover((0, 0), (2, 1), shape=(9, 6))
EAST, NORTH = GRID.axes


@pytest.fixture(scope="module")
def post():
    data = hg.observe(hg.Points(X), X[:, 0] + 3 * X[:, 1], noise=0.1)
    found = hg.GP(hg.Matern32(4.0, 1.0), GRID).condition(data, hg.Exact())
    return found.labelled(("east", "north"), "km", "height", "m")


@pytest.fixture(scope="module")
def expected(post):
    std = post.std()
    return {
        "mean": post.mean,
        "std": std,
        "lower95": post.mean - 1.959964 * std,
        "upper95": post.mean + 1.959964 * std,
    }


def test_netcdf_and_zarr_open_in_xarray(post, expected, tmp_path):
    draws = post.sample(2)
    for name, opened in (("map.nc", xr.open_dataset), ("map.zarr", xr.open_zarr)):
        post.export(tmp_path / name, interval=0.95, samples=draws, crs="EPSG:32614")
        with opened(tmp_path / name) as found:
            for field, values in (expected | {"samples": draws}).items():
                np.testing.assert_allclose(found[field], values, rtol=1e-6)
                assert (
                    found[field].attrs["units"] == "m" and found[field].attrs["grid_mapping"] == "spatial_ref"
                )
            np.testing.assert_allclose(found["east"], EAST)
            assert found["east"].attrs["units"] == "km"
            assert "32614" in found["spatial_ref"].attrs["spatial_ref"]
        with pytest.raises(FileExistsError):
            post.export(tmp_path / name)
        post.export(tmp_path / name, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["map.nc", "map.zarr"]


def test_fits_has_a_wcs(post, expected, tmp_path):
    fits, wcs = pytest.importorskip("astropy.io.fits"), pytest.importorskip("astropy.wcs")
    post.export(tmp_path / "map.fits", interval=0.95)
    with fits.open(tmp_path / "map.fits") as found:
        assert [hdu.name for hdu in found] == ["MEAN", "STD", "LOWER95", "UPPER95"]
        np.testing.assert_allclose(found["UPPER95"].data.T, expected["upper95"], rtol=1e-6)
        east, north = wcs.WCS(found[0].header).wcs_pix2world(np.arange(9), np.zeros(9), 0)
        scale = (east[1] - east[0]) / (EAST[1] - EAST[0])  # astropy may convert to metres
        np.testing.assert_allclose(east, scale * EAST, atol=1e-9)
        assert scale in (1.0, 1000.0) and north[0] == NORTH[0]


def test_geotiff_lies_where_the_map_does(post, expected, tmp_path):
    rasterio = pytest.importorskip("rasterio")
    post.export(tmp_path / "map.tif", interval=0.95, crs="EPSG:32614")
    with rasterio.open(tmp_path / "map.tif") as found:
        assert found.crs.to_epsg() == 32614 and found.units == ("m",) * 4
        assert found.descriptions[:2] == ("mean of height", "std of height")
        for band, values in zip(found.read(), expected.values(), strict=True):
            np.testing.assert_allclose(band, values.T[::-1], rtol=1e-6)  # north up
        places = [(EAST[2], NORTH[4]), (EAST[8], NORTH[0])]
        at = [values[0] for values in found.sample(places)]
        np.testing.assert_allclose(at, [expected["mean"][2, 4], expected["mean"][8, 0]], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")  # of rioxarray
def test_maps_in_degrees_open_where_they_are(tmp_path):
    """By readers that know neither hipgp nor its plane: the corners of a GeoTIFF and of NetCDF in degrees."""
    pytest.importorskip("rasterio")
    rioxarray, pyproj = pytest.importorskip("rioxarray"), pytest.importorskip("pyproj")
    table = pd.DataFrame({"lon": 8 + X[:, 0], "lat": 47 + X[:, 1], "snow": X[:, 1]})
    data = hg.observe(table, "snow", 0.1)
    snow = hg.GP(hg.Matern32(1.0, 60.0)).condition(data, hg.Exact(), progress=False).labelled(unit="m")
    p = snow.predict(pd.DataFrame({"lon": [8.8], "lat": [47.4]}), progress=False)
    for name in ("snow.tif", "snow.nc"):
        snow.export(tmp_path / name)
        if name == "snow.tif":
            found = rioxarray.open_rasterio(tmp_path / name)
            mean, std = found[0], found[1]
            assert found.attrs["long_name"] == ("mean of snow", "std of snow") and found.attrs["units"] == (
                "m",
                "m",
            )
        else:
            found = xr.open_dataset(tmp_path / name)
            mean, std = found["mean"], found["std"]
        x, y = pyproj.Transformer.from_crs("EPSG:4326", found.rio.crs, always_xy=True).transform(8.8, 47.4)
        np.testing.assert_allclose(mean.interp(x=x, y=y), p["mean"][0], atol=2e-3)
        np.testing.assert_allclose(std.interp(x=x, y=y), p["std"][0], rtol=2e-2)
        found.close()


def test_what_cannot_be_exported_is_refused(post, tmp_path):
    pytest.importorskip("pyproj")
    for name in ("map.nc", "map.tif", "map.zarr"):
        with pytest.raises(
            ValueError, match=r"crs: expected .* that PROJ knows, such as EPSG:4326, got 'EPSG:999999'"
        ):
            post.export(tmp_path / name, crs="EPSG:999999")
    with pytest.raises(
        ValueError, match=r"expected a name that ends in .nc, .zarr, .tif, .tiff, .fits, got .png"
    ):
        post.export(tmp_path / "map.png")
    volume = hg.GP(hg.Matern32()).condition(
        hg.observe(hg.Points(RNG.uniform(0, 1, (5, 3))), np.zeros(5), noise=0.1)
    )
    with pytest.raises(ValueError, match="two dimensions for GeoTIFF, got 3"):
        volume.export(tmp_path / "map.tif")


def test_the_command_exports(post, expected, tmp_path):
    post.save(tmp_path / "map.hipgp")
    done = CliRunner().invoke(
        app,
        [
            "export",
            str(tmp_path / "map.hipgp"),
            "--to",
            str(tmp_path / "m.nc"),
            "--interval",
            "0.95",
            "--samples",
            "3",
        ],
    )
    assert done.exit_code == 0, done.output
    with xr.open_dataset(tmp_path / "m.nc") as found:
        np.testing.assert_allclose(found["lower95"], expected["lower95"], rtol=1e-6)
        assert found["samples"].shape == (3, 9, 6)
    done = CliRunner().invoke(app, ["export", str(tmp_path / "map.hipgp"), "--to", str(tmp_path / "m.doc")])
    assert done.exit_code == 2 and "expected a name that ends in" in done.output


def test_a_table_gives_a_table(post):
    table = pd.DataFrame({"name": ["a", "b"], "north": X[:2, 1], "east": X[:2, 0]}, index=[7, 8])
    found, p = post.predict(table), post.predict(X[:2])
    assert list(found.columns) == ["name", "north", "east", "mean", "std"] and list(found.index) == [7, 8]
    np.testing.assert_array_equal(found[["mean", "std"]].to_numpy().T, p[:2])
    with pytest.raises(
        ValueError, match="expected a table with the columns east, north, got none called 'north'"
    ):
        post.predict(table[["name", "east"]].assign(up=1.0))


def test_a_grid_of_xarray_gives_a_dataset(post):
    asked = xr.Dataset(coords={"north": [0.1, 0.2, 0.3], "east": [0.5, 1.0], "band": [1, 2]})
    found = post.predict(asked)
    assert found["mean"].dims == ("east", "north") and found["mean"].attrs["units"] == "m"
    p = post.predict([[1.0, 0.3]])
    np.testing.assert_allclose(found["std"].sel(east=1.0, north=0.3), p.std[0], rtol=1e-6)
    with pytest.raises(ValueError, match="expected coordinates called east, north, got none called 'north'"):
        post.predict(asked.rename(north="up"))
    again = p.to_xarray()
    assert again["mean"].dims == ("place",) and again["east"].item() == 1.0


def test_a_series_of_dates_in_xarray():
    when = np.datetime64("2021-03-01") + np.arange(20).astype("m8[D]")
    series = hg.GP(hg.Matern32(1.0, 5.0)).condition(
        hg.observe(hg.Points(when), np.sin(np.arange(20)), noise=0.1)
    )
    asked = xr.DataArray(np.zeros(3), coords={"time": when[3:6]}, dims="time")
    found = series.predict(asked)
    np.testing.assert_allclose(found["mean"], series.predict(hg.Points(when[3:6])).mean, rtol=1e-6)
    assert found["time"].dtype.kind == "M"
    np.testing.assert_allclose(series.predict(series.to_xarray())["mean"], series.mean, atol=1e-6)
