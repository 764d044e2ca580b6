"""Observations: mixtures, noise, dtype, and what lies outside the grid."""

import numpy as np
import pytest

from hipgp.model.data import check_differentiable, check_inside, observe
from hipgp.model.functionals import BoxAverages, Derivatives, LineIntegrals, Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Gneiting, Matern12, Matern32

X = np.linspace(0.0, 1.0, 4)
GRID = Grid(0.0, 0.25, (5, 5))


def test_mixtures_keep_their_order():
    data = observe(Points(X), [1.0, 2.0, 3.0, 4.0], 0.1) + observe(Derivatives(X[:2]), [5.0, 6.0], [0.2, 0.3])
    data = data + observe(LineIntegrals([[0.0]], [[1.0]]), [7.0])
    assert (len(data), data.ndim, data.derivative) == (7, 1, True)
    np.testing.assert_array_equal(data.y, np.arange(1.0, 8.0))
    np.testing.assert_array_equal(data.noise_known, [True] * 6 + [False])
    np.testing.assert_array_equal(data.noise_std(9.0), [0.1] * 4 + [0.2, 0.3, 9.0])
    nodes = data.nodes(0.5)
    assert nodes.x.shape[0] == 7
    np.testing.assert_array_equal(nodes.value, [1, 1, 1, 1, 0, 0, 1])
    np.testing.assert_array_equal(nodes.direction[:, 0], [0, 0, 0, 0, 1, 1, 0])
    np.testing.assert_allclose(np.sum(nodes.weights, axis=1), 1.0, rtol=1e-15)


def test_unknown_noise_must_be_said_or_learned():
    with pytest.raises(
        ValueError, match=r"noise: expected .* got observe\(\.\.\., noise=None\) .* gp\.learn"
    ):
        observe(Points(X), X).noise_std(None)
    np.testing.assert_array_equal(observe(Points(X), X, 0.5).noise_std(None), 0.5)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (np.float32, np.float32, np.float32),
        (np.float32, np.float64, np.float64),
        (np.float64, np.float32, np.float64),
    ],
)
def test_one_float64_makes_all_float64(x, y, expected):
    data = observe(Points(X.astype(x)), X.astype(y), 0.1)
    assert data.dtype == expected
    assert data.noise_std(None).dtype == y  # the noise goes with the values


def test_integers_are_converted():
    data = observe(Points(np.arange(4)), [0, 1, 2, 3], 1)
    assert data.dtype == data.y.dtype == np.float64


INSIDE = [
    Points([[0.0, 0.0], [1.0, 1.0]]),
    LineIntegrals([0.0, 1.0], [[1.0, 0.0]]),
    BoxAverages([0.0, 0.0], [1.0, 1.0]),
]


@pytest.mark.parametrize("functional", INSIDE, ids=lambda f: type(f).__name__)
def test_the_edge_is_inside(functional):
    check_inside(functional, GRID)


@pytest.mark.parametrize(
    ("functional", "words"),
    [
        (
            Points([[0.5, 0.5], [0.5, 1.25], [-3.0, 0.5]]),
            r"2 of 3 Points .*first: number 1; farthest: number 2, by 3\)",
        ),
        (
            LineIntegrals([0.5, 0.5], [[0.6, 0.6], [0.5, 2.0]]),
            r"1 of 2 LineIntegrals .* farthest: number 1, by 1\)",
        ),
        (BoxAverages([[0.5, -0.5]], [[0.6, 0.6]]), r"1 of 1 BoxAverages .* by 0\.5\)"),
    ],
)
def test_outside_says_which_and_how_far_and_what_to_do(functional, words):
    with pytest.raises(ValueError, match=words) as error:
        check_inside(functional, GRID)
    lower, upper = eval(str(error.value).split("Grid.cover(")[1].split(", ...")[0])
    check_inside(functional, Grid.cover(lower, upper, shape=5))  # the advice works as printed


def test_a_rough_kernel_refuses_derivatives():
    slopes = observe(Derivatives(X), X, 0.1)
    check_differentiable(Matern32().differentiable, slopes)
    check_differentiable(Matern12().differentiable, observe(Points(X), X, 0.1))
    for kernel in (Matern12(), Gneiting(), Matern32() + Matern12()):
        with pytest.raises(ValueError, match=r"kernel: expected .* derivative .* got"):
            check_differentiable(kernel.differentiable, slopes)
