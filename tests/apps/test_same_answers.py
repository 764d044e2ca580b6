"""Every kind of data through Python and through the shell: the same answer."""

import pathlib

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import hipgp as hg
from hipgp.apps.cli import app
from hipgp.apps.cli.console import Voice
from hipgp.apps.cli.fitting import load_data
from hipgp.apps.cli.kernels import kernel_of
from hipgp.apps.cli.settings import Settings

# on grids as coarse as these both ways say so, and must still agree
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")
RNG = np.random.default_rng(3)
COUNT = 24
X, FAR = RNG.uniform(0, 1, (COUNT, 2)), RNG.uniform(0, 1, (COUNT, 2))
Y = np.sin(4 * X[:, 0]) + X[:, 1]
PLANE = pd.DataFrame({"x": X[:, 0], "y": X[:, 1], "value": Y, "error": 0.05})
WHEN = pd.date_range("2021-05-01", periods=COUNT, freq="12h")
SERIES = pd.DataFrame({"time": WHEN, "value": Y, "error": 0.05})
FLAGS = ("--lengthscale", "0.4", "--variance", "1", "--shape", "12", "--std", "none")
KERNEL = hg.Matern32(1.0, 0.4)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def hipgp(*arguments, code=0):
    found = CliRunner().invoke(app, [str(a) for a in arguments])
    assert found.exit_code == code, found.output
    return found.output.replace("\n", " ")


def check_same(name, functional, *flags, kernel=KERNEL, trend="constant", at=(), covariates=None, y=Y):
    """Fit and predict the file `name` by the shell, and the same in Python."""
    hipgp("fit", name, *FLAGS, *flags, "-o", "map.hipgp", "-q", "--overwrite")
    hipgp("predict", "map.hipgp", name, *at, "-o", "p.csv", "-q", "--overwrite")
    places = functional.places().reshape(-1, functional.ndim)
    grid = hg.Grid.cover(places.min(axis=0), places.max(axis=0), shape=12)
    data = hg.observe(functional, y, 0.05, covariates=covariates)
    post = hg.GP(kernel, grid, trend=trend).condition(data, hg.Batch(), progress=False)
    expected = post.predict(functional, columns=covariates, progress=False)
    found = pd.read_csv("p.csv")
    np.testing.assert_allclose(found["mean"], expected.mean, atol=1e-6)
    np.testing.assert_allclose(found["std"], expected.std, rtol=1e-4)
    return hg.load("map.hipgp")


def test_points():
    PLANE.to_csv("t.csv", index=False)
    check_same("t.csv", hg.Points(X))


def test_the_grid_is_chosen_as_in_python():
    PLANE.to_csv("t.csv", index=False)
    told = hipgp("fit", "t.csv", *FLAGS[:4], "--std", "none", "-o", "map.hipgp")
    data = hg.observe(hg.Points(X), Y, 0.05)
    post = hg.GP(KERNEL, trend="constant").condition(data, hg.Batch(), progress=False)
    assert hg.load("map.hipgp").grid == post.grid
    assert "too coarse" not in told and " ".join(post.diagnostics["grid_chosen"].split()[:4]) in told


def test_rays():
    table = PLANE.rename(columns={"x": "x0", "y": "y0"}).assign(x1=FAR[:, 0], y1=FAR[:, 1])
    table.to_csv("t.csv", index=False)
    check_same("t.csv", hg.LineIntegrals(X, FAR))


def test_boxes():
    table = PLANE.rename(columns={"x": "lower_x", "y": "lower_y"})
    table.assign(upper_x=X[:, 0] + 0.1, upper_y=X[:, 1] + 0.2).to_csv("t.csv", index=False)
    check_same("t.csv", hg.BoxAverages(X, X + np.array([0.1, 0.2])))


