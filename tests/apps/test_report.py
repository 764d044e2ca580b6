"""The report: one page, no network; in a real browser the slider moves and the layers switch."""

import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import hipgp as hg
from hipgp.apps import browser, report

# grids here are coarse, so that the dense reference is small; `test_coarse_grid.py` tests the warning
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    x = RNG.uniform(0, 1, (60, 3))
    grid = hg.Grid.cover((0, 0, 0), (1, 1, 1), shape=(6, 7, 8))
    data = hg.observe(hg.Points(x), x[:, 0] + np.sin(4 * x[:, 2]), noise=0.1)
    post = (
        hg.GP(hg.Matern32(1.0, 0.5), grid)
        .condition(data, hg.Batch())
        .labelled(("X", "Y", "Z"), "kpc", "dust <density>", "mag/kpc")
    )
    path = tmp_path_factory.mktemp("report") / "map.hipgp"
    post.save(path, std=post.std(), samples=post.sample(2))
    return path


def test_page_is_self_contained(volume, tmp_path):
    report.write(volume, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert not re.search(r"(src|href)=.(https?:)?//", text) and "{{" not in text
    assert "dust &lt;density&gt;" in text and "<density>" not in text
    assert "60 values at points" in text and "nats from the exact posterior" in text
    assert "data space: 60 points are 0.18 for each of the 336 grid points" in text
    assert text.count("data:image/png;base64,") >= 3
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_verdicts_are_graded(volume):
    post = hg.load(volume)
    grades = report.verdicts(post, report.left_out(post))
    assert {grade for grade, _ in grades} <= {"good", "fair", "poor"} and grades[0][0] == "good"


def test_verdicts_are_of_observations_left_out():
    """In sample these data look well described: the kernel is so flexible that it follows them."""
    x = np.linspace(0, 1, 80)
    y = np.random.default_rng(1).standard_normal(80)
    post = hg.GP(hg.Matern32(1.0, 0.05)).condition(hg.observe(hg.Points(x), y, noise=0.3))
    (said,) = [
        (grade, text)
        for grade, text in report.verdicts(post, report.left_out(post))
        if "all the others" in text
    ]
    assert said[0] == "poor" and "too narrow" in said[1]


def test_repeated_rows_are_told():
    x = np.tile(np.linspace(0, 1, 40), 2)
    y = np.tile(np.sin(6 * x[:40]) + 0.2 * np.random.default_rng(2).standard_normal(40), 2)
    data = hg.observe(hg.Points(x), y)
    with pytest.warns(UserWarning, match="40 of 80 observations repeat another one exactly") as told:
        gp = hg.GP(hg.Matern32(1.0, 0.3)).learn(data, polish=False)
    assert [w.filename for w in told if "repeat" in str(w.message)] == [__file__]
    texts = [text for _, text in report.verdicts(gp.condition(data), None)]
    assert any("40 of 80 observations repeat another one exactly" in text for text in texts)


def test_planes_and_lines_have_no_browser(tmp_path):
    x = RNG.uniform(0, 1, 30)
    post = hg.GP(hg.Matern32(1.0, 0.3), hg.Grid.cover(0.0, 1.0, shape=20)).condition(
        hg.observe(hg.Points(x), x, noise=0.1), hg.Batch()
    )
    post.save(tmp_path / "line", std=post.std())
    assert 'id="slices"' not in report.page(tmp_path / "line")


def test_values_of_the_browser_are_those_of_the_map(volume):
    post = hg.load(volume)
    told = held_in(report.page(volume))
    assert told["axes"] == ["X", "Y", "Z"] and told["units"] == ["kpc"] * 3 and told["unit"] == "mag/kpc"
    assert [layer["name"] for layer in told["layers"]] == ["mean", "std", "draw 1", "draw 2"]
    for layer, values in zip(
        told["layers"], (post.mean, post.kept["std"], *post.kept["samples"]), strict=True
    ):
        read = np.frombuffer(base64.b64decode(layer["bytes"]), "<u2").reshape(values.shape)
        np.testing.assert_allclose(
            layer["least"] + layer["step"] * read, values, atol=np.ptp(values) / 60_000
        )


def test_the_browser_leaves_out_planes_of_large_volumes(monkeypatch, volume):
    monkeypatch.setattr(browser, "MOST", 100)
    told = held_in(report.page(volume))
    shape = [len(c) for c in told["coordinates"]]
    assert shape == [6, 4, 4]  # of 6 x 7 x 8
    read = np.frombuffer(base64.b64decode(told["layers"][0]["bytes"]), "<u2")
    assert len(read) == np.prod(shape)
    np.testing.assert_allclose(told["coordinates"][2], np.linspace(0, 1, 8)[::2])


def held_in(page):
    return json.loads(re.search(r'<script id="slices" type="application/json">(.*?)</script>', page).group(1))


@pytest.mark.slow
def test_positive_maps_have_the_ends_of_their_intervals(tmp_path):
    x = RNG.uniform(0, 1, (20, 2))
    gp = hg.GP(hg.Matern32(1.0, 0.5), hg.Grid.cover((0, 0), (1, 1), shape=8), link="exp")
    post = gp.condition(hg.observe(hg.Points(x), np.exp(x[:, 0]), noise=0.1), progress=False)
    post.save(tmp_path / "map")
    layers = {layer["name"]: layer for layer in held_in(report.page(tmp_path / "map"))["layers"]}
    assert list(layers)[2:] == ["lower end of 95%", "upper end of 95%"]
    assert (
        0
        < layers["lower end of 95%"]["least"]
        < layers["mean"]["least"]
        < layers["upper end of 95%"]["least"]
    )


WATCH = (
    "<head><script>window.problems = [];"
    'window.addEventListener("error", e => window.problems.push(e.message));'
    'window.addEventListener("securitypolicyviolation", e => window.problems.push(e.blockedURI));</script>'
)
DRIVE = """
<script>
window.addEventListener("load", () => {
  const by = id => document.getElementById(id), out = [], pixels = () => by("view").toDataURL(), said = () => by("under").textContent;
  const click = (right, up) => {
    const f = by("view").getBoundingClientRect(), left = 78, top = 14, wide = f.width - left - 120, high = f.height - top - 52;
    by("view").dispatchEvent(new MouseEvent("click", {clientX: f.left + left + right * wide, clientY: f.top + top + (1 - up) * high, bubbles: true}));
  };
  const turn = (id, value, event) => { const before = pixels(); by(id).value = value; by(id).dispatchEvent(new Event(event)); return before !== pixels(); };
  const colours = () => {
    const f = by("view"), row = f.getContext("2d").getImageData(90, Math.round(f.height / 2), 200, 1).data;
    return new Set(Array.from({length: 200}, (_, i) => row.slice(4 * i, 4 * i + 3).join())).size;
  };
  STEPS
  out.push("errors " + window.problems.join());
  document.title = out.join(" | ");
});
</script></body>"""


def in_chromium(page, steps, folder):
    """What the steps push to `out` in a real browser; a picture of the page lies in the folder."""
    text = page.replace("<head>", WATCH, 1).replace("</body>", DRIVE.replace("STEPS", steps), 1)
    # what the page may load is nothing: an image from elsewhere is refused, and told
    (folder / "page.html").write_text(text)
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={folder / 'user'}", f"--screenshot={folder / 'page.png'}", "--window-size=1000,1400",
            "--virtual-time-budget=3000", "--enable-logging=stderr", "--dump-dom", f"file://{folder / 'page.html'}",
        ],
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    found = re.search(r"<title>(.*?)</title>", done.stdout).group(1).split(" | ")
    assert found[-1] == "errors "
    return found[:-1]


