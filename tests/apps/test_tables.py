"""Tables for the command: which column is meant, missing cells, units, ragged rows, and settings checked first."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import hipgp as hg
from hipgp.apps.cli import app, tables
from hipgp.apps.cli.console import BadInput
from hipgp.apps.cli.settings import settings

X = np.random.default_rng(0).uniform(0, 1, (40, 2))
TABLE = pd.DataFrame({"x": X[:, 0], "y": X[:, 1], "value": np.sin(4 * X[:, 0]) + X[:, 1], "error": 0.05})
FIXED = ("--lengthscale", "0.4", "--variance", "1", "--shape", "8", "--std", "none")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def hipgp(*arguments, code=0):
    found = CliRunner().invoke(app, [str(a) for a in arguments])
    assert found.exit_code == code, found.output
    return found.output.replace("\n", " ")


def sheet(*names, units=None):
    return tables.Sheet(pd.DataFrame({n: [1.0, 2.0] for n in names}), units or {})


# --- which column is meant --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("x", "X", "value"), ("X", "x", "value")])
def test_a_name_fits_the_column_that_is_spelt_like_it(names):
    assert tables.infer(sheet(*names), coordinates=("x",)).first == ("x",)
    assert tables.infer(sheet(*names), coordinates=("X",)).first == ("X",)
    assert tables.infer(sheet(*names)).first == ("x",)


def test_a_name_fits_another_case_where_there_is_only_one():
    found = tables.infer(sheet("Easting", "Northing", "Value"))
    assert found == tables.Columns("points", ("Easting", "Northing"), (), "Value", None)
    assert tables.infer(sheet("X", "Y", "flux"), value="FLUX").value == "flux"
    assert tables.infer(sheet("RA", "Dec", "parallax", "av")).first == ("RA", "Dec", "parallax")
    with pytest.raises(BadInput, match="'time' fits the columns 'Time' and 'TIME'"):
        tables.infer(sheet("Time", "TIME", "value"), coordinates=("time",))
    with pytest.raises(BadInput, match="'value' fits the columns 'Value' and 'VALUE'"):
        tables.infer(sheet("x", "Value", "VALUE"))


def test_a_magnitude_is_no_latitude():
    assert tables.infer(sheet("l", "b", "B", "parallax", "av")).first == ("l", "b", "parallax")
    assert tables.infer(sheet("B", "l", "b", "V", "parallax"), value="V").first == ("l", "b", "parallax")
    for names in (("l", "B", "parallax", "av"), ("L", "B", "parallax", "av")):
        with pytest.raises(BadInput, match="cannot tell which columns are coordinates"):
            tables.infer(sheet(*names))


def test_letters_of_two_cases_are_not_taken_together():
    assert tables.infer(sheet("x", "Y")) == tables.Columns("points", ("x",), (), "Y", None)
    assert tables.infer(sheet("X", "Y", "value")).first == ("X", "Y")


def test_errors_belong_to_the_value_as_it_is_spelt():
    assert tables.infer(sheet("x", "b", "b_err", "B", "B_err"), value="B").error == "B_err"


# --- files that would be misread --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["0.5,0.5,1.0,0.1,7", "0.5,0.5,1.0"])
@pytest.mark.parametrize("line", [2, 5])
def test_a_row_that_is_too_long_or_too_short_is_refused(row, line):
    lines = TABLE.to_csv(index=False).splitlines()
    Path("t.csv").write_text("\n".join([*lines[: line - 1], row, *lines[line - 1 :]]))
    fields = row.count(",") + 1
    with pytest.raises(BadInput, match=f"line {line} has {fields} fields, but the header names 4"):
        tables.read_table(Path("t.csv"))


def test_rows_that_are_all_too_long_are_refused():
    """pandas takes the first field of each for a row's name, and every other one for the column before its own."""
    lines = TABLE.to_csv(index=False).splitlines()
    Path("t.csv").write_text("\n".join([lines[0], *(f"7,{line}" for line in lines[1:])]))
    with pytest.raises(BadInput, match="line 2 has 5 fields"):
        tables.read_table(Path("t.csv"))


