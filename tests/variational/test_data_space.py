"""The optimal mean from a solve in data space is that of the solve on the torus, and a fit can be measured against it."""

import numpy as np
import pytest

from hipgp.variational import engine
from hipgp.variational.data_space import NATS, Held
from hipgp.variational.engine import Variational
from variational_problem import GRIDS, gp_problem, kernels, observed


@pytest.fixture(scope="module")
def fit():
    """Every kind of functional in two dimensions, in blocks, with given settings."""
    grid, (kernel, _) = GRIDS[2], kernels(2)
    data, _ = observed(2, noise=0.3)

    def fit(held=None, **settings):
        return Variational("block", (3, 2), **settings).fit(gp_problem(kernel, grid, data), False, held=held)

    return fit


@pytest.mark.parametrize("residual", ["bound", "noise"])
def test_the_mean_is_that_of_the_solve_on_the_torus(fit, residual, monkeypatch):
    torus = fit(residual=residual)
    monkeypatch.setattr(engine, "SMALL", 0)
    found = fit(residual=residual)
    assert found.diagnostics["direct"] and found.diagnostics["mean_gap_nats"] < NATS
    assert found.diagnostics["mean_iterations"] < torus.diagnostics["mean_iterations"]
    off = np.linalg.norm(found.whitened_mean - torus.whitened_mean)
    assert off < np.sqrt(2 * NATS)  # the gap is at least half its square, since Lambda >= I
    np.testing.assert_allclose(found.whitened_covariance, torus.whitened_covariance, rtol=1e-12)
    assert -1e-9 < torus.elbo() - found.elbo() < NATS


def test_the_gap_of_a_short_fit_is_what_the_best_mean_would_gain(fit):
    best, short = fit(), {"direct": False, "batch_size": 15, "epochs": 1}
    held = Held(best.problem.source, None, None, best.q.mean)._replace(solves=engine.NO_SOLVES)
    gap = fit(held, **short).diagnostics["mean_gap_nats"]
    estimated = fit(**short).diagnostics["mean_gap_nats"]
    assert gap > 0.1
    np.testing.assert_allclose(gap, estimated, rtol=1e-6)
