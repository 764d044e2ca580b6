"""The command, as a user types it: small data, every bad input with a clear message, nothing half written."""

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import hipgp as hg
from hipgp.apps.cli import app, grids
from hipgp.apps.cli.console import BadInput, Voice
from hipgp.apps.cli.settings import settings

RUN = CliRunner()
RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (80, 2))
TABLE = pd.DataFrame({"x": X[:, 0], "y": X[:, 1], "value": np.sin(4 * X[:, 0]) + X[:, 1], "error": 0.05})
HOLED = TABLE.assign(value=TABLE["value"].where(TABLE.index != 6))
FIXED = ("--lengthscale", "0.4", "--variance", "1", "--shape", "12")  # nothing to learn: fast


def hipgp(*arguments, code=0):
    found = RUN.invoke(app, [str(a) for a in arguments])
    assert found.exit_code == code, found.output
    return found


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A map fitted by the command itself."""
    folder = tmp_path_factory.mktemp("fitted")
    TABLE.to_csv(folder / "table.csv", index=False)
    hipgp(
        "fit",
        folder / "table.csv",
        "-o",
        folder / "map.hipgp",
        *FIXED,
        "--unit",
        "m",
        "--axis-unit",
        "km",
        "--samples",
        2,
    )
    return folder / "map.hipgp"


def written(frame, name="table.csv"):
    frame.to_csv(name, index=False)
    return name


@pytest.mark.quick
def test_fit_says_what_it_inferred_and_writes_a_map():
    found = hipgp("fit", written(TABLE), *FIXED, "--std", "none")
    assert "value ± error: values at (x, y)" in found.output
    post = hg.load("map.hipgp")
    assert post.grid.shape == (12, 12) and post.labels.name == "value"
    assert not [p for p in os.listdir() if "checkpoint" in p or p.endswith(".tmp")]


def test_a_file_of_settings_is_overruled_by_flags():
    Path("fit.toml").write_text(
        'shape = [9, 9]\nlengthscale = [0.4]\nvariance = 1.0\nstd = "none"\nunit = "m"\n'
    )
    hipgp("fit", written(TABLE), "--config", "fit.toml", "--unit", "km", "-q")
    post = hg.load("map.hipgp")
    assert post.grid.shape == (9, 9) and post.labels.unit == "km"
    Path("bad.toml").write_text("spacng = 3\n")
    assert (
        "unknown setting 'spacng'"
        in hipgp("fit", "table.csv", "--config", "bad.toml", "-o", "b", code=2).output
    )


def test_json_is_one_object(fitted):
    told = json.loads(hipgp("info", fitted, "--json").stdout)
    assert told["observations"] == 80 and told["field"] == "value [m]"
    assert told["decisions"]["space"].startswith("data space: 80 points are")


def test_info_says_why(fitted):
    assert "data space: 80 points are" in " ".join(hipgp("info", fitted).stdout.split())


def test_predict_writes_beside_the_rows(fitted):
    hipgp("predict", fitted, written(TABLE[["x", "y"]].head(7), "places.csv"))
    made = pd.read_csv("predictions.csv")
    assert list(made.columns) == ["x", "y", "mean", "std"] and len(made) == 7
    p = hg.load(fitted).predict(hg.Points(X[:7]))
    np.testing.assert_allclose(made["mean"], p.mean, rtol=1e-9)
    assert "exists already" in hipgp("predict", fitted, "places.csv", code=2).output


@pytest.mark.quick
def test_sample_and_plot(fitted):
    hipgp("sample", fitted, "-n", 2, "-o", "draws.npy", "-q")
    assert np.load("draws.npy").shape == (2, 12, 12)
    hipgp("sample", fitted, "-n", 2, "-q")
    hipgp("plot", fitted, "-o", "map.png")
    assert Path("map.png").read_bytes()[:4] == b"\x89PNG"


BAD = {
    "misspelt column": (TABLE, ("--value", "valeu"), "did you mean 'value'?"),
    "no coordinates": (
        TABLE.rename(columns={"x": "p", "y": "q"}),
        (),
        "cannot tell which columns are coordinates",
    ),
    "a word in a cell": (
        TABLE.astype({"value": object}).replace({"value": {TABLE["value"][3]: "n/k"}}),
        (),
        "row 5 has 'n/k'",
    ),
    "an empty cell": (HOLED, (), "--drop-nan"),
    "negative errors": (TABLE.assign(error=TABLE["error"].where(TABLE.index != 2, -1.0)), (), "first: row 4"),
    "no noise, and nothing to learn": (TABLE.drop(columns="error"), (), "give --noise or --error"),
    "a grid too large": (TABLE, ("--shape", "60000"), "GiB"),
    "a kernel unheard of": (TABLE, ("--kernel", "Matern99"), "expected auto, Matern12"),
    "an engine unheard of": (TABLE, ("--engine", "steam"), "expected batch or variational"),
    "words for numbers": (TABLE, ("--spacing", "a,b"), "numbers separated by commas"),
}


@pytest.mark.parametrize(("frame", "flags", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_told_and_nothing_is_written(frame, flags, message):
    found = hipgp(
        "fit",
        written(frame),
        *FIXED[:4],
        *(flags if "--shape" in flags else ("--shape", "8", *flags)),
        code=2,
    )
    assert message in found.output.replace("\n", " ")
    assert sorted(p for p in os.listdir() if p != "cache") == ["table.csv"]


def test_rows_with_empty_cells_can_be_left_out():
    found = hipgp("fit", written(HOLED), *FIXED, "--std", "none", "--drop-nan")
    assert "left out 1 rows" in found.output
    assert hg.load("map.hipgp").diagnostics["observations"] == 79


def test_missing_files_and_foreign_ones():
    assert "no such file" in hipgp("fit", "absent.csv", code=2).output
    assert "no such file" in hipgp("info", "absent.hipgp", code=2).output
    assert "expected a hipgp map" in hipgp("info", written(TABLE), code=2).output


def test_existing_output_is_kept_unless_told():
    Path("map.hipgp").write_text("mine")
    assert "--overwrite" in hipgp("fit", written(TABLE), *FIXED, code=2).output
    assert Path("map.hipgp").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "may not be written" in hipgp("fit", written(TABLE), "-o", "locked/map", code=2).output


def test_a_folder_that_is_not_there():
    assert "no such folder" in hipgp("fit", written(TABLE), "-o", "nowhere/map", code=2).output


def test_ctrl_c_keeps_the_checkpoint_and_says_how_to_go_on(monkeypatch):
    def interrupted(*_, **__):
        Path("map.hipgp.checkpoint").write_text("state")
        raise KeyboardInterrupt

    monkeypatch.setattr(hg.GP, "condition", interrupted)
    found = hipgp("fit", written(TABLE), *FIXED, code=130)
    assert "map.hipgp.checkpoint" in found.output and "--resume" in found.output
    assert os.path.exists("map.hipgp.checkpoint") and not os.path.exists("map.hipgp")


def test_full_disk_is_told(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hg.Posterior, "save", full)
    assert "disk is full" in hipgp("fit", written(TABLE), *FIXED, "--std", "none", code=2).output


def test_a_folder_that_cannot_be_written_to_is_told(monkeypatch):
    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied", "map.hipgp")

    monkeypatch.setattr(hg.Posterior, "save", forbidden)
    found = hipgp("fit", written(TABLE), *FIXED, "--std", "none", code=2).output
    assert "map.hipgp: may not be written here" in found and not os.path.exists("map.hipgp")


def test_rays_boxes_and_the_sky_are_recognised():
    from hipgp.apps.cli import tables

    sheet = lambda *names: tables.Sheet(pd.DataFrame({n: [1.0, 2.0] for n in names}), {})
    assert tables.infer(sheet("x0", "y0", "x1", "y1", "value")).kind == "rays"
    assert tables.infer(sheet("lower_x", "upper_x", "value", "err")).error == "err"
    assert tables.infer(sheet("l", "b", "distance", "extinction", "extinction_error")).kind == "sky"
    assert tables.infer(sheet("time", "flux", "flux_err")).value == "flux"
    with pytest.raises(BadInput, match="--value"):
        tables.infer(sheet("x", "y", "p", "q"))


def test_sky_coordinates_become_rays():
    pytest.importorskip("astropy")
    from hipgp.apps.cli import tables

    frame = pd.DataFrame({"l": [0.0, 90.0], "b": [0.0, 0.0], "parallax": [1.0, 0.5], "av": [1.0, 2.0]})
    sheet = tables.Sheet(frame, {})
    functional, _, _ = tables.functional(sheet, tables.infer(sheet), False, False)
    np.testing.assert_allclose(functional.end, [[1, 0, 0], [0, 2, 0]], atol=1e-9)
    with pytest.raises(BadInput, match="do not convert"):
        tables.functional(tables.Sheet(frame, {"parallax": "kg"}), tables.infer(sheet), False, False)


@pytest.mark.parametrize("ending", ["parquet", "fits", "ecsv"])
def test_other_tables(ending):

    from hipgp.apps.cli import tables

    if ending == "parquet":
        TABLE.to_parquet("t.parquet")
    else:
        table = pytest.importorskip("astropy.table").Table.from_pandas(TABLE)
        table["x"].unit = "km"
        table.write(f"t.{ending}")
    sheet = tables.read_table(Path(f"t.{ending}"))
    np.testing.assert_allclose(sheet.frame["value"], TABLE["value"])
    assert ending == "parquet" or sheet.units == {"x": "km"}


def test_an_automatic_grid_follows_the_lengthscale_and_stays_small():
    data = hg.observe(hg.Points(RNG.uniform(0, 1, (50, 3))), np.zeros(50), noise=0.1)
    grid = grids.fitted(data, hg.GP(hg.Matern32(1.0, 0.01), grids.first(data)))
    assert 0.5 * grids.POINTS < grid.size <= 1.05 * grids.POINTS


def test_settings_know_every_flag():
    assert settings(None, {"kernel": "Matern12", "value": None}).kernel == "Matern12"


def test_quiet_says_nothing(capsys):
    Voice(True, False).result("title", {"a": 1})
    assert capsys.readouterr().out == ""


def test_files_that_a_reader_left_open_are_not_told(capsys):
    with Voice(False, False).guarded():
        warnings.warn("unclosed file", ResourceWarning, stacklevel=1)
        warnings.warn("mind this", UserWarning, stacklevel=1)
    told = capsys.readouterr().err
    assert "warning: mind this" in told and "unclosed" not in told


def test_list_and_version():
    assert "tomography" in hipgp("demo", "--list").output
    assert hg.__version__ in hipgp("version").output
    assert "expected one of dust" in hipgp("demo", "dusk", code=2).output
    assert "expected one of preconditioner" in hipgp("reproduce", "figure-3", code=2).output


def ecsv(frame, units, name="table.ecsv"):
    table = pytest.importorskip("astropy.table").Table.from_pandas(frame)
    for column, unit in units.items():
        table[column].unit = unit
    table.write(name, format="ascii.ecsv")
    return name


def test_units_of_a_file_are_kept_and_converted():
    units = {"x": "pc", "y": "pc", "value": "mag", "error": "mmag"}
    scaled = TABLE.assign(x=1000 * TABLE["x"], y=1000 * TABLE["y"], error=1000 * TABLE["error"])
    hipgp("fit", ecsv(scaled, units), *FIXED, "--axis-unit", "kpc", "--std", "none", "-q")
    post = hg.load("map.hipgp")
    assert post.labels.axis_units == ("kpc", "kpc") and post.labels.unit == "mag"
    hipgp("fit", written(TABLE), *FIXED, "--std", "none", "-q", "-o", "plain.hipgp")
    np.testing.assert_allclose(post.mean, hg.load("plain.hipgp").mean, rtol=1e-9, atol=1e-12)
    places = ecsv(scaled[["x", "y"]].head(5), {"x": "pc", "y": "pc"}, "places.ecsv")
    hipgp("predict", "map.hipgp", places, "-o", "a.csv", "-q")
    made = pd.read_csv("a.csv")["mean"]
    np.testing.assert_allclose(made, post.predict(hg.Points(X[:5])).mean, rtol=1e-9)


def test_units_that_do_not_convert_are_named():
    table = ecsv(TABLE, {"x": "pc", "y": "s", "value": "mag"})
    told = hipgp("fit", table, *FIXED, code=2).output
    assert "'y' is in 's'" in told.replace("\n", " ") and not Path("map.hipgp").exists()


def test_an_integral_is_in_the_units_of_the_field_times_a_length():
    """Points in mag/kpc and rays in mmag over pc, fused: every number in one pair of units."""
    pytest.importorskip("astropy")
    from hipgp.apps.cli import tables

    rays = pd.DataFrame({"x0": [0.0], "y0": [0.0], "x1": [2000.0], "y1": [0.0], "value": [3000.0]})
    sheet = tables.Sheet(rays, dict.fromkeys(["x0", "y0", "x1", "y1"], "pc") | {"value": "mmag"})
    columns = tables.infer(sheet)
    units = tables.Units("kpc", "mag/kpc").completed(sheet, columns, False)
    functional, rest, _ = tables.functional(sheet, columns, False, False, units=units)
    np.testing.assert_allclose(functional.end, [[2.0, 0.0]])
    np.testing.assert_allclose(rest, [[3.0]])
    assert tables.Units().completed(sheet, columns, False)[:2] == ("pc", "mmag/pc")
    assert tables.Units().completed(sheet, columns, True)[:2] == ("pc", "mmag")


def test_update_adds_a_table_to_a_map(fitted):
    """The map of all measurements, as from a fit of both tables; the old one stays unless it may be replaced."""
    more = TABLE.iloc[:9].assign(x=lambda t: t["x"] * 0.9 + 0.05)
    found = json.loads(
        hipgp("update", fitted, written(more), "-o", "more.hipgp", "--std", "none", "--json").stdout
    )
    assert found["added"] == 9 and found["observations"] == 89 and "80 observations" in found["started"]
    both = [written(TABLE), written(more, "more.csv")]
    hipgp("fit", *both, "-o", "both.hipgp", *FIXED, "--std", "none")
    updated, whole = hg.load("more.hipgp"), hg.load("both.hipgp")
    # both within 0.01 nats: 0.14 posterior standard deviations
    assert np.max(np.abs(updated.mean - whole.mean) / whole.std()) < 0.2 and updated.labels.unit == "m"
    refused = hipgp("update", fitted, "table.csv", code=2)
    assert "--overwrite" in refused.output
    without = hipgp("update", fitted, written(more.drop(columns="error")), "-o", "other.hipgp", code=2)
    assert "no column of errors" in without.output and not Path("other.hipgp").exists()


def test_plan_says_what_a_fit_takes_and_stops():
    found = hipgp("fit", written(TABLE), "--plan", *FIXED, "--json")
    facts = json.loads(found.stdout)
    assert facts["fits"] and facts["refusal"] is None and facts["bytes"] > 0 and facts["seconds"] > 0
    assert "covariance" in [part["name"] for part in facts["parts"]]
    assert not Path("map.hipgp").exists()


def test_plan_assumes_a_kernel_and_says_so():
    told = hipgp("fit", written(TABLE), "--plan", "--shape", "12").output
    assert "the kernel is not learned yet" in told and "compilation" in told
