"""What does not fit into memory is refused before it is allocated, and many places are predicted some at a time."""

import time
import tracemalloc

import numpy as np
import pytest

import hipgp as hg
from hipgp.batch import estimates
from hipgp.runtime import memory

X = np.random.default_rng(0).uniform(size=(60, 4))
KERNEL = hg.Matern32(lengthscale=0.2)

pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")  # grids here are small on purpose


def data(ndim: int) -> hg.Data:
    return hg.observe(hg.Points(X[:, :ndim]), np.sin(5 * X[:, 0]), noise=0.1)


def limited(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(memory, "_host_bytes", lambda: float(size))


@pytest.fixture(scope="module")
def fitted() -> hg.Posterior:
    grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=16)
    return hg.GP(KERNEL, grid).condition(data(2), hg.Batch(), progress=False)


@pytest.mark.parametrize("shape", [(200,) * 4, (20_000,) * 2])
@pytest.mark.parametrize("task", ["condition", "variational", "learn"])
def test_a_grid_too_large_is_refused_before_it_is_allocated(
    shape: tuple[int, ...], task: str, monkeypatch: pytest.MonkeyPatch
):
    limited(monkeypatch, 24 * 2**30)
    ndim = len(shape)
    gp = hg.GP(KERNEL, hg.Grid.cover([0.0] * ndim, [1.0] * ndim, shape=shape))
    run = {
        "condition": lambda: gp.condition(data(ndim), progress=False),
        "variational": lambda: gp.condition(data(ndim), hg.Variational(), progress=False),
        "learn": lambda: gp.learn(data(ndim), polish=True, progress=False),
    }[task]
    began = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(
            ValueError, match=r"^grid: .* needs about [\d,.]+ GiB \(.* bytes\), .* 24.0 GiB; .*spacing"
        ):
            run()
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - began < 20  # far longer, or never, if it were computed


def test_weights_too_many_are_refused(monkeypatch: pytest.MonkeyPatch):
    x = np.random.default_rng(1).uniform(size=(100_000, 2))
    many = hg.observe(hg.Points(x), x[:, 0], noise=0.1)
    limited(monkeypatch, 2**25)
    gp = hg.GP(KERNEL, hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=16))
    with pytest.raises(ValueError, match=r"^data: .*100,000 observations .* bytes"):
        gp.condition(many, progress=False)


def test_draws_too_many_are_refused(fitted: hg.Posterior):
    with pytest.raises(ValueError, match=r"^count: .* bytes\)"):
        fitted.sample(10**12, progress=False)


def test_draws_at_places_whose_weights_do_not_fit_are_refused(
    fitted: hg.Posterior, monkeypatch: pytest.MonkeyPatch
):
    """A draw is joint over all places: their values would fit, the weights that they need at once would not."""
    limited(monkeypatch, 1_000_000)
    at = hg.Points(np.full((10_000, 2), 0.5))
    with pytest.raises(ValueError, match=r"^at: .*10,000 functionals with 1.6e\+05 weights, .* bytes\)"):
        fitted.sample(1, at=at, progress=False)


def test_places_too_many_are_refused(fitted: hg.Posterior, monkeypatch: pytest.MonkeyPatch):
    limited(monkeypatch, 10_000)
    with pytest.raises(ValueError, match=r"^functional: .*1,000 functionals.* bytes\)"):
        fitted.predict(hg.Points(np.full((1000, 2), 0.5)), progress=False)


@pytest.mark.parametrize("std", ["vecchia", "exact"])
def test_many_places_are_predicted_as_few_are(
    fitted: hg.Posterior, std: str, monkeypatch: pytest.MonkeyPatch
):
    at = hg.Points(np.random.default_rng(2).uniform(size=(100, 2)))
    whole = fitted.predict(at, std=std, progress=False)
    monkeypatch.setattr(estimates, "LEAST_PLACES", 7)
    limited(monkeypatch, 100_000)
    pieces = fitted.predict(at, std=std, progress=False)
    np.testing.assert_allclose(pieces.mean, whole.mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(pieces.std, whole.std, rtol=1e-6)


def test_the_peak_of_a_prediction_is_bounded_by_the_memory(
    fitted: hg.Posterior, monkeypatch: pytest.MonkeyPatch
):
    at = hg.Points(np.random.default_rng(2).uniform(size=(60_000, 2)))

    def peak() -> int:
        tracemalloc.start()
        fitted.predict(at, std="vecchia", progress=False)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    whole = peak()
    limited(monkeypatch, 50e6)  # a quarter of it for what is computed
    assert peak() < 20e6 < whole


def test_trend_columns_of_many_places_go_with_them(monkeypatch: pytest.MonkeyPatch):
    gp = hg.GP(KERNEL, hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=16), trend=X[:, 2:3])
    post = gp.condition(data(2), progress=False)
    at, own = hg.Points(X[:40, :2]), X[:40, 2:3]
    whole = post.predict(at, columns=own, progress=False)
    monkeypatch.setattr(estimates, "LEAST_PLACES", 7)
    limited(monkeypatch, 100_000)
    pieces = post.predict(at, columns=own, progress=False)
    np.testing.assert_allclose(pieces.mean, whole.mean, rtol=1e-10)
    with pytest.raises(ValueError, match=r"^columns: expected shape \(40, 1\)"):
        post.predict(at, columns=own[:30], progress=False)


def test_a_control_group_limits_the_memory(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "memory.max").write_text("1048576\n")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_control_groups", lambda: [("", "/some/group")])
    assert memory._host_bytes() == 2**20
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._host_bytes() > 2**20
