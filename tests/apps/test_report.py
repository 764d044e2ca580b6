"""The report: one page, no network; in a real browser the slider moves and the layers switch."""

import re
import shutil
import subprocess

import numpy as np
import pytest

import hipgp as hg
from hipgp.apps import report

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
        .condition(data)
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
        hg.observe(hg.Points(x), x, noise=0.1)
    )
    post.save(tmp_path / "line", std=post.std())
    assert 'id="slices"' not in report.page(tmp_path / "line")


DRIVE = """
<script>
window.addEventListener("load", () => {
  const by = id => document.getElementById(id), out = [], pixels = () => by("view").toDataURL();
  const errors = window.problems || [];
  const first = pixels();
  by("depth").value = 0; by("depth").dispatchEvent(new Event("input"));
  out.push("moved " + (pixels() !== first), by("place").textContent);
  const there = pixels();
  by("layer").value = 1; by("layer").dispatchEvent(new Event("change"));
  out.push("switched " + (pixels() !== there), by("layer").selectedOptions[0].text);
  by("layer").value = 2; by("layer").dispatchEvent(new Event("change"));
  out.push(by("layer").selectedOptions[0].text);
  by("axis").value = 0; by("axis").dispatchEvent(new Event("change"));
  out.push("size " + by("view").width + "x" + by("view").height, "errors " + errors.length);
  document.title = out.join(" | ");
});
</script></body>"""
WATCH = (
    "<head><script>window.problems = [];"
    'window.addEventListener("error", e => window.problems.push(e.message));</script>'
)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_slice_browser_works_in_chromium(volume, tmp_path):
    text = report.page(volume).replace("<head>", WATCH, 1).replace("</body>", DRIVE, 1)
    (tmp_path / "page.html").write_text(text)
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path / 'user'}",
            "--virtual-time-budget=3000", "--enable-logging=stderr", "--dump-dom", f"file://{tmp_path / 'page.html'}",
        ],
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    said = re.search(r"<title>(.*?)</title>", done.stdout).group(1)
    assert said.split(" | ") == [
        "moved true", "Z [kpc] = 0.00", "switched true", "std", "draw 1", "size 7x8", "errors 0",
    ]  # fmt: skip
    assert "CONSOLE" not in done.stderr