def test_what_is_only_unusual_in_a_csv_is_read():
    lines = TABLE.assign(note='a, "b"\nc').to_csv(index=False).splitlines(keepends=True)
    Path("t.csv").write_text("\ufeff" + lines[0].replace(",", ", ") + "\n" + "".join(lines[1:]) + "\n\n")
    read = tables.read_table(Path("t.csv")).frame
    assert list(read.columns) == [*TABLE.columns, "note"] and len(read) == len(TABLE)
    TABLE.to_csv("t.csv.gz", index=False)
    assert len(tables.read_table(Path("t.csv.gz")).frame) == len(TABLE)
    Path("one.csv").write_text("x\n1\n\n2\n")
    assert list(tables.read_table(Path("one.csv")).frame["x"]) == [1, 2]


def test_two_columns_of_one_name_are_refused():
    Path("t.csv").write_text("x, x,value\n1,2,3\n")
    with pytest.raises(BadInput, match="more than one column 'x'"):
        tables.read_table(Path("t.csv"))


@pytest.mark.parametrize("ending", ["csv", "parquet", "fits", "ecsv", "vot"])
def test_a_file_of_something_else_is_named(ending):
    if ending in ("fits", "ecsv", "vot"):
        pytest.importorskip("astropy")
    Path(f"t.{ending}").write_bytes(b"\x00\x01\xff\xfe" * 50)
    with pytest.raises(BadInput, match=rf"t.{ending}: "):
        tables.read_table(Path(f"t.{ending}"))


# --- missing cells and units ------------------------------------------------------------------------------------------


def masked_table(ending, **units):
    """TABLE with -9999 behind a mask in three rows: of the values, of the errors, and of whole numbers."""
    at = pytest.importorskip("astropy.table")
    table = at.Table(at.Table.from_pandas(TABLE), masked=True)
    table["value"][3], table["error"][5] = -9999.0, -9999.0
    table["value"].mask[3] = table["error"].mask[5] = True
    table["count"] = at.MaskedColumn(np.arange(40), mask=np.arange(40) == 7, fill_value=-9999)
    for name, unit in units.items():
        table[name].unit = unit
    kind = {"vot": {"format": "votable"}, "ecsv": {"format": "ascii.ecsv"}}.get(ending, {})
    table.write(f"t.{ending}", **kind)
    return f"t.{ending}"


@pytest.mark.parametrize("ending", ["fits", "ecsv", "vot"])
def test_masked_cells_are_refused_or_dropped_and_said(ending):
    name = masked_table(ending)
    assert "2 rows have empty" in hipgp("fit", name, *FIXED, code=2)
    assert "left out 2 rows" in hipgp("fit", name, *FIXED, "--drop-nan")
    assert hg.load("map.hipgp").diagnostics["observations"] == 38
    whole = hipgp("fit", name, *FIXED, "--value", "count", "--drop-nan", "--overwrite")
    assert "left out 2 rows" in whole and np.all(hg.load("map.hipgp").engine.data.y >= 0)


def test_values_and_errors_in_two_units_are_brought_to_one():
    """Also where the unit of the field is not known: an integral along coordinates without a unit."""
    pytest.importorskip("astropy")
    frame = pd.DataFrame({"x0": [0.0], "x1": [2.0], "value": [3.0], "error": [100.0]})
    made = tables.Sheet(frame, {"value": "mag", "error": "mmag"})
    columns = tables.infer(made)
    units = tables.Units().completed(made, columns, False)
    _, rest, _ = tables.functional(made, columns, False, False, units=units)
    np.testing.assert_allclose(rest, [[3.0, 0.1]])


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ({"value": "mag", "error": "s"}, "'error' is in 's', which does not convert to 'mag'"),
        ({"error": "mmag"}, "'error' is in 'mmag', but 'value' has no unit; .*--unit"),
        ({"x": "pc"}, "'x' is in 'pc', but 'y' has no unit; .*--axis-unit"),
        ({"y": "pc"}, "'y' is in 'pc', but 'x' has no unit; .*--axis-unit"),
        ({"x": "pc", "y": "s"}, "'y' is in 's', which does not convert to 'pc'"),
    ],
)
def test_units_that_do_not_fit_are_refused(units, message):
    pytest.importorskip("astropy")
    made = sheet("x", "y", "value", "error", units=units)
    columns = tables.infer(made)
    with pytest.raises(BadInput, match=message):
        tables.functional(made, columns, False, False, units=tables.Units().completed(made, columns, False))


