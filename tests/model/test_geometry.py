"""GeoDataFrames as observations and as places to predict."""

import numpy as np
import pytest

import hipgp as hg

gpd = pytest.importorskip("geopandas")
shapely = pytest.importorskip("shapely")

CORNER = (-75.0, 42.0)
SIDE = 0.1
SQUARES = [
    shapely.box(CORNER[0] + SIDE * i, CORNER[1] + SIDE * j, CORNER[0] + SIDE * (i + 1), CORNER[1] + SIDE * (j + 1))
    for i in range(3) for j in range(3)
]  # fmt: skip
Y = np.sin(np.arange(9.0))


def frame(shapes=SQUARES, crs=4326):
    return gpd.GeoDataFrame({"rate": Y[: len(shapes)], "error": 0.1}, geometry=list(shapes), crs=crs)


@pytest.fixture(scope="module")
def post():
    return hg.GP(hg.Matern32(lengthscale=15.0), trend="constant").condition(
        hg.observe(frame(), "rate", "error"), progress=False
    )


def test_degrees_become_a_plane_in_kilometres():
    data = hg.observe(frame(), "rate", "error")
    assert data.frame.axes == ("km", "km") and "aeqd" in data.frame.crs
    on_ellipsoid = frame().to_crs(frame().estimate_utm_crs()).area / 1e6
    np.testing.assert_allclose(data.functionals[0].area, on_ellipsoid, rtol=2e-3)
    np.testing.assert_array_equal(data.y, Y)
    projected = hg.observe(frame().to_crs(32618), "rate")
    assert projected.frame.axes == ("m", "m") and projected.frame.crs == "EPSG:32618"


def test_predictions_are_frames_and_do_not_depend_on_their_projection(post, tmp_path):
    found = post.predict(frame(), progress=False)
    assert isinstance(found, gpd.GeoDataFrame) and found.crs == frame().crs
    assert list(found.columns) == ["rate", "error", "geometry", "mean", "std"]
    moved = post.predict(frame().to_crs(32618), progress=False)
    np.testing.assert_allclose(moved["mean"], found["mean"], atol=2e-5)  # straight edges on another plane
    post.save(tmp_path / "map.hipgp")
    again = hg.load(tmp_path / "map.hipgp")
    assert again.crs == post.crs
    np.testing.assert_array_equal(again.predict(frame(), progress=False)["mean"], found["mean"])
    numbers = hg.Points([[0.0, 0.0]]).given_in(post.units)
    middle = gpd.GeoSeries([shapely.Point(CORNER[0] + 1.5 * SIDE, CORNER[1] + 1.5 * SIDE)], crs=4326)
    np.testing.assert_allclose(post.predict(numbers).mean, post.predict(middle)["mean"], atol=1e-9)


def test_lines_are_integrals_and_points_values(post):
    near = [(CORNER[0], CORNER[1]), (CORNER[0] + 0.1, CORNER[1] + 0.1), (CORNER[0] + 0.2, CORNER[1] + 0.1)]
    lines = gpd.GeoSeries([shapely.LineString(near), shapely.LineString(near[:2])], crs=4326)
    total, mean = (post.predict(lines, kind=kind, progress=False) for kind in (None, "averages"))
    km = hg.observe(lines, [0.0, 0.0], 1.0).functionals[0].length
    np.testing.assert_allclose(total["mean"], km * mean["mean"], rtol=1e-3)
    points = post.predict(gpd.GeoSeries([shapely.Point(near[0])], crs=4326), progress=False)
    assert abs(points["mean"][0]) < 2


def test_frames_on_different_planes_are_one_data_set():
    """Integrals in metres and in kilometres: the field is that of the first."""
    lines = gpd.GeoSeries([shapely.LineString([CORNER, (CORNER[0] + 0.1, CORNER[1])])], crs=4326)
    in_km, in_m = hg.observe(lines, [8.0], 0.1), hg.observe(lines.to_crs(32618), [8000.0], 100.0)
    both = in_km + in_m
    np.testing.assert_allclose(both.y, [8.0, 8.0])
    np.testing.assert_allclose(both.blocks[1].noise, 0.1)
    first, second = (block.functional for block in both.blocks)
    np.testing.assert_allclose(second.places(), first.places(), atol=1e-3)


