"""The paper's experiments: the frame, the dense baselines, and every `small` run against what it must show."""

import json
import queue
import time

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import dense
import hipgp as hg
from hipgp.apps.cli import app, reproducing
from hipgp.runtime import signals
from hipgp.variational import resuming

experiments = reproducing.package()
from hipgp.experiments import baselines, derivatives, dust, dust_patch, outcome, whitening  # noqa: E402
from hipgp.experiments.pieces import Pieces  # noqa: E402

RNG = np.random.default_rng(0)
SCORES = ("MAE", "MSE", "log_likelihood", "density_correlation")


def small(name, folder, data=None):
    found = experiments.run(name, "small", data, folder, progress=False)
    assert found.figures and all(4_000 < f.stat().st_size < 150_000 for f in found.figures)
    assert found.conclusions.rows
    return found


def rows(table, **wanted):
    return [r for r in table.rows if all(r[k] == v for k, v in wanted.items())]


# --- the frame --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stub(monkeypatch):
    """An experiment that takes no time."""

    def run(size, data, folder, progress):
        result = outcome.Result("A stub")
        result.table("numbers", progress).add(size=size, half=0.5, whole=1234, absent=outcome.NOT_POSSIBLE)
        result.conclude("faster", "2 s", "1 s", True)
        return result

    monkeypatch.setitem(experiments.EXPERIMENTS, "whitening", experiments.Experiment("whitening", "stub"))
    monkeypatch.setattr(whitening, "run", run)


def hipgp(*arguments, code=0):
    found = CliRunner().invoke(app, ["reproduce", *map(str, arguments)])
    assert found.exit_code == code, found.output
    return found


def test_every_experiment_is_listed():
    listing = hipgp("--list").output
    assert all(name in listing for name in experiments.EXPERIMENTS)


def test_the_command_writes_tables_and_json(stub, tmp_path):
    shown = hipgp("whitening", "--out", tmp_path / "out", "--json", tmp_path / "found.json").output
    assert "1,234" in shown and "n/a" in shown
    assert "| small | 0.5 | 1,234 | n/a |" in (tmp_path / "out" / "tables.md").read_text()
    record = json.loads((tmp_path / "found.json").read_text())
    assert record["tables"]["numbers"] == [{"size": "small", "half": 0.5, "whole": 1234, "absent": "n/a"}]
    assert {"threads", "device", "jax"} <= record["machine"].keys()


def test_all_runs_what_has_its_data_and_sums_up(stub, monkeypatch, tmp_path):
    """One experiment runs, another lacks its data: both are in the summary, and the first has its files."""
    some = {name: experiments.EXPERIMENTS[name] for name in ("whitening", "housing")}
    monkeypatch.setattr(experiments, "EXPERIMENTS", some)
    found = hipgp("all", "--data", tmp_path, "--out", tmp_path / "out", "--json", tmp_path / "kept")
    assert "uk_house_prices" in found.output and "holds" in found.output
    assert (tmp_path / "out" / "whitening" / "tables.md").is_file() and not (
        tmp_path / "out" / "housing"
    ).exists()
    summary = json.loads((tmp_path / "kept" / "summary.json").read_text())
    assert summary["conclusions"] == [
        {
            "experiment": "whitening",
            "conclusion": "faster",
            "paper": "2 s",
            "here": "1 s",
            "verdict": "holds",
        },
        {
            "experiment": "housing",
            "conclusion": "",
            "paper": "",
            "here": "",
            "verdict": "not run: its data are missing",
        },
    ]
    record = json.loads((tmp_path / "kept" / "whitening.json").read_text())
    assert record["command"].startswith("hipgp reproduce whitening --size small")


@pytest.mark.parametrize("name", [n for n, e in experiments.EXPERIMENTS.items() if e.data])
def test_missing_data_are_named_with_their_source(name, tmp_path):
    said = hipgp(name, "--data", tmp_path, "--out", tmp_path / "out", code=2).output
    wanted = experiments.EXPERIMENTS[name]
    assert wanted.data in said and wanted.source.split(":")[0] in said and "--data" in said
    assert not (tmp_path / "out").exists()


def test_unknown_names_and_sizes_are_refused(tmp_path):
    assert "expected one of" in hipgp("nothing", code=2).output
    assert "size" in hipgp("whitening", "--size", "huge", "--out", tmp_path / "out", code=2).output


# --- the baselines, against the reference -----------------------------------------------------------------------------


def line_problem():
    ends, y = RNG.uniform(-1, 1, (12, 3)), RNG.normal(size=12)
    return ends, y, RNG.uniform(0.1, 0.3, 12), RNG.uniform(-1, 1, (5, 3))


