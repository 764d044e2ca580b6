"""Every bad input at the border is a ValueError that names the argument, what was expected and what came."""

import functools
import re

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import hipgp as hg
from hipgp.model import kernels as hk
from hipgp.model.data import check_inside, observe
from hipgp.model.functionals import BoxAverages, Derivatives, Functionals, LineIntegrals, Points
from hipgp.model.grid import Grid

X, Y = np.linspace(0.0, 1.0, 4), np.ones(4)
PLANE = np.random.default_rng(0).uniform(0, 1, (4, 2))
BAD = [np.array([0.0, np.nan, 1.0, 2.0]), np.array([0.0, 1.0, np.inf, 2.0])]
HALF = np.ones(4, np.float16)

MASKED = np.ma.masked_equal([1.0, -9999.0, 2.0, 3.0], -9999.0)


class Metres:
    """A quantity as pint and unyt make them."""

    magnitude = X
    units = "metre"

    def __array__(self, dtype=None, copy=None):
        return np.array(self.magnitude, dtype)


GRID, DATA = Grid.cover(0.0, 1.0, shape=8), observe(Points(X), Y, 0.1)
GP = hg.GP(hk.Matern32(), GRID, noise=0.1)


@functools.cache
def posterior():
    return GP.condition(DATA, progress=False)


