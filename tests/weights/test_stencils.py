"""Local weights of many functionals: in pieces, merged on the host or on the device, some residual variances for all."""

import jax
import numpy as np
import pytest
from test_weights import GRIDS, KERNEL, every_dimension

from hipgp.model import kernels as hk
from hipgp.model.data import observe
from hipgp.model.functionals import BoxAverages, Derivatives, Functionals, LineIntegrals, Points
from hipgp.model.grid import Grid
from hipgp.weights import residual_variance, stencils

KERNEL_2D = hk.Matern32(1.0, 0.2)


def test_pieces_hold_no_more_nodes_than_asked_for():
    """Boxes that are wide and boxes that are high would need a rule for both, were they put together."""
    rng = np.random.default_rng(0)
    wide, high = rng.uniform(0.3, 0.5, (2, 30, 2)) * [[[1.0, 0.02]], [[0.02, 1.0]]]
    lower = rng.uniform(0, 0.5, (60, 2))
    for functional in (
        BoxAverages(lower, lower + np.concatenate([wide, high])),
        LineIntegrals(lower, lower + np.concatenate([wide, high])),
        LineIntegrals(lower, lower + wide[0], rule="monte-carlo"),
        Points(lower),
    ):
        pieces = list(functional.pieces(0.01, 500))
        np.testing.assert_array_equal(np.sort(np.concatenate(pieces)), np.arange(60))
        for rows in pieces:
            assert len(rows) * functional.nodes_of(rows, 0.01).x.shape[1] <= 1000
        assert len(pieces) < 60


@pytest.mark.parametrize("where", ["host", "device"])
def test_pieces_make_the_same_weights(monkeypatch, where):
    """However the nodes are cut up, and with lines and boxes of more nodes than a piece has."""
    rng, grid = np.random.default_rng(11), Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(60, 60))
    x, ends = rng.uniform(size=(200, 2)), rng.uniform(size=(20, 2))
    lines = [LineIntegrals((0.0, 0.0), ends, nodes_per_ray=n) for n in (8, 100)]
    lines.append(LineIntegrals((0.0, 0.0), ends, rule="monte-carlo", nodes_per_ray=7))
    wide, high = np.stack([ends * (0.2, 0.02), ends * (0.02, 0.2)])
    upper = 0.5 * x[:40] + np.concatenate([wide, high]) + 0.01
    boxes = BoxAverages(0.5 * x[:40], upper, nodes_per_box=100)
    functionals = (Points(x), Derivatives(x, direction=x), *lines, boxes)
    blocks = [observe(f, np.zeros(len(f))) for f in functionals]
    data = sum(blocks[1:], start=blocks[0])
    whole = stencils.local_weight_rows(hk.Matern32(1.0, 0.2), grid, data.functionals)
    monkeypatch.setattr(stencils, "NODE_CHUNK", 64)
    if where == "device":
        monkeypatch.setattr(
            stencils,
            "_merging_functions",
            lambda: (stencils._merged_rows_on_device, stencils.concatenate_on_device),
        )
    parts = stencils.local_weight_rows(hk.Matern32(1.0, 0.2), grid, data.functionals)
    np.testing.assert_allclose(parts.matrix.toarray(), whole.matrix.toarray(), atol=1e-12)
    np.testing.assert_allclose(parts.residual, whole.residual, atol=1e-12)


def test_weights_of_pieces_on_the_device_make_the_same_products(monkeypatch):
    """From the pieces to both products, as a GPU has them, rows of many lengths in another order than they are asked for."""
    rng, grid = np.random.default_rng(4), Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(30, 20))
    rays = LineIntegrals((0.0, 0.0), rng.uniform(size=(50, 2)), nodes_per_ray=30)
    data = observe(rays, np.zeros(50))
    truth = stencils.local_weight_rows(KERNEL_2D, grid, data.functionals).matrix.toarray()
    monkeypatch.setattr(stencils, "NODE_CHUNK", 64)
    monkeypatch.setattr(
        stencils,
        "_merging_functions",
        lambda: (stencils._merged_rows_on_device, stencils.concatenate_on_device),
    )
    monkeypatch.setattr("hipgp.linalg.sparse.on_cpu", lambda: False)
    with jax.enable_x64(True):
        rows = stencils.local_weight_rows(KERNEL_2D, grid, data.functionals)
        assert not rows.csr.on_host
        weights = stencils.LocalWeights.from_rows(rows, np.float64)
        u, a = rng.normal(size=(2, 600)), rng.normal(size=(2, 50))
        np.testing.assert_allclose(weights.matmul(u), u @ truth.T, atol=1e-12)
        np.testing.assert_allclose(weights.transpose_matmul(a), a @ truth, atol=1e-12)