def test_exact_gp_of_line_integrals_is_the_reference():
    ends, y, noise, places = line_problem()
    found = baselines.exact_gp(
        baselines.Kernel("matern32", 1.3, 0.7),
        [baselines.line_integrals(np.zeros(3), ends)],
        y,
        noise,
        [baselines.points(places)],
    )
    f = dense.line_integrals(np.zeros(3), ends, order=16, panels=1)
    truth = dense.exact_gp(dense.Matern32(1.3, 0.7), f, y, noise, dense.points(places))
    np.testing.assert_allclose(found[0], truth.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[1], truth.std, rtol=1e-9)


def test_exact_gp_of_values_and_slopes_is_the_reference():
    x, at, test = (RNG.uniform(-1, 1, (n, 1)) for n in (15, 6, 9))
    y, noise = RNG.normal(size=21), RNG.uniform(0.05, 0.2, 21)
    f = [baselines.points(x), baselines.derivatives(at)]
    kernel = baselines.Kernel("squared exponential", 0.5, 0.3)
    found = baselines.exact_gp(kernel, f, y, noise, [baselines.points(test)])
    reference = dense.points(x) + dense.derivatives(at, axis=0)
    truth = dense.exact_gp(dense.SquaredExponential(0.5, 0.3), reference, y, noise, dense.points(test))
    np.testing.assert_allclose(found[0], truth.mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found[1], truth.std, rtol=1e-6)


@pytest.mark.parametrize("profile", ["matern12", "matern32", "matern52"])
def test_sgpr_is_the_reference(profile):
    x, test, inducing = (RNG.uniform(-1, 1, (n, 2)) for n in (40, 7, 10))
    y, noise = RNG.normal(size=40), np.full(40, 0.3)
    kernel = baselines.Kernel(profile, 1.1, 0.8)
    found = baselines.sgpr(kernel, inducing, [baselines.points(x)], y, noise, [baselines.points(test)])
    theirs = getattr(dense, profile.capitalize())(1.1, 0.8)
    truth = dense.svgp(theirs, inducing, dense.points(x), y, noise, dense.points(test))
    np.testing.assert_allclose(found[0], truth.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found[1], truth.std, rtol=1e-6)


# --- the problems -----------------------------------------------------------------------------------------------------


def test_slopes_of_the_network_are_those_of_its_values():
    f, x, h = derivatives.Network.draw(np.random.default_rng(3)), np.linspace(-1, 1, 50)[:, None], 1e-6
    np.testing.assert_allclose(f.slope(x), (f.value(x + h) - f.value(x - h)) / (2 * h), rtol=1e-5, atol=1e-6)


def test_patch_extinctions_grow_with_distance(tmp_path):
    patch = dust_patch.simulated((20, 20, 10))
    stars = dust_patch.observed(lambda: patch, 400, 100, Pieces(tmp_path))
    distance = np.linalg.norm(stars.ends, axis=1)
    assert patch.density.min() > 0 and stars.truth.min() > 0
    assert np.corrcoef(distance, stars.measured)[0, 1] > 0.3
    assert np.all(np.abs(stars.ends) <= dust_patch.HALF)


def test_the_clock_of_whitening_starts_after_compilation():
    """For a size that nothing has been compiled for, no compilation ends within the seconds that are reported."""
    ends = []
    listen = lambda event, seconds, **_: ends.append(time.perf_counter()) if "compile" in event else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    places = np.random.default_rng(0).uniform(0.0, 2.0, (7, 1))
    seconds, _, _ = whitening.by_solves(hg.Matern32(0.1, 0.1), hg.Grid.cover(0.0, 2.0, shape=53), places)
    began = time.perf_counter() - seconds
    jax.monitoring.unregister_event_duration_listener(listen)
    assert ends and not any(end > began for end in ends)


# --- the experiments --------------------------------------------------------------------------------------------------


@pytest.mark.slow  # 3,000 iterations of CG, one at a time, for the figure
def test_preconditioner(tmp_path):
    (table,) = small("preconditioner", tmp_path).tables
    for kernel in {r["kernel"] for r in table.rows}:
        fractions = [r["fraction"] for r in rows(table, kernel=kernel)]
        assert fractions == sorted(fractions, reverse=True)  # the larger the system, the more is saved
    assert rows(table, kernel="Matern 5/2, lengthscale 0.14", M=625)[0]["fraction"] < 0.18  # the paper's
    assert all(r["converged"] == "25 and 25 of 25" for r in table.rows)