def test_dates_with_a_periodic_kernel_and_a_forecast():
    SERIES.to_csv("t.csv", index=False)
    words = "Matern32(lengthscale=5) * Periodic(period=3, lengthscale=1)"
    post = check_same("t.csv", hg.Points(WHEN), "--kernel", words, kernel=kernel_of(words))
    hipgp("predict", "map.hipgp", "--from", "2021-05-12", "--to", "2021-05-20", "--step", "1D", "-o", "f.csv")
    ahead = pd.date_range("2021-05-12", periods=9)
    found = pd.read_csv("f.csv")
    assert pd.to_datetime(found["time"], utc=True).dt.tz_localize(None).tolist() == ahead.tolist()
    np.testing.assert_allclose(found["mean"], post.predict(hg.Points(ahead)).mean, atol=1e-6)
    for flags, told in (
        (("--from", "2021-05-12"), "a table of places, or --from and --to"),
        (("--from", "2021-05-12", "--to", "noon"), "to: expected a date such as 2020-02-01"),
        (("--from", "2021-05-12", "--to", "2021-05-11"), "an end after 2021-05-12"),
        (
            ("--from", "2021-05-12", "--to", "2021-05-13", "--step", "no"),
            "step: expected a duration such as 6h",
        ),
    ):
        assert told in hipgp("predict", "map.hipgp", *flags, "-o", "g.csv", code=2)


def test_a_trend_in_named_columns():
    pytest.importorskip("formulaic")
    table = PLANE.assign(height=np.arange(COUNT) / COUNT, rock=np.where(np.arange(COUNT) % 3, "clay", "sand"))
    table.to_csv("t.csv", index=False)
    formula = "~ height + C(rock)"
    post = check_same("t.csv", hg.Points(X), "--trend", formula, trend=formula, covariates=table)
    assert list(post.coefficients.index) == ["constant", "height", "C(rock)[T.sand]"]
    PLANE.to_csv("without.csv", index=False)
    assert "height, rock, of which the trend" in hipgp("predict", "map.hipgp", "without.csv", code=2)
    table.assign(rock="slate").to_csv("unseen.csv", index=False)
    told = hipgp("predict", "map.hipgp", "unseen.csv", "-o", "q.csv", code=2)
    assert "expected rock among clay, sand" in told and "'slate' in row 0" in told


def test_cells_of_an_array():
    array = xr.DataArray(
        Y.reshape(4, 6), dims=("x", "y"), coords={"x": np.arange(4) / 4, "y": np.arange(6) / 6}
    )
    array.to_dataset(name="value").to_netcdf("t.nc")
    functional = hg.observe(array).functionals[0]
    check_same("t.nc", functional, "--noise", "0.05")


def test_averages_over_cells_of_an_array():
    """The same observations, of which boxes have the same posterior; values at points are no averages."""
    coords = {"x": np.arange(4) ** 2 / 9, "time": WHEN[:6]}
    array = xr.Dataset({"value": (("x", "time"), Y.reshape(4, 6)), "error": 0.05}, coords)
    array.to_netcdf("t.nc")
    own = hg.observe(array, "value", 0.05, kind="averages")
    found = load_data([pathlib.Path("t.nc")], Settings(average=True), Voice(True, False)).data
    assert isinstance(found.functionals[0], hg.BoxAverages) and found.frame == own.frame
    for name in ("lower", "upper"):
        one, other = (getattr(data.functionals[0], name) for data in (found, own))
        np.testing.assert_allclose(one, other)
    np.testing.assert_array_equal([found.y, found.noise_std(None)], [own.y, own.noise_std(None)])
    PLANE.to_csv("t.csv", index=False)
    assert "with --average, got values at points; leave it out" in hipgp("fit", "t.csv", "--average", code=2)


def test_the_sky():
    pytest.importorskip("astropy")
    import astropy.units as u
    from astropy.coordinates import SkyCoord

    angles = {"ra": 40 + 9 * X[:, 0], "dec": 20 + 9 * X[:, 1], "distance": 1 + FAR[:, 0]}
    pd.DataFrame(angles | {"value": Y, "error": 0.05}).to_csv("t.csv", index=False)
    ends = SkyCoord(angles["ra"] * u.deg, angles["dec"] * u.deg, distance=angles["distance"] * u.kpc)
    rays = hg.LineIntegrals(np.zeros(3), ends).given_in(())
    check_same("t.csv", rays)


