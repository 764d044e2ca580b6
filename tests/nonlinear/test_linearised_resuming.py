"""A fit with a link that was killed goes on from its checkpoint to the same answer."""

import numpy as np
import pytest

import hipgp as hg
from hipgp.nonlinear import resuming

X = np.linspace(0.05, 0.95, 30)
Y = np.random.default_rng(0).poisson(20 * np.exp(2 * np.sin(6 * X))).astype(float)
GRID = hg.Grid.cover(0.0, 1.0, shape=32)
DATA = hg.observe(hg.Points(X), Y, likelihood=hg.Poisson()) + hg.observe(
    hg.LineIntegrals([[0.0]], [[1.0]]), [40.0], 1.0
)
GP = hg.GP(hg.Matern52(1.0, 0.2), GRID, trend="constant", link="exp")


class Killed(BaseException):
    """Stands in for kill -9: nothing catches it."""


def killed_after(monkeypatch, count):
    write, seen = resuming.write_arrays, []

    def write_then_die(*args, **kwargs):
        write(*args, **kwargs)
        seen.append(1)
        if len(seen) == count:
            raise Killed

    monkeypatch.setattr(resuming, "write_arrays", write_then_die)


def test_a_killed_fit_goes_on_to_the_same_answer(monkeypatch, tmp_path):
    path = tmp_path / "rounds.npz"
    whole = GP.condition(DATA, hg.Exact(), progress=False)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(patch, 3)
        GP.condition(DATA, hg.Exact(), progress=False, checkpoint=path)
    with pytest.raises(ValueError, match=r"checkpoint: .* belongs to another problem"):
        hg.GP(hg.Matern52(1.1, 0.2), GRID, trend="constant", link="exp").condition(
            DATA, hg.Exact(), checkpoint=path
        )
    again = GP.condition(DATA, hg.Exact(), progress=False, checkpoint=path)
    np.testing.assert_array_equal(again.mean, whole.mean)
    assert again.diagnostics["trace"] == whole.diagnostics["trace"]
    assert not path.exists()


def test_learning_that_was_killed_goes_on(monkeypatch, tmp_path):
    path = tmp_path / "learning.npz"
    data = hg.observe(hg.Points(X), Y, likelihood=hg.NegativeBinomial())
    gp = hg.GP(hg.Matern52(1.0, 0.2), GRID, trend="constant", link="exp")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(patch, 1)
        gp.learn(data, progress=False, checkpoint=path)
    again, whole = gp.learn(data, progress=False, checkpoint=path), gp.learn(data, progress=False)
    np.testing.assert_allclose(again.kernel.lengthscale, whole.kernel.lengthscale, rtol=1e-6)
    np.testing.assert_allclose(again.kernel.variance, whole.kernel.variance, rtol=1e-6)
    assert again.parameters == pytest.approx(whole.parameters, rel=1e-6)
