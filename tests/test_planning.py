"""`GP.plan`: memory and expected time before a fit, its refusals those of `condition`, and nothing large computed."""

import dataclasses
import time
from itertools import pairwise

import equinox as eqx
import jax
import numpy as np
import pytest

import hipgp as hg
import hipgp.gp as models
from hipgp.averaging import Averaged
from hipgp.engines import Method
from hipgp.learning.learned import WeightedKernels
from hipgp.linalg.rates import Rates, measured_rates
from hipgp.linalg.sparse import SLICE_COST
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend
from hipgp.planning import Part, Plan
from hipgp.runtime import memory
from hipgp.runtime.arrays import on_cpu

RATES = Rates(1e9, 1e8, 1e4, 1e3, 1e10, 1e8, 1e5, 10.0)
KERNEL = hg.Matern32(lengthscale=0.2)
RNG = np.random.default_rng(0)


class Began(Exception):
    """A fit that was not refused."""


def began(*_, **__):
    raise Began


@pytest.fixture(autouse=True)
def given_rates(monkeypatch):
    monkeypatch.setattr(models, "measured_rates", lambda dtype: RATES)


def points(count, dtype=float):
    x = RNG.uniform(size=(count, 2)).astype(dtype)
    return hg.observe(hg.Points(x), np.sin(5 * x[:, 0]), noise=0.3)


def rays(count):
    start, end = RNG.uniform(size=(2, count, 2))
    return hg.observe(hg.LineIntegrals(start, end), RNG.standard_normal(count), noise=0.3)


def on_grid(side, **how):
    return hg.GP(KERNEL, hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=side), **how)


def counts(count):
    x = RNG.uniform(size=(count, 2))
    return hg.observe(hg.Points(x), RNG.poisson(3.0, count), likelihood=hg.Poisson())


ENGINES = {
    "points": (on_grid(20), points(300), hg.Batch(), "hipgp.batch.engine.Batch.fit"),
    "grid space": (on_grid(12), points(600), hg.Batch(), "hipgp.batch.engine.Batch.fit"),
    "rays": (on_grid(20), rays(60), hg.Batch(), "hipgp.batch.engine.Batch.fit"),
    "matrix-free": (on_grid(20), rays(60), hg.Batch(weights="matrix-free"), "hipgp.batch.engine.Batch.fit"),
    "exact weights": (on_grid(9), points(30), hg.Batch(weights="exact"), "hipgp.batch.engine.Batch.fit"),
    "without preconditioner": (on_grid(20), points(300), hg.Batch(neighbours=0), "hipgp.batch.engine.Batch.fit"),
    "exact": (on_grid(20), points(100), hg.Exact(), "hipgp.weights.dense.covariance_matrix"),
    "variational": (on_grid(12), points(100), hg.Variational(), "hipgp.variational.engine.Variational.fit"),
    "full rank": (on_grid(12), points(100), hg.Variational("full"), "hipgp.variational.engine.Variational.fit"),
    "cholesky": (
        on_grid(12),
        points(100),
        hg.Variational(whitening="cholesky"),
        "hipgp.variational.engine.Variational.fit",
    ),
    "counts": (on_grid(12, link="exp"), counts(100), None, "hipgp.nonlinear.engine.Linearised.rounds"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_refuses_where_condition_refuses_and_with_its_words(name, monkeypatch):
    gp, data, method, fit = ENGINES[name]
    monkeypatch.setattr(fit, began)
    refused = []
    for available in np.logspace(3, 9, 9):
        monkeypatch.setattr(memory, "bytes_available", lambda have=available: have)
        plan = gp.plan(data, method, progress=False)
        with pytest.raises((Began, ValueError)) as raised:
            gp.condition(data, method, progress=False)
        refused.append(plan.refusal is not None)
        assert plan.refusal == (None if raised.type is Began else str(raised.value))
        assert not (plan.fits and plan.refusal) and plan.bytes_available == available
    assert refused[0] and not refused[-1]


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_states_its_parts(name):
    gp, data, method, _ = ENGINES[name]
    plan = gp.plan(data, method, progress=False)
    names = [part.name for part in plan.parts]
    assert names[0] == "compilation" and names[-1] in ("a draw", "mean and std on the grid")
    assert all(np.isfinite([p.bytes, p.kept, p.seconds]).all() and p.seconds >= 0 for p in plan.parts)
    assert plan.seconds == sum(p.seconds for p in plan.parts if not p.optional) > 0
    assert plan.fits and plan.bytes > 0


@pytest.mark.parametrize("make", [points, rays])
def test_more_data_and_finer_grids_take_more(make):
    by_data = [on_grid(40).plan(make(count), progress=False) for count in (100, 300, 900)]
    data = make(300)
    by_grid = [on_grid(side).plan(data, progress=False) for side in (20, 60, 180)]
    for less, more in [*pairwise(by_data), *pairwise(by_grid)]:
        assert less.bytes < more.bytes and less.seconds < more.seconds


def test_nothing_of_the_size_of_the_grid_is_computed():
    grid = hg.Grid((0.0, 0.0, 0.0), 1e-3, (2_000,) * 3)
    x = RNG.uniform(size=(1000, 3))
    start = time.process_time()
    plan = hg.GP(KERNEL, grid).plan(hg.observe(hg.Points(0.9 * x), x[:, 0], noise=0.1), progress=False)
    assert time.process_time() - start < 5
    assert plan.bytes > 1e12 and not plan.fits
    assert "grid: expected a problem that fits into memory" in plan.refusal


@pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")
@pytest.mark.parametrize(
    ("data", "space"), [(points(2000), "data"), (points(2000), "grid"), (rays(1000), "data")]
)
def test_what_is_kept_is_as_large_as_stated(data, space):
    gp, method = on_grid(30), hg.Batch(space=space)
    kept = {part.name: part.kept for part in gp.plan(data, method, progress=False).parts}
    system = gp.condition(data, method, progress=False).engine.system
    held = {"weights": system.weights, "covariance": system.toeplitz}
    held["preconditioner"] = (system.stencil, system.low) if space == "grid" else system.preconditioner
    # a GPU pads few entries of a sparse matrix to SLICE_COST / 2, by rows and by columns: 12.8 MB here where 1 MB is stated
    padding = 0 if on_cpu() else SLICE_COST[1] * (8 + 4)
    for part, tree in held.items():
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array)))
        assert size / 3 < kept[part] + padding / 3 and kept[part] < 3 * size, (part, size, kept[part])


