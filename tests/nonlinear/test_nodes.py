"""Many nodes are read off the grid: as the engine's own answers at points, but for the draws' own error."""

import numpy as np
import pytest

import hipgp as hg
from hipgp.nonlinear import posterior, preparing

RNG = np.random.default_rng(1)
GRID = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(24, 24))
GP = hg.GP(hg.Matern52(0.5, 0.4), GRID, trend="constant", link="exp")
ENDS = RNG.uniform(0.05, 0.95, (2, 30, 2))
LINES = hg.LineIntegrals(ENDS[0], ENDS[1])


def truth(x):
    return np.exp(1 + np.sin(4 * x[..., 0]) * x[..., 1])


@pytest.fixture(scope="module")
def posteriors():
    nodes = LINES.nodes(0.01)
    y = np.sum(nodes.weights * truth(nodes.x), axis=1)
    data = hg.observe(LINES, y + 0.05 * RNG.standard_normal(30), 0.05)
    few = GP.condition(data, progress=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "FEW", 0)
        patch.setattr(posterior, "FEW", 0)
        method = hg.Linearised(hg.Batch(), draws=400)
        many = GP.condition(data, method=method, progress=False)
    assert few.engine.reader is None and many.engine.reader is not None
    return few, many


def test_both_come_to_the_same_fixed_point(posteriors):
    few, many = posteriors
    assert few.diagnostics["converged"] and many.diagnostics["converged"]
    a, b = (post.predict(LINES, progress=False) for post in posteriors)
    np.testing.assert_allclose(b.mean, a.mean, atol=0.15 * np.max(a.std))
    np.testing.assert_allclose(b.std, a.std, rtol=0.2)
    at = hg.Points(RNG.uniform(0.2, 0.8, (20, 2)))
    a, b = (post.predict(at, progress=False) for post in posteriors)
    np.testing.assert_allclose(b.mean, a.mean, atol=0.25 * np.max(a.std))


def test_lines_are_not_taken_for_earlier_ones_at_the_same_place_in_memory(posteriors):
    """Nodes of a prediction are freed after it, and those of the next may lie where they were."""
    post = posteriors[1]
    for seed in range(4):
        ends = np.random.default_rng(seed).uniform(0.05, 0.95, (2, 30, 2))
        found = post.predict(hg.LineIntegrals(*ends), progress=False).mean
        alone = hg.LineIntegrals(*ends).nodes(GRID.spacing)
        near = np.sum(alone.weights * truth(alone.x), axis=1)
        assert np.corrcoef(found, near)[0, 1] > 0.9


def test_the_truth_is_within_its_intervals(posteriors):
    x = RNG.uniform(0.1, 0.9, (200, 2))
    found = posteriors[0].predict(hg.Points(x), progress=False)

    def inside(share):
        low, high = found.interval(share)
        return np.mean((truth(x) >= low) & (truth(x) <= high))

    assert inside(0.95) > 0.9 and 0.3 < inside(0.5) < 0.9
