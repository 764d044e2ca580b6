"""Grids: coordinates, cells, cover, and what they refuse (bad input is in test_bad_input.py)."""

import itertools

import numpy as np
import pytest

from hipgp.model.grid import Grid

GRIDS = {
    1: Grid(-1.0, 0.25, 9),
    2: Grid((0.0, 5.0), (0.5, 2.0), (4, 3)),
    3: Grid((0.0, -1.0, 2.0), (1.0, 0.1, 0.3), (2, 5, 3)),
    4: Grid(0.0, (1.0, 2.0, 3.0, 4.0), (2, 3, 2, 3)),
}
every_grid = pytest.mark.parametrize("grid", GRIDS.values(), ids=[f"{d}-D" for d in GRIDS])


@every_grid
def test_coordinates_run_in_c_order(grid):
    x = grid.coordinates()
    assert x.shape == (grid.size, grid.ndim)
    for flat, index in enumerate(itertools.product(*[range(n) for n in grid.shape])):
        expected = [o + i * h for o, i, h in zip(grid.origin, index, grid.spacing, strict=True)]
        np.testing.assert_allclose(x[flat], expected, rtol=1e-15)
    np.testing.assert_array_equal(x[0], grid.lower)
    np.testing.assert_allclose(x[-1], grid.upper, rtol=1e-15)
    np.testing.assert_array_equal(np.stack(np.meshgrid(*grid.axes, indexing="ij"), -1).reshape(x.shape), x)


@every_grid
def test_cells_hold_their_places(grid):
    """corner + within gives the place back; corners always have a neighbour above; grid points are whole."""
    low, high = np.array(grid.lower), np.array(grid.upper)
    x = np.concatenate([np.random.default_rng(0).uniform(low, high, (50, grid.ndim)), grid.coordinates()])
    corner, within = grid.cells(x)
    assert np.all((corner >= 0) & (corner <= np.array(grid.shape) - 2))
    assert np.all((within > -1e-12) & (within < 1 + 1e-12))  # rounding of one division
    np.testing.assert_allclose(low + (corner + within) * grid.spacing, x, rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(grid.outside(x), 0.0)


def test_outside_says_how_far():
    grid = GRIDS[2]  # [0, 1.5] x [5, 9]
    x = np.array([[-0.25, 6.0], [1.0, 9.5], [2.5, 4.5], [1.5, 9.0]])
    np.testing.assert_allclose(grid.outside(x), [0.25, 0.5, 1.0, 0.0])
    # coordinates that were rounded to float32 on the very edge are inside; a thousandth of a cell is not
    odd = Grid(0.1, 0.1, 8)
    assert odd.outside(np.float32([[0.8], [0.1]])).max() == 0.0
    assert odd.outside(np.array([[0.8 + 1e-4]]))[0] == pytest.approx(1e-4)


def test_cover_by_shape_puts_the_outermost_points_on_the_box():
    grid = Grid.cover((0, -2), (4, 2), shape=(5, 9))
    assert (grid.lower, grid.upper, grid.shape) == ((0.0, -2.0), (4.0, 2.0), (5, 9))
    assert Grid.cover((0, -2), (4, 2), shape=5).shape == (5, 5)
    wide = Grid.cover(0.0, 1.0, shape=11, margin=0.5)
    np.testing.assert_allclose([wide.lower[0], wide.upper[0]], [-0.5, 1.5])


@pytest.mark.parametrize("spacing", [0.1, 0.3, 1.0, 7.0])
def test_cover_by_spacing_rounds_up_and_centres(spacing):
    lower, upper = np.array([0.2, -1.0]), np.array([1.2, 5.0])
    grid = Grid.cover(lower, upper, spacing=spacing, margin=(0.0, 0.5))
    low, high = np.array(grid.lower), np.array(grid.upper)
    below, above = lower - (0.0, 0.5) - low, high - upper - (0.0, 0.5)
    assert grid.spacing == (spacing, spacing)
    assert np.all(
        below > -1e-8 * spacing
    )  # a box of whole cells gains none by rounding, so 1e-9 cells are forgiven
    assert np.all(below + above < spacing)
    np.testing.assert_allclose(below, above, rtol=0, atol=1e-12)


def test_whole_cells_stay_whole():
    """0.3 / 0.1 is not 3 in floating point; the grid still has 4 points and not 5."""
    assert Grid.cover(0.0, 0.3, spacing=0.1).shape == (4,)


def test_integers_are_converted_and_grids_compare():
    grid = Grid(0, 1, [3, 4])
    assert grid == Grid((0.0, 0.0), (1.0, 1.0), (3, 4))
    assert isinstance(grid.origin[0], float)
    assert isinstance(Grid(0, 1, np.array([3, 4])).shape[0], int)


def test_a_grid_too_large_names_its_memory():
    with pytest.raises(ValueError, match=r"shape: expected at most .* points, got 100000 x 100000 .* GiB"):
        Grid(0.0, 1.0, (100_000, 100_000))
    with pytest.raises(ValueError, match=r"shape: .* GiB .* larger spacing"):
        Grid.cover((0.0, 0.0), (1.0, 1.0), spacing=1e-320)
