"""Maps of the Earth: degrees where they belong on a plane, and the whole sphere in a projection."""

import matplotlib
import numpy as np
import pytest

import hipgp as hg
from hipgp import display, plots
from hipgp.model.labels import Labels
from hipgp.model.sphere import radius_of

matplotlib.use("Agg")
RNG = np.random.default_rng(0)
START, END = RNG.uniform((-180, -60), (180, 60), (2, 8, 2))
PATHS = hg.GreatCircles(START, END, average=True)
STATIONS = hg.Points(hg.sphere(*RNG.uniform((-180, -80), (180, 80), (9, 2)).T))


@pytest.mark.parametrize("middle", [(10.3, 59.2), (179.5, -38.0)])
@pytest.mark.parametrize("size", [40.0, 900.0])
def test_ticks_lie_where_meridians_and_parallels_meet_the_edges(middle, size):
    pyproj = pytest.importorskip("pyproj")
    crs = f"+proj=aeqd +lon_0={middle[0]} +lat_0={middle[1]} +datum=WGS84 +units=km"
    grid = hg.Grid.cover((-size, -size / 2), (size, size / 2), shape=(9, 5))
    figure = plots.maps(
        {"mean": RNG.standard_normal(grid.shape)}, grid, Labels.of(2, axis_units="km"), crs=crs
    )
    ax = figure.axes[0]
    back = pyproj.Transformer.from_crs(crs, "EPSG:4326", always_xy=True).transform
    for number, (ticks, edge) in enumerate(
        ((ax.get_xticks(), ax.get_ylim()[0]), (ax.get_yticks(), ax.get_xlim()[0]))
    ):
        names = [t.get_text() for t in (ax.get_xticklabels(), ax.get_yticklabels())[number]]
        assert 2 <= len(names) == len(ticks) <= 9
        for tick, name in zip(ticks, names, strict=True):
            found = back(tick, edge)[number] if number == 0 else back(edge, tick)[number]
            told = float(name.rstrip("°EWNS")) * (-1 if name[-1] in "WS" else 1)
            assert abs((found - told + 180) % 360 - 180) < 1e-4 * size  # of lines straight between vertices
    assert ax.get_xlim() == pytest.approx((-size * 1.125, size * 1.125))
    assert any(text.get_text().endswith(" km") for text in ax.texts)


def test_which_data_lie_on_a_sphere():
    assert radius_of([STATIONS, PATHS]) == pytest.approx(6371.0)
    assert radius_of([hg.Points(STATIONS.x * np.linspace(1, 2, 9)[:, None])]) is None
    assert radius_of([hg.Points(STATIONS.x[:, :2])]) is None
    assert radius_of([hg.LineIntegrals(STATIONS.x[:4], STATIONS.x[4:8])]) is None


def test_great_circles_are_walked_evenly():
    walked = PATHS.vertices(7)
    np.testing.assert_allclose(walked[:, 0], PATHS.start)
    np.testing.assert_allclose(walked[:, -1], PATHS.end, atol=1e-9)
    steps = np.linalg.norm(np.diff(walked, axis=1), axis=2)
    np.testing.assert_allclose(steps, np.repeat(steps[:, :1], 6, axis=1))
    np.testing.assert_allclose(np.linalg.norm(walked, axis=2), 6371.0)


def test_a_posterior_on_the_sphere_is_drawn_in_a_projection(monkeypatch):
    monkeypatch.setattr(display, "PIXELS", 60)
    data = hg.observe(STATIONS, np.arange(9.0), 0.1) + hg.observe(PATHS, np.zeros(8), 0.1)
    post = hg.GP(hg.Matern52(4.0, 2500.0)).condition(data, hg.Exact(), progress=False)
    figure = display.figure(post.labelled(name="anomaly", unit="K"))
    mean, std = (ax for ax in figure.axes if ax.name == "mollweide")
    assert mean.get_title() == "posterior mean" and std.get_title() == "std"
    lon, lat = np.linspace(-180, 180, 61), np.linspace(-90, 90, 31)
    east, north = np.meshgrid(lon, lat, indexing="ij")
    expected = post.predict(hg.Points(hg.sphere(east.ravel(), north.ravel())), progress=False)
    drawn = np.ravel(mean.collections[0].get_array().T)
    np.testing.assert_allclose(drawn, expected.mean, atol=1e-8)
    every = slice(None, None, 2)  # of std, in between it is interpolated
    of_std = np.ravel(std.collections[0].get_array().T).reshape(lon.size, lat.size)[every, every]
    np.testing.assert_allclose(of_std, expected.std.reshape(lon.size, lat.size)[every, every], atol=1e-8)
    dots = [line for line in mean.lines if line.get_marker() == "."]
    assert [len(line.get_xdata()) for line in dots] == [9]
    arcs = mean.collections[-1].get_segments()
    assert len(arcs) >= 8 and all(np.max(np.abs(np.diff(arc[:, 0]))) < np.pi for arc in arcs)
