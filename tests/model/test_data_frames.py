"""Tables and arrays of xarray as observations."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import hipgp as hg
from hipgp.model.frames import Frame

ARRAY = xr.DataArray(
    np.arange(12.0).reshape(3, 4), dims=("x", "y"), coords={"x": [0.0, 1.0, 3.0], "y": [0.0, 2.0, 4.0, 6.0]}
)


def test_cells_are_points_or_averages_over_boxes():
    holed = ARRAY.copy()
    holed[1, 2] = np.nan
    points, boxes = (hg.observe(holed, noise=0.1, kind=kind) for kind in ("points", "averages"))
    assert len(points) == len(boxes) == 11
    np.testing.assert_array_equal(points.y, [n for n in range(12) if n != 6])
    np.testing.assert_array_equal(points.functionals[0].x[4], [1.0, 0.0])
    lower, upper = boxes.functionals[0].lower, boxes.functionals[0].upper
    np.testing.assert_array_equal(lower[:1], [[-0.5, -1.0]])
    np.testing.assert_array_equal(
        [lower[4], upper[4]], [[0.5, -1.0], [2.0, 1.0]]
    )  # halfway to uneven neighbours
    np.testing.assert_array_equal(upper[-1], [4.0, 7.0])


def test_bounds_noise_and_dates_of_a_dataset():
    time = pd.date_range("2020-01-01", periods=3, freq="D")
    told = xr.Dataset(
        {"t2m": ("time", [1.0, 2.0, 3.0]), "error": ("time", [0.1, 0.2, 0.3])},
        {"time": ("time", time, {"bounds": "span"})},
    )
    told["span"] = (("time", "end"), np.stack([time, time + pd.Timedelta("6h")], axis=1))
    data = hg.observe(told, "t2m", "error", kind="averages")
    assert data.frame == Frame(("days since 2020-01-01",))
    np.testing.assert_allclose(data.functionals[0].upper.ravel(), [0.25, 1.25, 2.25])
    np.testing.assert_array_equal(data.blocks[0].noise, [0.1, 0.2, 0.3])


def test_descending_axes_and_units():
    down = ARRAY[::-1].assign_coords(x=("x", [3.0, 1.0, 0.0], {"units": "m"}))
    data = hg.observe(down, noise=0.1, kind="averages")
    assert data.frame.axes == ("m", "")
    np.testing.assert_array_equal(data.functionals[0].lower[0], [2.0, -1.0])


def test_tables_by_the_names_of_their_columns():
    table = pd.DataFrame({"x": [0.0, 1.0], "y": [2.0, 3.0], "depth": [4.0, 5.0], "error": [0.1, 0.2]})
    data = hg.observe(table, "depth", "error")
    np.testing.assert_array_equal(data.functionals[0].x, [[0, 2], [1, 3]])
    assert data.y.tolist() == [4, 5] and data.blocks[0].noise.tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: hg.observe(ARRAY * np.nan), "expected some cells with numbers"),
        (lambda: hg.observe(ARRAY.drop_vars("x")), "coordinates along every dimension, got none of 'x'"),
        (lambda: hg.observe(ARRAY[:1], kind="averages"), "at least two cells along 'x'"),
        (lambda: hg.observe(ARRAY, kind="totals"), 'kind: expected "points" or "averages"'),
        (lambda: hg.observe(ARRAY.to_dataset(name="a"), "b"), "a variable of the Dataset, a, got 'b'"),
        (lambda: hg.observe(hg.Points([0.0]), [1.0], kind="points"), "kind: expected None"),
        (lambda: hg.observe(pd.DataFrame({"x": [0.0]}), "z"), "y: expected a column among x, got 'z'"),
        (lambda: hg.observe("table.csv", [1.0]), "functional: expected Points"),
    ],
)
def test_what_cannot_be_read_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call()