def test_places_in_two_units_are_brought_to_one_where_the_map_has_none():
    pytest.importorskip("astropy")
    made = sheet("x", "y", units={"x": "kpc", "y": "pc"})
    found, _, _ = tables.functional(made, tables.infer(made, need_value=False), False, False)
    np.testing.assert_allclose(found.places()[:, 0], [[1.0, 1e-3], [2.0, 2e-3]])


# --- settings ---------------------------------------------------------------------------------------------------------

WRONG = {
    "--noise": ("0", "noise: expected a positive number, got 0.0"),
    "--variance": ("0", "variance: expected a positive number, got 0.0"),
    "--lengthscale": ("0", "lengthscale: expected a positive number, got 0.0"),
    "--spacing": ("-1", "spacing: expected a positive number, got -1.0"),
    "--shape": ("1", "shape: expected a whole number from 2 on, got 1"),
    "--samples": ("-1", "samples: expected a whole number from 0 on, got -1"),
    "--seed": ("-1", "seed: expected a whole number from 0 on, got -1"),
    "--std": ("nonsense", "std: expected auto, vecchia, samples, exact or none, got 'nonsense'"),
    "--trend": ("upwards", "trend: expected none, constant, linear or a formula such as"),
    "--engine": ("steam", "engine: expected batch or variational, got 'steam'"),
    "--kernel": ("Matern99", "kernel: expected auto, Matern12"),
}


@pytest.mark.parametrize(("flag", "value", "message"), [(f, *w) for f, w in WRONG.items()], ids=WRONG)
def test_settings_are_checked_before_anything_is_read(flag, value, message):
    assert message in hipgp("fit", "absent.csv", flag, value, code=2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('samples = "four"', "samples: expected a whole number from 0 on, got 'four'"),
        ("samples = true", "samples: expected a whole number from 0 on, got True"),
        ('noise = "0.1"', "noise: expected a positive number, got '0.1'"),
        ("noise = 0", "noise: expected a positive number, got 0"),
        ("noise = nan", "noise: expected a positive number, got nan"),
        ("kernel = 3", "kernel: expected a word in quotes, got 3"),
        ("coordinates = [1, 2]", "coordinates: expected a word in quotes, got 1"),
        ('average = "yes"', "average: expected true or false, got 'yes'"),
        ('trend = ["linear"]', "trend: expected none, constant, linear or a formula such as"),
        ("spacng = 3", "unknown setting 'spacng'"),
        ("shape = [8, 2.5]", "shape: expected a whole number from 2 on, got 2.5"),
    ],
)
def test_a_file_of_settings_is_checked_before_anything_is_read(line, message):
    Path("s.toml").write_text(line + "\n")
    assert message in hipgp("fit", "absent.csv", "--config", "s.toml", code=2)


def test_an_engine_with_one_way_to_standard_deviations_is_asked_for_no_other_before_anything_is_read():
    told = hipgp("fit", "absent.csv", "--engine", "variational", "--std", "vecchia", code=2)
    assert "std: expected auto or none with --engine variational" in told
    for std in ("auto", "none"):
        assert "no such file" in hipgp("fit", "absent.csv", "--engine", "variational", "--std", std, code=2)


def test_zeros_overrule_a_file():
    Path("s.toml").write_text("seed = 5\nsamples = 3\naverage = true\n")
    told = settings(Path("s.toml"), {"seed": 0, "samples": 0, "average": False})
    assert (told.seed, told.samples, told.average) == (0, 0, True)


def test_one_number_stands_for_a_list_in_a_file():
    Path("s.toml").write_text('lengthscale = 0.4\nshape = 8\ncoordinates = "x"\n')
    told = settings(Path("s.toml"), {})
    assert (told.lengthscale, told.shape, told.coordinates) == ((0.4,), (8,), ("x",))


def test_what_is_asked_of_a_map_is_checked_before_it_is_read():
    assert "std: expected" in hipgp("predict", "absent", "t.csv", "--std", "none", code=2)
    assert "ends in .csv" in hipgp("predict", "absent", "t.csv", "-o", "p.txt", code=2)
    assert "ends in .nc" in hipgp("sample", "absent", "-o", "p.txt", code=2)
    assert "count: expected" in hipgp("sample", "absent", "-n", 0, code=2)
