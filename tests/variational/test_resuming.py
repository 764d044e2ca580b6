"""Mini-batch fits that were stopped go on to the same numbers, bit for bit, from any of their stages."""

import jax
import numpy as np
import pytest

from hipgp.model.data import observe
from hipgp.model.functionals import Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Matern32
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend
from hipgp.variational import engine, resuming
from hipgp.variational.engine import Variational

pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, 30)
DATA = observe(Points(X), np.sin(9 * X) + 0.1 * RNG.normal(size=30), noise=0.1)
GRID = Grid.cover(0.0, 1.0, shape=16)
LONG = Matern32(1.0, 0.5)  # needs a larger torus than one of 0.02
COMMON = {"block_shape": 4, "batch_size": 8, "epochs": 3, "direct": False}
MANNERS = {
    "natural gradients": {"step": 0.3},
    "dual ascent": {},
    "learning": {"step": 0.3, "learn": True, "weights": "local", "learning_rate": 0.2},
}
WRITES = {
    "natural gradients": 16,
    "dual ascent": 16,
    "learning": 32,
}  # minibatches: (3 or 7) epochs of 4, and the last pass


class Stopped(Exception):
    """The power is cut."""


def fitted(manner, path=None, kernel=Matern32(1.0, 0.2)):  # noqa: B008 (immutable)
    method = Variational("block", **COMMON, **MANNERS[manner])
    return method.condition(Problem(kernel, GRID, DATA, None, Trend(None)), False, path)


def parts(post):
    facts = post.diagnostics
    traces = [
        facts["elbo_trace"],
        facts.get("learning_trace", []),
        facts["elbo"],
        facts["pcg_iterations_mean"],
    ]
    return [np.asarray(a) for a in jax.tree.leaves((post.q, post.kernel, traces))]


def cut(monkeypatch, after):
    """Every minibatch is written, and the process ends after so many of them."""
    writes, whole = [], resuming.write_arrays

    def write(*args, **arrays):
        whole(*args, **arrays)
        writes.append(args)
        if len(writes) == after:
            raise Stopped

    monkeypatch.setattr(resuming, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(resuming, "write_arrays", write)
    return writes


@pytest.mark.parametrize("manner", MANNERS)
def test_a_stopped_fit_ends_as_one_that_was_not(manner, tmp_path, monkeypatch):
    """Stopped within an epoch, at the end of one, and in the last pass; each time by another process, as it were."""
    monkeypatch.setattr("hipgp.variational.engine.are_stored", lambda *_: False)
    whole = parts(fitted(manner))
    path, count = tmp_path / "fit.npz", WRITES[manner]
    for after in (2, 6, count - 9, count - 1):
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            cut(patch, after)
            fitted(manner, path)
        with monkeypatch.context() as patch:
            writes = cut(patch, 0)
            found = parts(fitted(manner, path))
        assert len(writes) == count - after  # no minibatch was done again
        assert all(np.array_equal(a, b) for a, b in zip(found, whole, strict=True))
        assert not path.exists()


def test_a_kernel_that_outgrows_its_torus_is_learned_on(tmp_path, monkeypatch):
    """q has another shape then, and so has its state in the file. Here the first torus is the one of a short kernel."""
    usual, asked = engine.whiten, []

    def first_short(kernel, grid, kind):
        asked.append(kernel)
        return usual(Matern32(1.0, 0.02) if len(asked) == 1 else kernel, grid, kind)

    monkeypatch.setattr(engine, "whiten", first_short)
    monkeypatch.setattr("hipgp.variational.hyperparameters._outgrown", lambda *_: True)
    whole, path = parts(fitted("learning", None, LONG)), tmp_path / "fit.npz"
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        cut(patch, 6)
        asked.clear()
        fitted("learning", path, LONG)
    asked.clear()
    assert all(
        np.array_equal(a, b) for a, b in zip(parts(fitted("learning", path, LONG)), whole, strict=True)
    )


@pytest.mark.parametrize("fault", ["another problem", "damaged", "another shape"])
def test_a_file_that_does_not_fit_is_refused(fault, tmp_path, monkeypatch):
    path = tmp_path / "fit.npz"
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        cut(patch, 2)
        fitted("dual ascent", path)
    kernel, words = Matern32(1.0, 0.2), "another problem"
    if fault == "another problem":
        kernel = Matern32(1.0, 0.21)
    elif fault == "damaged":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
        words = "is not a hipgp checkpoint"
    else:
        read = resuming.read_arrays
        shorter = lambda *given: {k: a[:0] if k == "state 1" else a for k, a in (read(*given) or {}).items()}
        monkeypatch.setattr(resuming, "read_arrays", shorter)
        words = r"expected \w+ of shape .* remove it or name another file"
    with pytest.raises(ValueError, match=words):
        fitted("dual ascent", path, kernel)
