"""Trends in named columns, by formula and by name, against generalised least squares in the dense reference."""

import re

import numpy as np
import pandas as pd
import pytest

import dense
import hipgp as hg
from hipgp.model.covariates import Formula

COUNT = 60


def problem():
    rng = np.random.default_rng(2)
    x = rng.uniform(0.0, 1.0, (COUNT, 2))
    table = pd.DataFrame(
        {
            "elevation": rng.normal(300.0, 80.0, COUNT),
            "slope": rng.uniform(0.0, 1.0, COUNT),
            "type": rng.choice(["clay", "loam", "sand"], COUNT),
        }
    )
    by_type = table["type"].map({"clay": 0.0, "loam": 1.0, "sand": -2.0}).to_numpy()
    level = 5.0 + 0.01 * table["elevation"].to_numpy() - 3.0 * table["slope"].to_numpy() + by_type
    y = level + np.sin(5 * x[:, 0]) + 0.1 * rng.standard_normal(COUNT)
    design = lambda t: np.column_stack(
        [np.ones(len(t)), t["elevation"], t["slope"], t["type"] == "loam", t["type"] == "sand"]
    ).astype(float)
    return x, table, y, design


def terms(kind):
    if kind == "formula":
        pytest.importorskip("formulaic", reason="formulaic: pip install 'hipgp[formula]'")
        return "~ elevation + slope + C(type)"
    return ["elevation", "slope", "type"]


@pytest.mark.parametrize("kind", ["formula", "names"])
@pytest.mark.parametrize("method", [hg.Exact(), hg.Batch(tolerance=1e-10)])
def test_predictions_and_coefficients_are_those_of_generalised_least_squares(kind, method):
    x, table, y, design = problem()
    gp = hg.GP(hg.Matern52(1.0, 0.4), hg.Grid.cover((0, 0), (1, 1), shape=24), trend=terms(kind))
    data = hg.observe(hg.Points(x[:40]), y[:40], 0.1, covariates=table[:40])
    data += hg.observe(hg.Points(x[40:]), y[40:], 0.1, covariates=table[40:])
    post = gp.condition(data, method, progress=False)
    at, rows = x[:7] + 0.01, table[10:17]
    f, twin = dense.points(x), dense.Matern52(1.0, 0.4)
    truth = dense.exact_gp(twin, f, y, 0.1, dense.points(at), design(table), design(rows))
    found = post.predict(at, columns=rows)
    near = 1e-6 if isinstance(method, hg.Exact) else 0.02
    assert np.max(np.abs(found.mean - truth.mean) / truth.std) < near
    np.testing.assert_allclose(found.std, truth.std, rtol=near)
    a = dense.covariance(twin, f, f) + 0.01 * np.eye(COUNT)
    covariance = np.linalg.inv(design(table).T @ np.linalg.solve(a, design(table)))
    told = post.coefficients
    std = np.sqrt(np.diag(covariance))
    assert np.max(np.abs(told["estimate"] - truth.coefficients) / std) < near
    np.testing.assert_allclose(told["std_error"], std, rtol=near)
    np.testing.assert_allclose(told["upper"] - told["lower"], 2 * 1.959964 * told["std_error"], rtol=1e-6)
    assert list(told.index[:2]) == ["constant", "elevation"] and "sand" in told.index[-1]
    draws = post.sample(400, at=at, columns=rows)
    assert np.max(np.abs(draws.mean(axis=0) - found.mean) / found.std) < 5 / np.sqrt(400)


def test_learning_keeps_the_formula():
    x, table, y, _ = problem()
    data = hg.observe(hg.Points(x), y, covariates=table)
    gp = hg.GP(hg.Matern52(), trend=["elevation", "slope", "type"]).learn(data, progress=False)
    assert "elevation" in repr(gp)
    told = gp.condition(data, progress=False).coefficients
    assert told.loc["slope", "lower"] < -3.0 < told.loc["slope", "upper"]