CASES = {  # what is done, the argument to be named, what came
    # not finite
    **{f"x {b}": (lambda b=b: Points(b), "x", str(b[~np.isfinite(b)][0])) for b in BAD},
    **{f"y {b}": (lambda b=b: observe(Points(X), b), "y", str(b[~np.isfinite(b)][0])) for b in BAD},
    **{
        f"noise {b}": (lambda b=b: observe(Points(X), Y, b), "noise", str(b[~np.isfinite(b)][0])) for b in BAD
    },
    "noise nan": (lambda: observe(Points(X), Y, np.nan), "noise", "nan"),
    "ray to infinity": (lambda: LineIntegrals([0.0], [[np.inf]]), "end", "inf"),
    "box from nan": (lambda: BoxAverages([[np.nan]], [[1.0]]), "lower", "nan"),
    "node nan": (lambda: Functionals(np.full((1, 1, 1), np.nan), [[1.0]]), "nodes", "nan"),
    "weight nan": (lambda: Functionals(np.zeros((1, 1, 1)), [[np.nan]]), "weights", "nan"),
    "direction nan": (lambda: Derivatives(X, direction=[np.nan]), "direction", "nan"),
    "variance nan": (lambda: hk.Matern32(np.nan), "variance", "nan"),
    "lengthscale inf": (lambda: hk.Matern32(1.0, np.inf), "lengthscale", "inf"),
    "spacing nan": (lambda: Grid(0.0, np.nan, 3), "spacing", "nan"),
    "origin inf": (lambda: Grid(np.inf, 1.0, 3), "origin", "inf"),
    "cover to nan": (lambda: Grid.cover(0.0, np.nan, shape=3), "upper", "nan"),
    # shapes that disagree
    "y as a column": (lambda: observe(Points(X), Y[:, None]), "y", "(4, 1)"),
    "y too short": (lambda: observe(Points(X), Y[:3]), "y", "(3,)"),
    "y a number": (lambda: observe(Points(X), 1.0), "y", "()"),
    "noise too short": (lambda: observe(Points(X), Y, [0.1, 0.2]), "noise", "(2,)"),
    "noise as a column": (lambda: observe(Points(X), Y, Y[:, None]), "noise", "(4, 1)"),
    "x a number": (lambda: Points(1.0), "x", "()"),
    "x a cube": (lambda: Points(np.zeros((2, 2, 2))), "x", "(2, 2, 2)"),
    "x ragged": (lambda: Points([[0.0], [0.0, 1.0]]), "x", "list"),
    "starts and ends": (lambda: LineIntegrals(PLANE[:3], PLANE), "end", "(4, 2)"),
    "dimensions of a ray": (lambda: LineIntegrals([0.0, 0.0, 0.0], PLANE), "end", "(4, 2)"),
    "corners of boxes": (lambda: BoxAverages(PLANE[:3], PLANE + 1), "upper", "(4, 2)"),
    "weights and nodes": (lambda: Functionals(np.zeros((4, 3, 2)), np.ones((4, 2))), "weights", "(4, 2)"),
    "nodes flat": (lambda: Functionals(np.zeros((4, 3)), np.ones((4, 3))), "nodes", "(4, 3)"),
    "directions": (lambda: Derivatives(PLANE, direction=np.ones(3)), "direction", "(3,)"),
    "gram of two dimensions": (lambda: hk.Matern32()(PLANE, X[:, None]), "y", "1"),
    "cover corners": (lambda: Grid.cover((0, 0), (1, 1, 1), shape=3), "upper", "3"),
    "cover shape": (lambda: Grid.cover((0, 0), (1, 1), shape=(3, 3, 3)), "shape", "3"),
    "spacing per axis": (lambda: Grid(0.0, (1.0, 1.0), (3, 3, 3)), "spacing", "2"),
    # not positive
    **{f"noise {s}": (lambda s=s: observe(Points(X), Y, s), "noise", str(s)) for s in (0.0, -0.1)},
    "one noise zero": (lambda: observe(Points(X), Y, [0.1, 0.2, 0.0, 0.3]), "noise", "0.0"),
    "noise zero in float32": (lambda: observe(Points(X), Y.astype(np.float32), 1e-60), "noise", "0.0"),
    **{f"variance {v}": (lambda v=v: hk.Matern52(v), "variance", str(v)) for v in (0.0, -1.0)},
    **{
        f"lengthscale {v}": (lambda v=v: hk.Matern52(1.0, v), "lengthscale", str(v))
        for v in (0.0, (1.0, -1.0))
    },
    "alpha zero": (lambda: hk.RationalQuadratic(alpha=0.0), "alpha", "0.0"),
    "alpha of Gneiting": (lambda: hk.Gneiting(alpha=3.0), "alpha", "3.0"),
    "negative jax variance": (lambda: hk.Matern12(jnp.array(-1.0)), "variance", "-1"),
    "spacing zero": (lambda: Grid(0.0, 0.0, 3), "spacing", "0.0"),
    "spacing negative": (lambda: Grid.cover(0.0, 1.0, spacing=-1.0), "spacing", "-1.0"),
    "margin negative": (lambda: Grid.cover(0.0, 1.0, shape=3, margin=-1.0), "margin", "-1.0"),
    "ray of no length": (lambda: LineIntegrals(PLANE, PLANE), "end", "4 of zero length"),
    "box of no volume": (lambda: BoxAverages(PLANE, PLANE), "upper", "4 boxes"),
    "direction of no length": (lambda: Derivatives(PLANE, direction=[0.0, 0.0]), "direction", "zero vector"),
    "no nodes": (lambda: LineIntegrals([0.0], [[1.0]], nodes_per_ray=0), "nodes", "0"),
    # empty
    "no x": (lambda: Points(np.zeros((0, 2))), "x", "(0, 2)"),
    "no coordinates": (lambda: Points(np.zeros((3, 0))), "x", "(3, 0)"),
    "no rays": (lambda: LineIntegrals(np.zeros((0, 2)), np.zeros((0, 2))), "start", "(0, 2)"),
    "nothing picked": (lambda: Points(X)[X > 9], "index", "none of"),
    "no lengthscale": (lambda: hk.Matern12(1.0, []), "lengthscale", "[]"),
    # grids
    "no axes": (lambda: Grid(0.0, 1.0, ()), "shape", "()"),
    "five axes": (lambda: Grid(0.0, 1.0, (3,) * 5), "shape", "(3, 3, 3, 3, 3)"),
    "one point": (lambda: Grid(0.0, 1.0, (3, 1)), "shape", "(3, 1)"),
    "no point": (lambda: Grid(0.0, 1.0, 0), "shape", "0"),
    "half a point": (lambda: Grid(0.0, 1.0, 2.5), "shape", "2.5"),
    "half a point to cover": (lambda: Grid.cover(0.0, 1.0, shape=2.5), "shape", "2.5"),
    "far too large": (lambda: Grid(0.0, 1.0, (10**6, 10**6)), "shape", "GiB"),
    "inside out": (lambda: Grid.cover(1.0, 0.0, shape=3), "upper", "0.0"),
    "neither shape nor spacing": (lambda: Grid.cover(0.0, 1.0), "shape, spacing", "None and None"),
    "both shape and spacing": (
        lambda: Grid.cover(0.0, 1.0, shape=3, spacing=1.0),
        "shape, spacing",
        "3 and 1.0",
    ),
    # dimensions of grid, kernel and data
    "grid and data": (lambda: check_inside(Points(PLANE), Grid(0.0, 1.0, 3)), "grid", "1"),
    "kernel and data": (lambda: hk.Matern32(1.0, (1.0, 1.0, 1.0))(PLANE, PLANE), "lengthscale", "3"),
    "data and data": (lambda: observe(Points(X), Y) + observe(Points(PLANE), Y), "data", "2"),
    "Gneiting in four": (lambda: hk.Gneiting()(np.zeros((2, 4)), np.zeros((2, 4))), "kernel", "4"),
    "axis beyond": (lambda: Derivatives(PLANE, axis=2), "axis", "2"),
    "axis negative": (lambda: Derivatives(PLANE, axis=-1), "axis", "-1"),
    "axis a fraction": (lambda: Derivatives(PLANE, axis=0.5), "axis", "0.5"),
    "axis of a sum": (lambda: Functionals(np.zeros((1, 1, 2)), [[1.0]], axis=2), "axis", "2"),
    "axis and direction": (
        lambda: Derivatives(PLANE, axis=0, direction=[1.0, 0.0]),
        "axis, direction",
        "both",
    ),
    # masked, missing, and with a unit
    "masked y": (lambda: observe(Points(X), MASKED), "y", "MaskedArray with 1 of 4 masked"),
    "masked noise": (lambda: observe(Points(X), Y, MASKED), "noise", "1 of 4 masked"),
    "masked x": (lambda: Points([MASKED, MASKED]), "x", "1 of 4 masked"),
    "all masked": (lambda: Points(np.ma.masked_all(4)), "x", "4 of 4 masked"),
    "quantity": (lambda: Points(Metres()), "x", "Metres in units of 'metre'; pass .to(unit).magnitude"),
    "quantities": (lambda: LineIntegrals([0.0], [Metres()]), "end", "in units of 'metre'"),
    # types
    "float16 x": (lambda: Points(HALF), "x", "float16"),
    "float16 y": (lambda: observe(Points(X), HALF), "y", "float16"),
    "float16 noise": (lambda: observe(Points(X), Y, HALF), "noise", "float16"),
    "float16 variance": (lambda: hk.Matern12(np.float16(1.0)), "variance", "float16"),
    "float16 spacing": (lambda: Grid(0.0, np.float16(1.0), 3), "spacing", "float16"),
    "complex y": (lambda: observe(Points(X), Y + 1j), "y", "complex128"),
    "words for y": (lambda: observe(Points(X), ["a"] * 4), "y", "'a' in row 0; convert it"),
    "words for variance": (lambda: hk.Matern12("large"), "variance", "'large'"),
    "words for x": (lambda: Points(np.array(["1", "x"])), "x", "'x' in row 1"),
    "dates as words": (lambda: Points(["2024-01-01"]), "x", "read dates with pandas.to_datetime"),
    "dates as words in a table": (
        lambda: observe(pd.DataFrame({"t": ["1", "1/2/2024"], "z": 1.0}), "z"),
        "x['t']",
        "'1/2/2024' in row 1; read dates",
    ),
    "dates for y": (
        lambda: observe(Points(X), pd.date_range("2024", periods=4)),
        "y",
        "dates; dates can be coordinates only",
    ),
    "nothing for variance": (lambda: hk.Matern12(None), "variance", "None"),
    "x for a functional": (lambda: observe(X, Y), "functional", "ndarray"),
    "a number to a kernel": (lambda: hk.Matern12() + 1.0, "kernel", "float"),
    "a number to data": (lambda: observe(Points(X), Y) + 1.0, "data", "float"),
    # the model
    "kernel by name": (lambda: hg.GP("matern32", GRID), "kernel", "matern32"),
    "grid a number": (lambda: hg.GP(hk.Matern32(), 8), "grid", "int"),
    "noise of a GP zero": (lambda: hg.GP(hk.Matern32(), GRID, noise=0.0), "noise", "0.0"),
    "noises of a GP": (lambda: hg.GP(hk.Matern32(), GRID, noise=[0.1, 0.2]), "noise", "(2,)"),
    "kernel and grid": (lambda: hg.GP(hk.Matern32(1.0, (1.0, 1.0)), GRID), "lengthscale", "2"),
    "trend unheard of": (lambda: hg.GP(hk.Matern32(), GRID, trend="cubic"), "trend", "'cubic'"),
    "trend nan": (lambda: hg.GP(hk.Matern32(), GRID, trend=np.full((4, 1), np.nan)), "trend", "nan"),
    "condition on y": (lambda: GP.condition(Y), "data", "ndarray"),
    "condition outside": (lambda: GP.condition(observe(Points(X + 3), Y, 0.1)), "data", "4 of 4 Points"),
    "condition by name": (lambda: GP.condition(DATA, "batch"), "method", "'batch'"),
    "condition without noise": (
        lambda: hg.GP(hk.Matern32(), GRID).condition(observe(Points(X), Y)),
        "noise",
        "observe(..., noise=None)",
    ),
    "trend of other data": (
        lambda: hg.GP(hk.Matern32(), GRID, trend=np.ones((3, 1))).condition(DATA, progress=False),
        "trend",
        "3",
    ),
    "slopes of a rough kernel": (
        lambda: hg.GP(hk.Matern12(), GRID).condition(observe(Derivatives(X), Y, 0.1)),
        "kernel",
        "one without (Matern12",
    ),
    # learning
    "learn from y": (lambda: GP.learn(Y), "data", "ndarray"),
    "start unheard of": (lambda: GP.learn(DATA, start="here"), "start", "'here'"),
    "bounds of nothing": (
        lambda: GP.learn(DATA, bounds={"size": (1, 2)}, progress=False),
        "bounds",
        "['size']",
    ),
    "bounds the wrong way round": (
        lambda: GP.learn(DATA, bounds={"lengthscale": (2, 1)}, progress=False),
        "bounds",
        "(2, 1)",
    ),
    "bounds a number": (
        lambda: GP.learn(DATA, bounds={"lengthscale": 2}, progress=False),
        "bounds",
        "2",
    ),
    "polish without a grid": (
        lambda: hg.GP(hk.Matern32()).learn(DATA, polish=True, progress=False),
        "polish",
        "without",
    ),
    "hyperparameters unheard of": (
        lambda: GP.condition(DATA, hyperparameters="mean"),
        "hyperparameters",
        "'mean'",
    ),
    "average over a kernel that was given": (
        lambda: GP.condition(DATA, hyperparameters="average", progress=False),
        "hyperparameters",
        '"average"',
    ),
    # prediction
    "noise below zero": (
        lambda: posterior().predict(Points([0.5]), noisy=True, noise=-1.0),
        "noise",
        "-1.0",
    ),
    "noisy unheard of": (lambda: posterior().predict(Points([0.5]), noisy="yes"), "noisy", "'yes'"),
    "an interval of everything": (lambda: posterior().interval(1.0), "p", "1.0"),
    "groups of others": (lambda: posterior().leave_out(np.zeros(3)), "groups", "(3,)"),
    "update with y": (lambda: posterior().update(Y), "more", "ndarray"),
    "without all": (lambda: posterior().without(np.ones(4, bool)), "index", "4"),
    "without the fifth": (lambda: posterior().without([4]), "index", "4"),
    "predict at a word": (lambda: posterior().predict("here"), "x", "'here'; convert it"),
    "predict in a plane": (lambda: posterior().predict(Points([[0.5, 0.5]])), "grid", "1"),
    "std unheard of": (lambda: posterior().predict(Points([0.5]), std="best"), "std", "'best'"),
    "std from one draw": (
        lambda: posterior().predict(Points([0.5]), std="samples", samples=1),
        "samples",
        "1",
    ),
    "std of the grid unheard of": (lambda: posterior().std("best"), "std", "'best'"),
    "no draws": (lambda: posterior().sample(0), "count", "0"),
    "a draw and a half": (lambda: posterior().sample(1.5), "count", "1.5"),
    "half a sample": (lambda: posterior().std("samples", samples=2.5), "samples", "2.5"),
    "half a probe": (lambda: posterior().log_evidence(probes=2.5), "probes", "2.5"),
    "draws beyond memory": (lambda: posterior().sample(10**12), "count", "1,000,000,000,000 draws"),
    "draws at a word": (lambda: posterior().sample(1, at="here"), "x", "'here'; convert it"),
    # the batch engine
    **{
        f"tolerance {t}": (lambda t=t: hg.Batch(tolerance=t), "tolerance", repr(t))
        for t in (0.0, np.nan, "small")
    },
    **{
        f"max_iterations {n}": (lambda n=n: hg.Batch(max_iterations=n), "max_iterations", repr(n))
        for n in (0, 2.5)
    },
    **{f"neighbours {n}": (lambda n=n: hg.Batch(neighbours=n), "neighbours", repr(n)) for n in (-1, 2.5)},
    **{f"stencil {n}": (lambda n=n: hg.Batch(stencil=n), "stencil", repr(n)) for n in (0, 3)},
    **{
        f"{name} unheard of": (lambda name=name: hg.Batch(**{name: "best"}), name, "'best'")
        for name in ("weights", "residual", "space", "preconditioner")
    },
    "a preconditioner in grid space": (
        lambda: hg.Batch(space="grid", preconditioner="vecchia"),
        "preconditioner",
        "'vecchia'",
    ),
    "neighbours of low rank": (
        lambda: hg.Batch(preconditioner="low-rank", neighbours=4),
        "neighbours",
        "4",
    ),
    # the other engines
    "accuracy zero": (lambda: hg.Exact(accuracy=0.0), "accuracy", "0.0"),
    "family unheard of": (lambda: hg.Variational("best"), "family", "'best'"),
    "half an epoch": (lambda: hg.Variational(epochs=0.5), "epochs", "0.5"),
    "neighbours in grid space": (lambda: hg.Batch(space="grid", neighbours=4), "neighbours", "4"),
    "exact weights in grid space": (
        lambda: GP.condition(DATA, hg.Batch(space="grid", weights="exact"), progress=False),
        "space",
        "exact",
    ),
    "points, matrix-free": (
        lambda: GP.condition(DATA, hg.Batch(weights="matrix-free"), progress=False),
        "weights",
        "Points",
    ),
    "a rule unheard of": (lambda: LineIntegrals([0.0], [[1.0]], rule="simpson"), "rule", "simpson"),
}