def test_units():
    """Of a table that has them in the file, and as quantities in Python."""
    u = pytest.importorskip("astropy.units")
    from astropy.table import Table

    columns = {"x": X[:, 0], "y": 1000 * X[:, 1], "value": Y, "error": np.full(COUNT, 5.0)}
    told = {"x": "km", "y": "m", "value": "m", "error": "cm"}
    Table(columns, units=told).write("t.ecsv")
    post = check_same("t.ecsv", hg.Points(X))  # numbers in km, m and 0.05 m
    assert post.labels.axis_units == ("km", "km") and post.labels.unit == "m"
    data = hg.observe(hg.Points(X * u.km), Y * u.m, 5 * u.cm)
    found = hg.GP(KERNEL, post.grid, trend="constant").condition(data, hg.Batch(), progress=False)
    asked = found.predict(1000 * X * u.m, progress=False)
    np.testing.assert_allclose(asked.mean, pd.read_csv("p.csv")["mean"], atol=1e-6)
    Table(columns, units=told | {"x": "s"}).write("wrong.ecsv")
    assert "column 'y' is in 'm', which does not convert to 's'" in hipgp(
        "fit", "wrong.ecsv", "-o", "r.hipgp", code=2
    )


CORNERS = np.array([(-75 + 0.1 * i, 42 + 0.1 * j) for i in range(6) for j in range(4)])
IN_KM = ("--lengthscale", "20")
KM = hg.Matern32(1.0, 20.0)


def districts():
    gpd = pytest.importorskip("geopandas")
    shapely = pytest.importorskip("shapely")
    squares = [shapely.box(a, b, a + 0.1, b + 0.1) for a, b in CORNERS]
    return gpd.GeoDataFrame({"value": Y, "error": 0.05}, geometry=squares, crs=4326)


def test_shapes_and_degrees():
    """Of districts in degrees, and of places by longitude and latitude: one plane for both."""
    pytest.importorskip("pyogrio")
    squares = districts()
    squares.to_file("t.geojson")
    own = hg.observe(squares, "value", 0.05).functionals[0]
    post = check_same("t.geojson", own, *IN_KM, kernel=KM)
    hipgp("predict", "map.hipgp", "t.geojson", "-o", "p.geojson", "-q")
    found = type(squares).from_file("p.geojson")
    np.testing.assert_allclose(found["mean"], post.predict(squares)["mean"], atol=1e-9)
    middles = squares.to_crs(post.crs).centroid.to_crs(4326)
    table = PLANE.assign(lon=middles.x, lat=middles.y).drop(columns=["x", "y"])
    table.to_csv("places.csv", index=False)
    hipgp("predict", "map.hipgp", "places.csv", "-o", "q.csv", "-q")
    np.testing.assert_allclose(pd.read_csv("q.csv")["mean"], post.predict(middles)["mean"], atol=1e-9)
    points = hg.observe(table, "value", "error").functionals[0]
    assert "become places on a plane about their middle, in km" in hipgp(
        "fit", "places.csv", *FLAGS, "-o", "km.hipgp"
    )
    check_same("places.csv", points, *IN_KM, kernel=KM)
    plain = hg.Points(table[["lon", "lat"]].to_numpy())
    check_same("places.csv", plain, "--axis-unit", "deg")
    told = hipgp("fit", "places.csv", "--axis-unit", "pc", "-o", "r.hipgp", code=2)
    assert "expected km, m or deg for longitude and latitude, got 'pc'" in told


def test_paths_and_places_of_a_file():
    """Of lines with a bend, and of points: the same observations, of which districts have the same posterior."""
    pytest.importorskip("pyogrio")
    squares, shapely = districts(), pytest.importorskip("shapely")
    bends = np.array([[0, 0], [0.1, 0.02], [0.15, 0.3]])
    lines = [shapely.LineString(corner + bends) for corner in CORNERS]
    for shapes, kind in ((lines, hg.PathIntegrals), (shapely.points(CORNERS), hg.Points)):
        frame = squares.set_geometry(shapes, crs=4326)
        frame.to_file("t.gpkg")
        own = hg.observe(frame, "value", 0.05)
        found = load_data([pathlib.Path("t.gpkg")], Settings(), Voice(True, False)).data
        assert isinstance(found.functionals[0], kind) and found.frame == own.frame
        np.testing.assert_array_equal(found.functionals[0].nodes(5.0).x, own.functionals[0].nodes(5.0).x)
        np.testing.assert_array_equal([found.y, found.noise_std(None)], [own.y, own.noise_std(None)])


