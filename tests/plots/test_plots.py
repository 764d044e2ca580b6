"""Pictures draw what they are given, with units on the axes."""

import matplotlib
import numpy as np
import pytest
from matplotlib.font_manager import findfont, fontManager, get_font
from matplotlib.text import Text

import hipgp as hg
from hipgp import plots
from hipgp.apps import report
from hipgp.model.labels import Labels
from hipgp.plots import style

RNG = np.random.default_rng(0)
PLANE = hg.Grid.cover((0, 0), (1, 2), shape=(8, 9))
BOX = hg.Grid.cover((0, 0, 0), (1, 1, 1), shape=(5, 6, 7))
LABELS = Labels.of(2, ("East", "North"), "km", "height", "m")
VOLUME = Labels.of(3, None, "kpc", "density", "mag/kpc")


def all_text(figure):
    return " ".join(t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text")))


def drawn(figure, tmp_path):
    path = plots.save(figure, tmp_path / "picture.png")
    assert path.stat().st_size > 5000
    return all_text(figure)


def test_maps_share_a_scale_and_name_units(tmp_path):
    values = RNG.standard_normal(PLANE.shape)
    figure = plots.maps({"mean": values, "draw": 2 * values, "std": np.abs(values)}, PLANE, LABELS)
    text = drawn(figure, tmp_path)
    assert "East [km]" in text and "height [m]" in text and "std of height [m]" in text
    first, second, third = (ax.images[0] for ax in figure.axes if ax.images)
    assert first.get_clim() == second.get_clim() != third.get_clim()
    assert third.get_clim()[0] == 0.0


def test_an_image_lies_where_the_grid_does():
    figure = plots.figure(3, 3)
    values = np.zeros(PLANE.shape)
    values[-1, 0] = 1.0  # east, south
    shown = plots.image(figure.add_subplot(), values, PLANE, LABELS)
    assert shown.get_array()[0, -1] == 1.0
    np.testing.assert_allclose(shown.get_extent(), (-1 / 14, 1 + 1 / 14, -1 / 8, 2 + 1 / 8))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_across_any_axis(axis, tmp_path):
    values = RNG.standard_normal(BOX.shape)
    text = drawn(plots.slices({"mean": values, "std": values**2}, BOX, VOLUME, axis=axis, count=2), tmp_path)
    assert f"{'xyz'[axis]} = " in text and "kpc" in text


def test_profile_has_band_truth_and_data(tmp_path):
    x = np.linspace(0, 1, 20)
    figure = plots.profile(
        x,
        np.sin(x),
        0.1 + 0 * x,
        samples=RNG.standard_normal((3, 20)),
        truth=x,
        points=(x, x),
        xlabel="t [s]",
        ylabel="f [m]",
    )
    text = drawn(figure, tmp_path)
    assert all(word in text for word in ("95% interval", "posterior mean", "truth", "data", "t [s]"))


def test_calibration_tells_the_coverage(tmp_path):
    truth = RNG.standard_normal(20_000)
    assert "95." in drawn(plots.calibration(np.zeros_like(truth), np.ones_like(truth), truth), tmp_path)
    assert "100.0%" in all_text(plots.calibration(np.zeros_like(truth), 9 * np.ones_like(truth), truth))


def test_residuals_sky_convergence_learning(tmp_path):
    y = RNG.standard_normal(100)
    drawn(plots.residuals(y, y + 0.1, np.ones(100), "extinction [mag]"), tmp_path)
    sky = RNG.uniform(size=(12, 6))
    drawn(
        plots.sky(np.linspace(-170, 170, 12), np.linspace(-80, 80, 6), {"mean": sky, "std": sky}, "A [mag]"),
        tmp_path,
    )
    assert "0.01 nats" in drawn(plots.convergence([(5, 10.0), (10, 0.1), (15, 1e-3)], 0.01), tmp_path)
    trace = [{"stage": s, "objective": 3.0 - s, "lengthscale": 0.1 + s} for s in (0, 0, 1, 1, 2)]
    assert "lengthscale" in drawn(plots.learning(trace, ["lengthscale"]), tmp_path)


def test_the_callers_style_is_left_alone():
    before = dict(matplotlib.rcParams)
    plots.convergence([(1, 1.0)], 0.01)
    assert dict(matplotlib.rcParams) == before


BUNDLED = [entry for entry in fontManager.ttflist if entry.fname.startswith(matplotlib.get_data_path())]


@pytest.fixture
def bundled_fonts(monkeypatch):
    """A machine that has no fonts but those which come with matplotlib."""
    monkeypatch.setattr(fontManager, "ttflist", BUNDLED)
    style._family_with.cache_clear()
    yield
    style._family_with.cache_clear()


def test_what_the_usual_font_lacks_is_drawn_with_another(bundled_fonts, tmp_path):
    """A combining sign that DejaVu lacks and STIX has: no warning of any kind, and not the same picture as a box."""
    sign = "\u20df"
    assert not get_font(findfont("DejaVu Sans")).get_char_index(ord(sign))
    labels = Labels.of(2, ("East", f"North {sign}"), "km", "height", "m")
    figure = plots.maps({"mean": np.zeros(PLANE.shape)}, PLANE, labels)
    drawn(figure, tmp_path)
    families = {name for t in figure.findobj(Text) if sign in t.get_text() for name in t.get_fontfamily()}
    assert "STIXGeneral" in families


def test_characters_that_no_font_has_are_told_once(bundled_fonts, tmp_path):
    labels = Labels.of(2, ("東", "北"), "km", "高さ", "m")
    values = {"mean": np.zeros(PLANE.shape), "std": np.ones(PLANE.shape)}
    with pytest.warns(
        UserWarning, match="no font on this machine has さ 北 東 高: .* install a font"
    ) as told:
        figure = plots.maps(values, PLANE, labels)
    assert len(told) == 1 and told[0].filename == __file__
    drawn(figure, tmp_path)  # matplotlib's own warning for each of them would be an error here
    assert report._figure_html("a map", figure).startswith("<figure>")