def test_a_plan_says_what_it_holds_in_words():
    plan = on_grid(20).plan(points(300), progress=False)
    shown = repr(plan)
    assert shown.startswith("Plan of the batch engine on a grid of 20 x 20")
    assert "factor of about two" in shown and "covariance" in shown and "then, if asked for, a draw" in shown
    assert len(shown.splitlines()) < 15 and "<table>" in plan._repr_html_()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.refusal = "none"


def test_the_peak_counts_what_earlier_parts_keep():
    parts = Part("a", 5.0, 3.0, 1.0, ""), Part("b", 4.0, 0.0, 2.0, ""), Part("c", 99.0, 0.0, 9.0, "", True)
    plan = Plan("batch", None, parts, None, {}, 10.0)
    assert (plan.bytes, plan.seconds, plan.fits) == (7.0, 3.0, True)
    assert not dataclasses.replace(plan, bytes_available=8.0).fits


def test_engine_and_grid_are_those_that_condition_would_choose():
    small = points(60)
    plan = hg.GP(KERNEL).plan(small, progress=False)
    assert plan.engine == "exact" and "60 observations" in plan.reasons["engine_chosen"]
    named = hg.GP(KERNEL, hg.Grid.cover((0, 0), (1, 1), shape=12), trend="~ height")
    assert named.plan(small_with_heights(), progress=False).engine == "batch"


def small_with_heights():
    pd = pytest.importorskip("pandas")
    x = RNG.uniform(size=(50, 2))
    return hg.observe(hg.Points(x), x[:, 0], noise=0.1, covariates=pd.DataFrame({"height": x[:, 1]}))


def test_averages_take_all_kernels():
    data, gp = points(300), on_grid(20)
    problem = Problem(KERNEL, gp.grid, data, None, Trend(None))
    over = WeightedKernels(
        [KERNEL, hg.Matern32(lengthscale=0.1)], [None, None], np.array([0.5, 0.5]), None, ""
    )
    one, both = hg.Batch().parts(problem, RATES), Averaged(hg.Batch(), over).parts(problem, RATES)
    assert [part.name for part in one] == [part.name for part in both]
    for less, more in zip(one[1:], both[1:], strict=True):
        assert (more.seconds, more.kept) == (2 * less.seconds, 2 * less.kept)
    assert one[0] == both[0]  # compiled once


def test_an_engine_that_states_nothing_is_named():
    with pytest.raises(ValueError, match="method: expected an engine that states beforehand"):
        Method.parts(hg.Batch(), None, RATES)


@pytest.mark.parametrize("dtype", [np.float32])
def test_rates_are_measured_once(dtype):
    began = time.process_time()
    rates = measured_rates(np.dtype(dtype))
    assert all(np.isfinite(rate) and rate > 0 for rate in rates)
    assert time.process_time() - began < 20
    assert measured_rates(np.dtype(dtype)) is rates


def test_plan_refuses_what_condition_refuses_of_arguments():
    with pytest.raises(ValueError, match="data: expected something made by observe"):
        on_grid(20).plan(np.zeros(3))
    with pytest.raises(ValueError, match="hyperparameters: expected"):
        on_grid(20).plan(points(30), hyperparameters="all")