def test_degrees_beside_dates():
    pytest.importorskip("pyproj")
    table = pd.DataFrame({"time": WHEN, "lat": CORNERS[:, 1], "lon": CORNERS[:, 0]})
    table.assign(value=Y, error=0.05).to_csv("t.csv", index=False)
    own = hg.observe(table.assign(value=Y), "value", 0.05).functionals[0]
    flags = ("--coordinates", "time,lat,lon", "--lengthscale", "20,20,5")
    post = check_same("t.csv", own, *flags, kernel=hg.Matern32(1.0, (20.0, 20.0, 5.0)))
    assert post.labels.axes == ("x", "y", "time") and post.labels.axis_units == own.units
    told = hipgp(
        "fit", "t.csv", "--start", "lon,lat,error", "--end", "lon,lat,error", "-o", "r.hipgp", code=2
    )
    assert "expected rays between places by longitude and latitude alone, got error beside them" in told


def test_totals_of_polygons():
    squares = districts()
    squares.to_file("t.geojson")
    totals = hg.observe(squares, "value", 0.05, kind="totals").functionals[0]
    post = check_same("t.geojson", totals, "--total", *IN_KM, kernel=KM, at=("--total",))
    hipgp("predict", "map.hipgp", "t.geojson", "-o", "averages.csv", "-q")
    areas = pd.read_csv("p.csv")["mean"] / pd.read_csv("averages.csv")["mean"]
    np.testing.assert_allclose(areas, totals.area, rtol=1e-6)
    np.testing.assert_allclose(
        post.predict(squares, kind="totals")["mean"], pd.read_csv("p.csv")["mean"], atol=1e-6
    )
    PLANE.to_csv("plane.csv", index=False)
    assert "expected polygons" in hipgp("fit", "plane.csv", "--total", "-o", "r.hipgp", code=2)
    assert "one of --average and --total" in hipgp("fit", "t.geojson", "--total", "--average", code=2)


@pytest.mark.slow  # the plane is tested with districts, lines with rays
def test_rays_in_degrees():
    table = pd.DataFrame({"lon0": CORNERS[:, 0], "lat0": CORNERS[:, 1], "value": Y, "error": 0.05})
    table.assign(lon1=CORNERS[::-1, 0] + 0.2, lat1=CORNERS[::-1, 1] + 0.3).to_csv("t.csv", index=False)
    gpd, shapely = pytest.importorskip("geopandas"), pytest.importorskip("shapely")
    ends = np.stack([CORNERS, CORNERS[::-1] + np.array([0.2, 0.3])], axis=1)
    lines = gpd.GeoSeries([shapely.LineString(pair) for pair in ends], crs=4326)
    check_same("t.csv", hg.observe(lines, Y, 0.05).functionals[0], *IN_KM, kernel=KM)
    boxes = table.rename(columns={"lon0": "lower_lon", "lat0": "lower_lat"})
    boxes.assign(upper_lon=-74, upper_lat=43).to_csv("b.csv", index=False)
    told = hipgp("fit", "b.csv", "-o", "r.hipgp", code=2)
    assert "expected points, or rays with both ends, by longitude and latitude, got averages" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Matern33", "got 'Matern33'"),
        ("Periodic(1)", "got 'Periodic\\(1\\)'"),
        ("Periodic(perod=1)", "expected options among"),
        ("Matern32(period=1)", "has no option period"),
        ("Matern32 +", "expected auto, Matern12"),
        ("__import__('os')", "expected auto, Matern12"),
    ],
)
def test_words_that_are_no_kernel_are_refused(text, told):
    with pytest.raises(Exception, match=told):
        kernel_of(text)