@pytest.mark.parametrize(("do", "argument", "came"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_named(do, argument, came):
    with pytest.raises(ValueError) as error:
        do()
    message = str(error.value)
    assert message.startswith(f"{argument}: ")
    expected, got = message.split("expected ", 1)[1].split(", got ", 1)
    assert expected
    # as a whole word: a lone "1" is not found in "(10, 2)"
    assert re.search(rf"(?<![\w.]){re.escape(came)}(?![\w.]*\d)", got), message


def test_what_is_only_unusual_is_taken():
    """Integers, lists, booleans, float32 parameters, NumPy scalars, transposed and read-only arrays."""
    fixed = PLANE.copy()
    fixed.flags.writeable = False
    assert Points(fixed).dtype == np.float64
    assert Points(PLANE.T[:, ::-1].T).x.shape == (4, 2)
    assert Points([0, 1, 2]).x.dtype == np.float64
    assert hk.Matern32(np.float32(2), [1, 2]).lengthscale.dtype == np.float64
    assert hk.Matern32(2, True).variance == 2.0
    assert len(observe(Points(X), [True, False, True, True], np.float64(0.1))) == 4


def test_input_is_not_changed_by_what_is_done_to_it_later():
    """The library keeps no window onto the caller's array that a later write would go through."""
    x, y = PLANE.copy(), Y.copy()
    data = observe(Points(x), y, 0.1)
    x[:], y[:] = np.nan, np.nan
    assert np.all(np.isfinite(data.y)) and np.all(np.isfinite(data.nodes(1.0).x))


def test_masked_quantities_are_refused():
    u = pytest.importorskip("astropy.units")
    masked = pytest.importorskip("astropy.utils.masked").Masked(X, mask=X > 0.5)
    for given in (masked, masked * u.kpc):
        with pytest.raises(ValueError, match=r"^x: .*2 of 4 masked"):
            Points(given)


def test_units_where_none_belongs_and_quantities_of_other_packages_are_refused():
    u = pytest.importorskip("astropy.units")
    with pytest.raises(
        ValueError, match=r"^lengthscale: .*Quantity in units of 'kpc'; pass .to_value\(unit\)"
    ):
        hk.Matern32(lengthscale=2 * u.kpc)

    class Quantity:  # as pint's
        units = "kpc"

    with pytest.raises(ValueError, match=r"^x: .*Quantity in units of 'kpc'; pass .to\(unit\).magnitude"):
        Points(Quantity())


@pytest.mark.parametrize("kind", ["Int64", "Float64", "boolean"])
def test_missing_cells_of_pandas_are_refused(kind):
    with pytest.raises(ValueError, match=r"^y: expected .*(nan at index \(1,\)|missing values \(NA\))"):
        observe(Points(X), pd.Series([1, None, 0, 1], dtype=kind))


def test_what_has_a_mask_or_a_name_of_a_unit_but_nothing_behind_it_is_taken():
    assert len(Points(np.ma.masked_equal(X, -9999.0))) == 4
    assert len(Points(pd.Series(X))) == len(Points(pd.DataFrame({"x": X}))) == 4
    assert len(Points(xr.DataArray(X, attrs={"units": "m"}))) == 4