def test_slopes_of_a_linear_trend_are_per_unit_of_each_axis():
    x = np.random.default_rng(0).uniform(0.0, 10.0, (50, 1))
    gp = hg.GP(hg.Matern52(1e-4, 3.0), hg.Grid.cover(0.0, 10.0, shape=40), trend="linear")
    told = gp.condition(hg.observe(hg.Points(x), 7.0 + 2.0 * x[:, 0], 0.01), progress=False).coefficients
    assert told["estimate"].to_numpy() == pytest.approx([17.0, 2.0], abs=0.01)


@pytest.mark.parametrize("kind", ["formula", "names"])
def test_what_the_data_say_nothing_of_is_refused_with_the_row(kind):
    _, table, *_ = problem()
    design = Formula(terms(kind)).of(table)
    other = table[:3].copy()
    other["type"] = ["clay", "silt", "sand"]
    with pytest.raises(ValueError, match=r"type among clay, loam, sand.*'silt' in row 1 \(1 rows"):
        design.matrix(other)
    with pytest.raises(ValueError, match="got one without elevation, slope"):
        design.matrix(table[["type"]])
    with pytest.raises(ValueError, match=r"columns: expected a DataFrame with .*got none"):
        design.matrix(None)
    gap = table[:3].copy()
    gap.loc[2, "slope"] = np.nan
    with pytest.raises(ValueError, match="finite numbers, got nan in row 2 of slope"):
        design.matrix(gap)


@pytest.mark.parametrize(
    ("formula", "told"), [("~ height +", r"\(Operator"), ("~ depth", "`depth`"), ("~ C(", "\\(")]
)
def test_formulas_that_cannot_be_read_are_refused(formula, told):
    pytest.importorskip("formulaic")
    table = pd.DataFrame({"height": [1.0, 2.0], "rock": ["clay", "sand"]})
    expected = "trend: expected a formula of the columns height, rock, .*got "
    with pytest.raises(ValueError, match=expected + re.escape(repr(formula)) + ".*" + told) as caught:
        Formula(formula).of(table)
    assert caught.value.args[0].isprintable()


def test_tables_that_do_not_fit_are_refused():
    x, table, y, _ = problem()
    with pytest.raises(ValueError, match="covariates: expected a DataFrame with 60 rows like y, got 4 rows"):
        hg.observe(hg.Points(x), y, covariates=table[:4])
    with pytest.raises(ValueError, match=r"covariates: expected a DataFrame .* got ndarray"):
        hg.observe(hg.Points(x), y, covariates=x)
    with pytest.raises(ValueError, match=r"give observe\(\.\.\., covariates=table\)"):
        hg.GP(hg.Matern52(), trend=["slope"]).condition(hg.observe(hg.Points(x), y, 0.1))


@pytest.mark.parametrize("kind", ["formula", "names"])
def test_a_loaded_map_predicts_with_columns(kind, tmp_path):
    """Centred columns, too: their centre is that of the data, whatever is predicted."""
    x, table, y, _ = problem()
    trend = terms(kind)
    trend = trend if kind == "names" else "~ center(elevation) + slope + C(type)"
    post = hg.GP(hg.Matern32(lengthscale=0.3), trend=trend).condition(
        hg.observe(hg.Points(x), y, 0.1, covariates=table), progress=False
    )
    post.save(tmp_path / "map.hipgp")
    again = hg.load(tmp_path / "map.hipgp")
    few = table[:7].assign(x=x[:7, 0], y=x[:7, 1])
    for found in (again.predict(few), again.predict(hg.Points(x[:7]), columns=few).to_frame()):
        np.testing.assert_allclose(found["mean"], post.predict(few)["mean"], rtol=1e-12)
    pd.testing.assert_frame_equal(again.coefficients, post.coefficients)
    with pytest.raises(ValueError, match="expected type among clay, loam, sand"):
        again.predict(few.assign(type="peat"))
    more = hg.observe(hg.Points(x[:3] + 0.01), y[:3], 0.1, covariates=table[:3])
    assert len(again.update(more).coefficients) == len(post.coefficients)
