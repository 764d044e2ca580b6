"""Steps on functions whose minimum is known."""

import numpy as np
import pytest

from hipgp.engines import Estimate, Gradient, Slope
from hipgp.learning.parameters import Bounds, Evaluation
from hipgp.learning.scoring import Model, climb, descend, uncertainty
from hipgp.learning.search import DISTINCT, _distinct

HESSIAN = np.array([[4.0, 1.9], [1.9, 1.0]])
BEST = np.array([0.5, -0.3])
WIDE = Bounds(np.full(2, -10.0), np.full(2, 10.0))


def parabola(information):
    def at(v):
        d = v - BEST
        return Evaluation(float(0.5 * d @ HESSIAN @ d), HESSIAN @ d, information)

    return at


def run(at, box=WIDE, start=(1.0, 0.9), enough=1e-12):
    seen = []
    found = descend(np.array(start), at, box, 60, enough, lambda v, value: seen.append((v, value)))
    return *found, seen


def test_with_the_true_second_derivatives_it_takes_one_step_in_reach():
    vector, here, seen = run(parabola(HESSIAN), start=(0.9, -0.9))
    np.testing.assert_allclose(vector, BEST, atol=1e-10)
    assert here.value < 1e-20 and len(seen) == 2


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_a_wrong_information_is_made_good(factor):
    """With 0.4 of the curvature a step goes two and a half times too far: taken as it is, for ever."""
    _, here, seen = run(parabola(factor * HESSIAN), enough=1e-5)
    assert here.value < 1e-5 and len(seen) < 20


def test_values_never_rise_and_bounds_hold():
    """The best point on the box is where its one free parameter has no slope."""
    box = Bounds(np.array([-10.0, 0.0]), np.array([10.0, 10.0]))
    vector, _, seen = run(parabola(HESSIAN), box)
    free = BEST[0] + HESSIAN[0, 1] * BEST[1] / HESSIAN[0, 0]
    np.testing.assert_allclose(vector, [free, 0.0], atol=1e-9)
    assert all(np.all(v >= box.lower - 1e-12) for v, _ in seen)


@pytest.mark.parametrize("rival, steps", [(-1.0, 1), (0.035, 60)], ids=["out of reach", "within reach"])
def test_a_descent_ends_where_it_cannot_reach_a_rival(rival, steps):
    at = parabola(0.4 * HESSIAN)  # promises more than it keeps
    seen = []
    descend(np.array([0.9, -0.9]), at, WIDE, 60, 1e-5, lambda v, value: seen.append(value), rival)
    everything = run(at, start=(0.9, -0.9), enough=1e-5)[2]
    assert len(seen) == (1 if steps == 1 else len(everything))


def test_a_point_without_a_likelihood_is_stepped_back_from():
    def at(v):
        value = parabola(0.1 * HESSIAN)(v)
        return value if v[0] > 0.2 else Evaluation(float("nan"), value.gradient, value.information)

    _, here, _ = run(at, enough=1e-5)
    assert here.finite and here.value < 2e-4


def test_uncertainty_inverts_the_information_of_what_is_free():
    none, inf = np.zeros(2, bool), np.inf
    np.testing.assert_allclose(uncertainty(HESSIAN, 7, none), np.linalg.inv(7 * HESSIAN))
    on_bound = uncertainty(HESSIAN, 7, np.array([False, True]))
    np.testing.assert_allclose(on_bound, [[1 / 28, 0.0], [0.0, inf]])
    flat = np.array([[1.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(uncertainty(flat, 4, none), [[0.25, 0.0], [0.0, inf]])


def test_the_model_learns_the_curvature_along_a_step():
    step = np.array([0.3, -0.1])
    model = Model(np.eye(2)).after(step, HESSIAN @ step)
    np.testing.assert_allclose(model.hessian() @ step, HESSIAN @ step)


def test_a_step_on_the_bound_that_fails_is_followed_by_a_shorter_one():
    """The bound is forty times as curved as the information says, as on data that are no draw of the model."""
    seen = []

    def slope(v):
        d = v - BEST
        gradient = Gradient(("a", "b"), -40 * HESSIAN @ d)
        return Slope(Estimate(float(-20 * d @ HESSIAN @ d), 0.01), gradient)

    start = np.array([0.9, -0.4])
    _, value = climb(start, slope, Model(HESSIAN), WIDE, 1, lambda v, x: seen.append(x))
    assert seen[1] > seen[0]  # the first step fails
    assert value < 0.1 * seen[0] and value == min(seen)


def test_a_known_slope_is_not_computed_again():
    calls = []

    def slope(v):
        calls.append(v)
        return Slope(Estimate(0.0, 0.01), Gradient(("a", "b"), np.zeros(2)))

    here = slope(BEST)
    climb(BEST, slope, Model(HESSIAN), WIDE, 1, lambda v, x: None, here)
    assert len(calls) == 1


def test_results_are_passed_on_where_the_likelihood_tells_them_apart():
    end = parabola(HESSIAN)(BEST)
    far = np.sqrt(2.1 * DISTINCT / HESSIAN[0, 0])
    found = [(BEST + np.array([by * far, 0.0]), end) for by in (0.0, 0.9, 1.0, -1.0)]
    kept = _distinct(found, 2, count=1)
    assert [vector is found[i][0] for i, (vector, _) in zip((0, 2), kept, strict=True)] == [True, True]
    assert len(_distinct(found, 3, count=1)) == 3
    assert len(_distinct(found, 9, count=100)) == 4