def numbers_in(text):
    return [float(n) for n in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.mark.slow
@needs_chromium
def test_slices_of_a_volume_in_chromium(volume, tmp_path):
    found = in_chromium(report.page(volume), """
      out.push(turn("depth", 0, "input"), by("place").textContent, said());
      click(0.58, 0.99); out.push(said());
      out.push(turn("layer", 1, "change"), by("layer").selectedOptions[0].text);
      out.push(turn("layer", 2, "change")); out.push(said());
      out.push(turn("axis", 0, "change"), by("place").textContent, by("depth").max, said());
      out.push(colours());
    """, tmp_path)  # fmt: skip
    assert found[:3] == ["true", "Z 0.00 kpc", "Click on the map to read a value."]
    post, kept = hg.load(volume), hg.load(volume).kept
    at = (3, 6, 0)  # of 6 x 7 x 8
    mean, std = post.mean[at], kept["std"][at]
    x, y, z, *values = numbers_in(found[3].replace("95%", ""))
    np.testing.assert_allclose([x, y, z], [0.6, 1.0, 0.0])
    np.testing.assert_allclose(values, [mean, mean - 1.96 * std, mean + 1.96 * std, std], atol=2e-3)
    assert "dust <density>" in found[3].replace("&lt;", "<").replace("&gt;", ">") and "mag/kpc" in found[3]
    assert found[4:7] == ["true", "std", "true"] and "draw 1: " in found[7]
    np.testing.assert_allclose(numbers_in(found[7])[-1], kept["samples"][0][at], atol=2e-3)
    assert found[8:12] == ["true", "X 0.60 kpc", "5", "Click on the map to read a value."]
    assert int(found[12]) > 40  # smooth between 7 columns, not cells
    assert (tmp_path / "page.png").stat().st_size > 20_000


@pytest.mark.slow
@needs_chromium
def test_maps_of_the_earth_and_axes_of_dates_in_chromium(tmp_path):
    pd, pyproj = pytest.importorskip("pandas"), pytest.importorskip("pyproj")
    places = pd.DataFrame({"lon": RNG.uniform(-76, -72, 12), "lat": RNG.uniform(42, 45, 12)})
    data = hg.observe(places.assign(rain=1.0), "rain", 0.1)
    post = hg.GP(hg.Matern32(1.0, 90.0)).condition(data, progress=False).labelled(name="rain", unit="mm")
    post.save(tmp_path / "map")
    (found,) = in_chromium(report.page(tmp_path / "map"), "click(0.3, 0.8); out.push(said());", tmp_path)
    x, y, north, west, mean, low, high, std = numbers_in(found.replace("95%", ""))
    lon, lat = pyproj.Transformer.from_crs(post.crs, "EPSG:4326", always_xy=True).transform(x, y)
    np.testing.assert_allclose([west, north], [-lon, lat], atol=0.02)  # x and y are rounded to a pixel
    p = post.predict(hg.Points([[x, y]]).given_in(post.units), progress=False)
    np.testing.assert_allclose(
        [mean, low, high, std], np.ravel([p.mean, *p.interval(0.95), p.std]), atol=0.02
    )
    when = pd.DataFrame({"time": pd.date_range("2024-01-01", periods=12), "depth": np.arange(12.0)})
    dated = hg.GP(hg.Matern32(1.0, 5.0)).condition(
        hg.observe(hg.Points(when), np.ones(12), 0.1), progress=False
    )
    dated.save(tmp_path / "dated")
    (found,) = in_chromium(report.page(tmp_path / "dated"), "click(0.5, 0.5); out.push(said());", tmp_path)
    assert re.match(r"time 2024-01-0[67] \d\d:\d\d, y 5\.\d+: field 1\.0", found) or "field 0.9" in found
