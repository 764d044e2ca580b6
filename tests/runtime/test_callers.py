"""Warnings name the user's line, however deep inside the package and in whichever room the reason was found."""

import inspect
import types
import warnings

import numpy as np
import pytest

import hipgp as hg
from hipgp.batch import interpolation
from hipgp.runtime.callers import warn_caller

GRID = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(12, 12))
X = np.random.default_rng(0).uniform(size=(60, 2))
POINTS = hg.observe(hg.Points(X), np.sin(5 * X[:, 0]), noise=0.3)
LINES = hg.observe(hg.LineIntegrals(X, X[::-1]), X[:, 0], noise=0.3)
ROUGH = hg.Matern12(lengthscale=0.2)


def inside(depth: int) -> None:
    """A call chain of `depth` functions of this package, with a warning at its end."""
    module = types.ModuleType("hipgp.somewhere")
    code = "def call(depth, then):\n    return call(depth - 1, then) if depth else then('told', DeprecationWarning)"
    exec(code, module.__dict__)
    module.call(depth, warn_caller)


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_the_first_line_outside_the_package_is_named(depth):
    with pytest.warns(DeprecationWarning, match="^told$") as told:
        inside(depth)
    line = inspect.getsourcelines(inside)[1] + len(inspect.getsourcelines(inside)[0]) - 1
    assert (told[0].filename, told[0].lineno) == (__file__, line)


def a_solve_stopped_short():
    hg.GP(ROUGH, GRID).condition(
        LINES, hg.Batch(max_iterations=1, space="data", neighbours=0), progress=False
    )


def draws_stopped_short():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        post = hg.GP(ROUGH, GRID).condition(
            LINES, hg.Batch(max_iterations=1, space="data", neighbours=0), progress=False
        )
    post.sample(1, progress=False)


def many_weights():
    hg.GP(ROUGH, GRID).condition(LINES, hg.Batch(space="data"), progress=False)


def a_coarse_grid():
    coarse = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(4, 4))
    hg.GP(hg.Matern32(lengthscale=0.1), coarse).condition(POINTS, hg.Batch(), progress=False)


def data_far_from_zero():
    far = hg.observe(hg.Points(X), 1e6 + X[:, 0], noise=0.3)
    hg.GP(ROUGH, GRID).condition(far, progress=False)


CASES = {
    "the solve stopped after": a_solve_stopped_short,
    "solve stopped after": draws_stopped_short,
    "GiB; Batch": many_weights,
    "too coarse": a_coarse_grid,
    "standard deviations from zero": data_far_from_zero,
}


@pytest.mark.parametrize(("words", "act"), CASES.items(), ids=lambda v: getattr(v, "__name__", None))
def test_every_warning_names_the_line_of_the_call(words, act, monkeypatch):
    monkeypatch.setattr(interpolation, "LARGE_WEIGHTS", 1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        act()
    ours = [w for w in told if words in str(w.message)]
    assert ours
    for warning in ours:
        assert warning.filename == __file__
    begin, count = inspect.getsourcelines(act)[1], len(inspect.getsourcelines(act)[0])
    assert all(begin <= w.lineno < begin + count for w in ours)