@every_dimension
def test_nodes_are_merged_on_the_device_as_on_the_host(dimension):
    """Rows of nodes that see the same grid points, one of them padding; with and without derivatives."""
    rng, grid = np.random.default_rng(5), GRIDS[dimension]
    positions, shares = rng.uniform(size=(9, 11, dimension)) * grid.upper, rng.normal(size=(9, 11))
    rows, ends = np.array([7, 2, 3, 0, 8, 5, 1]), positions[:, :2].swapaxes(0, 1)
    for functional in (
        Functionals(positions, shares),
        Functionals(positions, shares, direction=rng.normal(size=(9, dimension))),
        LineIntegrals(*ends, nodes_per_ray=11),
        LineIntegrals(*ends, average=True, nodes_per_ray=20),
    ):
        with jax.enable_x64(True):
            (_, here), v = stencils._merged_rows_on_host(KERNEL, grid, functional, 2, rows, 64)
            part, w = stencils._merged_rows_on_device(KERNEL, grid, functional, 2, rows, 64)
            there = stencils.concatenate_on_device([part], 9, grid.size).to_scipy()[rows]
        assert here.nnz < 77 * 2**dimension
        np.testing.assert_array_equal(there.indices, here.indices)
        np.testing.assert_array_equal(there.indptr, here.indptr)
        np.testing.assert_allclose(there.data, here.data, rtol=0, atol=1e-13 * np.max(np.abs(here.data)))
        np.testing.assert_allclose(w, v, rtol=0, atol=1e-14)


def test_numpy_and_jax_place_nodes_alike():
    """On grid lines, where rounding decides on the cell."""
    for grid in (
        Grid.cover((0.0, 0.0), (7.0, 1.0), shape=(50, 6)),
        Grid((0.3, -2.0), (0.1, 1 / 7), (40, 30)),
    ):
        x = grid.coordinates()
        rows = stencils.local_weight_rows(hk.Matern12(1.0, 0.2), grid, [Points(x)]).matrix
        np.testing.assert_array_equal(
            stencils.locate_stencils(grid, x, 4)[0], rows.indices.reshape(len(x), -1)[:, 0]
        )


def test_residual_variances_past_the_budget_are_interpolated(monkeypatch):
    """Rays of many lengths, half of them in other units: v is right in the mean, at an eighteenth of the cost.

    One ray may be off by what its lie among the grid points makes of it, 7% here; interpolating v itself gave 19%.
    """
    rng, grid = np.random.default_rng(3), Grid(0.0, 1.0, (30, 30))
    start, end = rng.uniform(0, 29, (2, 600, 2))
    nodes = LineIntegrals(start, end, nodes_per_ray=24).nodes(1.0)
    scale = np.where(np.arange(600) % 2, 1.0, 1e3)
    data = observe(Functionals(nodes.x, nodes.weights * scale[:, None]), np.zeros(600), 0.1)
    kernel = hk.Matern32(1.0, 3.0)
    whole = stencils.local_weight_rows(kernel, grid, data.functionals).residual / scale**2
    calls = []
    residuals = residual_variance._residual_variances
    monkeypatch.setattr(residual_variance, "_residual_variances", lambda *a: calls.append(1) or residuals(*a))
    monkeypatch.setattr(residual_variance, "PAIR_BUDGET", 1e6)
    fast = stencils.local_weight_rows(kernel, grid, data.functionals).residual / scale**2
    assert len(calls) == 1  # one batch of 512 in place of two
    ratio = fast / whole
    assert 0 < np.sum(ratio != 1) < 600 and np.sum(np.abs(ratio - 1) < 1e-12) < 200
    assert np.mean(fast) == pytest.approx(np.mean(whole), rel=0.05)
    assert np.sum(np.abs(fast - whole)) < 0.1 * np.sum(whole)
    for part in (scale == 1.0, scale > 1.0):
        assert np.mean(ratio[part]) == pytest.approx(1.0, abs=0.1)