@pytest.mark.slow  # 32 systems, each compiled for itself
def test_preconditioner_sweep(tmp_path):
    (table,) = small("preconditioner-sweep", tmp_path).tables
    ratios = [r[k] for r in table.rows for k in ("r_pcg", "r_pcg_of_cross_covariances")]
    assert all(r < 1 for r in ratios if r != "none")
    rough, smooth = (
        rows(table, kernel=k, lengthscale=0.05, M=50)[0]["PCG"] for k in ("Matern 1/2", "squared exponential")
    )
    assert rough < smooth


@pytest.mark.slow  # factorises dense matrices of 5,000 points
def test_whitening(tmp_path):
    (table,) = small("whitening", tmp_path).tables
    for row in table.rows:
        assert row["disagreement_of_SVGP"] < 1e-9
        assert row["disagreement_of_local"] < 1e-2


@pytest.mark.data
@pytest.mark.slow  # compiles three engines, with and without slopes
def test_derivatives(tmp_path, data_folder):
    paper, average = small("derivatives", tmp_path, data_folder).tables
    for table in (paper, average):
        for slopes in (True, False):
            exact = rows(table, system="exact GP", slopes=slopes)[0]
            for system in ("HIP-GP", "SVGP"):
                row = rows(table, system=system, slopes=slopes)[0]
                assert row["RMSE"] == pytest.approx(exact["RMSE"], rel=1e-3)
                assert row["std"] == pytest.approx(exact["std"], rel=1e-3)
            natural = rows(table, system="HIP-GP, natural gradients", slopes=slopes)[0]
            assert natural["RMSE"] == pytest.approx(exact["RMSE"], rel=1e-2)
            assert natural["std"] == pytest.approx(exact["std"], rel=1e-2)
            batch = rows(table, system="batch engine", slopes=slopes)[0]
            assert batch["RMSE"] == pytest.approx(exact["RMSE"], rel=1e-2)
            assert batch["std"] == pytest.approx(exact["std"], rel=1e-2)
    best = rows(paper, system="HIP-GP", slopes=True)[0]
    assert round(best["RMSE"], 4) == 0.0192 and round(best["std"], 4) == 0.0198  # the paper's


@pytest.mark.data
@pytest.mark.slow  # fits every engine on two grids
def test_housing(tmp_path, data_folder):
    _, table, limits = small("housing", tmp_path, data_folder).tables
    hip, svgp, batch = (rows(table, system=s, M=256)[0] for s in ("HIP-GP", "SVGP", "batch engine"))
    assert hip["RMSE"] == pytest.approx(svgp["RMSE"], rel=1e-2)
    assert hip["RMSE"] == pytest.approx(batch["RMSE"], rel=2e-2)
    closed, natural, learned, dual = rows(table, system="HIP-GP", M=256)
    assert [r["fitted_by"] for r in (closed, natural, dual)] == [
        "closed form",
        "natural gradients",
        "dual ascent",
    ]
    assert learned["fitted_by"] == "natural gradients, kernel learned"
    assert natural["RMSE"] == pytest.approx(closed["RMSE"], rel=2e-2)
    assert dual["RMSE"] == pytest.approx(closed["RMSE"], rel=1e-3)
    assert all(r["RMSE_error"] > 0 for r in table.rows)
    assert closed["RMSE"] < rows(table, system="HIP-GP", M=100)[0]["RMSE"]  # more inducing points, less error
    assert np.ptp([r["RMSE"] for r in limits.rows]) < 0.02  # robust to early stopping


@pytest.mark.data
@pytest.mark.slow  # learns from rays, and fits every engine
def test_dust_domain(tmp_path, data_folder):
    (table,) = small("dust-domain", tmp_path, data_folder).tables
    exact = rows(table, system="exact GP")[0]
    batch = rows(table, system="batch engine")[-1]
    assert batch["MAE"] < 1.2 * exact["MAE"]
    assert batch["density_correlation"] > exact["density_correlation"] - 0.05
    assert rows(table, system="HIP-GP")[-1]["MAE"] < 1.5 * exact["MAE"]


@pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")  # few points on purpose
@pytest.mark.slow  # fits a patch of stars twice
def test_a_patch_in_pieces_is_the_patch(tmp_path, monkeypatch):
    """Stopped in the second of its fits by natural gradients, whose weights are solved for in float32, and run again."""
    rows = [
        dust_patch.Row("HIP-GP", (6, 6, 4), dust.Way("natural gradients", family, rule))
        for family, rule in (("block", "monte-carlo"), ("mean-field", "gauss"))
    ]
    setting = dust_patch.Setting((40,), 10, 40, (20, 20, 10), tuple(rows))
    monkeypatch.setitem(dust_patch.SETTINGS, "small", setting)
    monkeypatch.setattr(dust, "learned", lambda *_: hg.Matern32(0.5, 0.8))
    monkeypatch.setattr(dust, "MOST_EXACT", 30)
    monkeypatch.setitem(dust.EPOCHS, "natural gradients", 2)
    monkeypatch.setattr(dust, "HELD_EPOCHS", 2)
    held = experiments.run("dust-patch", "small", None, tmp_path / "held", progress=False).tables[0].rows
    monkeypatch.setattr(dust, "are_stored", lambda *_: False)
    whole = experiments.run("dust-patch", "small", None, tmp_path / "whole", progress=False).tables[0].rows
    for row, rule in zip(whole, ("Monte Carlo", "Gauss-Legendre"), strict=True):
        assert row["fitted_by"] == "natural gradients" and row["weights"] == "exact, 20 iterations"
        assert row["covariances"] == rule and np.isfinite(row["log_likelihood"])
    for row, once in zip(whole, held, strict=True):
        assert once["PCG_error_seen"] < 1e-3 and once["fitted_by"] == "natural gradients"
        np.testing.assert_allclose([once[k] for k in SCORES], [row[k] for k in SCORES], rtol=1e-3)
    writes, write = [], resuming.write_arrays

    def stop(*given, **arrays):
        write(*given, **arrays)
        writes.append(given)
        if len(writes) == 5:  # three of the first fit: two epochs and the last pass
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(resuming, "SECONDS_BETWEEN", 0.0)
        patch.setattr(resuming, "write_arrays", stop)
        experiments.run("dust-patch", "small", None, tmp_path / "pieces", progress=False)
    kept = {p.suffix for p in (tmp_path / "pieces" / "pieces-small").iterdir()}
    assert kept == {".json", ".npy", ".checkpoint"}
    found = experiments.run("dust-patch", "small", None, tmp_path / "pieces", progress=False).tables[0].rows
    same = lambda row: {k: v for k, v in row.items() if k != "fit_seconds"}
    assert [same(r) for r in found] == [same(r) for r in whole]
    assert not (tmp_path / "pieces" / "pieces-small").exists()


def test_a_piece_ends_after_its_minutes(monkeypatch):
    ended = queue.Queue()
    monkeypatch.setattr(signals, "finish", ended.put)
    monkeypatch.setattr(signals, "last_words", signals.last_words)
    reproducing.end_after(1e-4, "dust-patch")
    assert ended.get(timeout=20) == 75 and "go on with the same command" in signals.last_words()
    assert (
        "runs in pieces (housing, dust-patch, large-n), got 'whitening'"
        in hipgp("whitening", "--minutes", 1, code=2).output
    )


@pytest.mark.slow  # compiles the engines for five grids, and learns from rays
def test_dust_patch(tmp_path):
    table, _ = small("dust-patch", tmp_path).tables
    hip, svgp = (rows(table, system=s)[0] for s in ("HIP-GP", "SVGP"))
    assert hip["MAE"] < svgp["MAE"]  # the paper's conclusion: more inducing points, better predictions
    assert rows(table, system="batch engine")[-1]["MAE"] < svgp["MAE"]


@pytest.mark.data
@pytest.mark.slow  # learns from rays, and fits three times
@pytest.mark.filterwarnings(
    "ignore:the data do not determine"
)  # few clusters do not tell how thick the disc is
def test_dust_clusters(tmp_path, data_folder):
    table, _ = small("dust-clusters", tmp_path, data_folder).tables
    plain, robust = table.rows
    assert robust["log_likelihood"] > plain["log_likelihood"]  # the tails are heavy
    assert robust["median_error"] < 1.1 * plain["median_error"]


@pytest.mark.data
@pytest.mark.slow  # fits every engine on two splits
def test_large_n(tmp_path, data_folder):
    _, at_random, by_line = small("large-n", tmp_path, data_folder).tables
    for table in (at_random, by_line):
        (hip,), (svgp,) = rows(table, system="HIP-GP"), rows(table, system="SVGP")
        sgpr, exact = (rows(table, system=name)[0] for name in ("SGPR", "exact GP"))
        assert hip["RMSE"] < min(svgp["RMSE"], sgpr["RMSE"])  # it has more inducing points
        assert (
            rows(table, system="batch engine")[0]["RMSE"] < 1.05 * exact["RMSE"]
        )  # which sees a part of the data
