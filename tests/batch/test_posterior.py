"""What a posterior keeps, and what it builds how often: nothing of it changes once it is made."""

import copy
import gc
import pickle
import threading

import numpy as np
import pytest

import hipgp as hg
from batch_problem import GRID, KERNEL, mixture, pair
from hipgp.batch import build, interpolation
from hipgp.weights.stencils import WeightRows

# grids here are coarse, so that the dense reference is small; `test_coarse_grid.py` tests the warning
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")

ROUGH = hg.Matern12(lengthscale=0.5)  # on this grid, with residuals that are held jointly


@pytest.fixture
def built_rows(monkeypatch):
    """How many rows of W each call computed."""
    counted, rows_of = [], interpolation.rows_of

    def counting(method, kernel, grid, functionals, dtype, toeplitz):
        counted.append(sum(map(len, functionals)))
        return rows_of(method, kernel, grid, functionals, dtype, toeplitz)

    monkeypatch.setattr(interpolation, "rows_of", counting)
    return counted


@pytest.mark.parametrize("std", ["samples", "exact"])
def test_the_weights_of_data_and_of_targets_are_computed_once(built_rows, std):
    data = mixture(("points",))[0]
    post = hg.GP(ROUGH, GRID).condition(data, hg.Batch())
    assert post.diagnostics["residual"] == "joint" and built_rows == [24]
    post.predict(pair("points", 90, 10)[0], std=std, samples=2)
    assert built_rows == [24, 10]


def test_a_map_from_a_file_computes_the_weights_of_its_data_once(built_rows):
    """For the mean, whose residuals are joint with the data's, and for the system that samples need."""
    post = pickle.loads(pickle.dumps(hg.GP(ROUGH, GRID).condition(mixture(("points",))[0], hg.Batch())))
    at = pair("points", 90, 10)[0]
    post.predict(at, std="vecchia")
    assert built_rows == [24, 10, 24]  # the fit, the targets, and the data they are held jointly with
    post.predict(at, std="samples", samples=2)
    assert built_rows == [24, 10, 24, 10]


def test_the_host_keeps_no_weights_of_a_map_whose_system_is_built():
    """The system has them in the layout of the device; the mean before it had needed them on the host."""
    post = pickle.loads(pickle.dumps(hg.GP(ROUGH, GRID).condition(mixture(("points",))[0], hg.Batch())))
    at = pair("points", 90, 10)[0]
    post.predict(at, std="vecchia")
    held = lambda: sum(isinstance(a, WeightRows) and len(a.residual) == 24 for a in gc.get_objects())
    gc.collect()
    before, mean = held(), post.predict(at, std="vecchia").mean
    post.sample(1)
    gc.collect()
    assert held() == before - 1
    np.testing.assert_array_equal(post.predict(at, std="vecchia").mean, mean)


def test_the_grid_needs_no_weights_where_the_nearest_observations_serve(built_rows):
    post = hg.GP(KERNEL, GRID).condition(mixture(("points",))[0], hg.Batch())
    post.std()
    assert built_rows == [24]


def test_nothing_changes_by_asking():
    post = hg.GP(KERNEL, GRID).condition(mixture(("points",))[0], hg.Batch())
    before = copy.deepcopy(post.diagnostics)
    post.sample(2)
    post.predict(pair("points", 90, 5)[0], std="samples", samples=2)
    assert post.diagnostics == before


def test_threads_may_predict_at_once_from_one_posterior(monkeypatch):
    """A copy from a file or a pickle has no system yet: it is built once, and all get the right answers."""
    at = pair("rays", 90, 10)[0]
    post = hg.GP(ROUGH, GRID).condition(mixture(("points",))[0], hg.Batch())
    want = post.predict(at, std="exact")
    fresh, builds, found = pickle.loads(pickle.dumps(post)), [], []
    whole = build.build
    monkeypatch.setattr(build, "build", lambda *given: builds.append(1) or whole(*given))

    def ask():
        found.append(fresh.predict(at, std="exact", progress=False))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1 and len(found) == 3
    for prediction in found:
        np.testing.assert_allclose(prediction.mean, want.mean, rtol=1e-9)
        np.testing.assert_allclose(prediction.std, want.std, rtol=1e-9)


def test_the_reasons_are_told_and_kept(tmp_path):
    post = hg.GP(KERNEL, GRID).condition(mixture(("points",))[0], hg.Batch())
    reasons = post.diagnostics["decisions"]
    assert set(reasons) == {
        "weights",
        "stencil",
        "residual",
        "space",
        "product",
        "preconditioner",
        "standard deviations on the grid",
    }
    assert reasons["space"].startswith("data space: 24 points are 0.38 for each of the 63 grid points")
    assert "Vecchia, 20 neighbours" in reasons["preconditioner"]
    post.save(tmp_path / "map")
    assert hg.load(tmp_path / "map").diagnostics["decisions"] == reasons
    many = hg.GP(KERNEL, hg.Grid.cover(GRID.lower, GRID.upper, shape=(4, 3))).condition(
        mixture(("rays",))[0], hg.Batch()
    )
    assert many.diagnostics["decisions"]["space"].startswith(
        "grid space: 24 observations are 2 for each of the 12"
    )