def test_other_columns_serve_a_trend(post):
    pytest.importorskip("formulaic")
    table = frame().assign(height=np.arange(9.0), rate=0.5 * np.arange(9.0))
    gp = hg.GP(hg.Matern32(variance=1e-6, lengthscale=15.0), trend="~ height", noise=0.01)
    found = gp.condition(hg.observe(table, "rate", 0.01), progress=False)
    assert found.coefficients.loc["height", "estimate"] == pytest.approx(0.5, abs=1e-3)
    assert found.predict(table[:1].assign(height=20.0), progress=False)["mean"][0] == pytest.approx(
        10, abs=0.05
    )


BOW = shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1)])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: hg.observe(frame(crs=None), "rate"), r"reference system, got none.*set_crs\(\"EPSG:4326\"\)"),
        (lambda: hg.observe(frame([SQUARES[0], BOW]), "rate"), "Self-intersection.*in row 1.*make_valid"),
        (lambda: hg.observe(frame([SQUARES[0], None]), "rate"), "a geometry in every row, got none in row 1"),
        (lambda: hg.observe(frame([SQUARES[0], shapely.Point(0, 0)]), "rate"), "polygons like row 0, got a Point in row 1"),
        (lambda: hg.observe(frame().to_crs(3857), "rate"), "Pseudo-Mercator', which multiplies them by 1.35"),
        (lambda: hg.observe(frame(), "rat"), "y: expected a column among rate, error"),
        (lambda: hg.observe(frame(), "rate", kind="integrals"), 'kind: expected "averages" or "totals" for polygons'),
        (lambda: hg.observe(frame([shapely.Point(0, 0), shapely.Point(90, 0)]), "rate"), "as good as flat"),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call()


def test_heights_are_refused_unless_all_are_equal():
    """A plane would leave them out without a word."""
    places = [shapely.Point(-75.0 + 0.1 * i, 42.0, 100.0 * i) for i in range(3)]
    with pytest.raises(ValueError, match=r"got heights in row 0 \(3 rows in all\); .*force_2d"):
        hg.observe(frame(places), "rate", "error")
    level = [shapely.Point(p.x, p.y, 7.0) for p in places]
    flat = [shapely.Point(p.x, p.y) for p in places]
    a, b = (hg.observe(frame(some), "rate", "error").functionals[0] for some in (level, flat))
    np.testing.assert_array_equal(a.x, b.x)
    with pytest.raises(ValueError, match="got heights in row 0"):
        hg.observe(frame([level[0], *flat[1:]]), "rate", "error")


def test_plain_coordinates_are_not_taken_for_places_on_the_plane(post):
    with pytest.raises(ValueError, match="expected places on the plane"):
        post.predict([[0.0, 0.0]])
    plain = hg.GP(hg.Matern32(lengthscale=1.0)).condition(hg.observe(hg.Points([[0.0, 0.0]]), [1.0], 0.1))
    with pytest.raises(ValueError, match="plain coordinates like the data, got a GeoDataFrame"):
        plain.predict(frame())


@pytest.mark.data
@pytest.mark.slow
def test_the_tracts_of_new_york_in_three_lines(data_folder):
    """281 census tracts with cases of leukaemia: the expected cases are as many as the observed ones."""
    import gzip
    import json

    with gzip.open(data_folder / "areal_disease" / "ny_leukemia_tracts.json.gz") as file:
        told = json.load(file)
    shapes = []
    for tract in told:
        rings = tract["rings"] if np.ndim(tract["rings"][0][0]) else [tract["rings"]]
        shape = shapely.Polygon(rings[0]).buffer(0)
        for ring in rings[1:]:
            shape = shape.symmetric_difference(shapely.Polygon(ring).buffer(0))
        shapes.append(shape)
    table = {name: [tract[name] for tract in told] for name in ("population", "cases")}
    tracts = gpd.GeoDataFrame(table, geometry=shapes, crs=4326)
    tracts["cases"] = tracts["cases"].round()  # shared among tracts where the address was not known
    data = hg.observe(tracts, "cases", likelihood=hg.Poisson(exposure=tracts.population))
    gp = hg.GP(hg.Matern32(), trend="constant", link="exp").learn(data)
    found = gp.condition(data).predict(tracts)
    assert np.sum(found["mean"] * tracts["population"]) == pytest.approx(tracts["cases"].sum(), rel=0.03)
