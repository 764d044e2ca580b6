"""Fisher scoring: Newton steps with the Fisher information in place of second derivatives, within bounds.

The variables are logarithms of parameters. The information is positive semidefinite everywhere, comes with each
evaluation, and is the inverse covariance of the estimates, so that steps are good far from the optimum and along the
ridge between a variance and its lengthscale. BFGS updates correct it where the data deviate from the model.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hipgp.engines import Slope
from hipgp.learning.parameters import Bounds, Evaluation

FLATTEST = 1e-8  # least eigenvalue of the second derivatives, relative to the largest
LEAST_CURVED = 0.2  # least curvature along a step, relative to the expected one, in Powell's damping
REMEMBERED = 6  # steps whose BFGS updates are kept
NEAR = 30.0  # BFGS updates start when the predicted decrease is below this multiple of `enough`
FIRST_RADIUS, LARGEST_RADIUS = 1.0, 3.0  # trust region, in each parameter's logarithm
REACH = 3.0  # predicted decreases that a descent may still gain beyond the next step
BOUND_STEPS = 8  # evaluations of the exact bound at most, after the first
WORTHWHILE = 0.3  # nats: least predicted increase for a step on the exact bound

Report = Callable[[np.ndarray, float], None]
Vector = Float[np.ndarray, " q"]


class Model(NamedTuple):
    """An approximation of the second derivatives: the information with BFGS updates from the steps taken."""

    information: Float[np.ndarray, "q q"]
    steps: tuple[
        tuple[Vector, Vector], ...
    ] = ()  # the last steps, and the changes of the gradient along them

    def after(self, step: Vector, change: Vector) -> "Model":
        """Add a step and the change of the gradient along it."""
        return self._replace(steps=(*self.steps, (step, change))[-REMEMBERED:])

    def hessian(self) -> Float[np.ndarray, "q q"]:
        """The approximate second derivatives, made positive definite."""
        values, vectors = np.linalg.eigh(self.information)
        found = (vectors * np.maximum(values, FLATTEST * np.max(np.abs(values), initial=1e-300))) @ vectors.T
        for s, y in self.steps:
            product = found @ s
            expected, change = s @ product, s @ y
            if change < LEAST_CURVED * expected:  # not convex, or far from quadratic: Powell's damping
                share = (1 - LEAST_CURVED) * expected / (expected - change)
                y = share * y + (1 - share) * product
            found = found + np.outer(y, y) / (y @ s) - np.outer(product, product) / expected
        return found

    def step(self, vector: Vector, gradient: Vector, box: Bounds, radius: float) -> tuple[Vector, float]:
        """The best step of the quadratic model within the bounds and `radius`, and the predicted decrease."""
        from scipy.optimize import lsq_linear

        hessian = self.hessian()
        scale = 1 / np.sqrt(np.diag(hessian))
        values, vectors = np.linalg.eigh(hessian * scale[:, None] * scale)
        root = np.sqrt(np.maximum(values, FLATTEST * values[-1]))
        lower, upper = np.maximum(box.lower - vector, -radius), np.minimum(box.upper - vector, radius)
        limits = np.minimum(lower, 0.0) / scale, np.maximum(upper, 0.0) / scale + 1e-300
        target = -(vectors.T @ (gradient * scale)) / root
        step = scale * lsq_linear(root[:, None] * vectors.T, target, limits, method="bvls").x
        return step, float(-gradient @ step - 0.5 * step @ hessian @ step)


def descend(
    vector: Vector,
    evaluate: Callable[[Vector], Evaluation],
    box: Bounds,
    most: int,
    enough: float,
    report: Report,
    rival: float = np.inf,
) -> tuple[Vector, Evaluation]:
    """Minimise by trust-region steps.

    Ends after `most` steps, when the predicted decrease falls below `enough`, in units of the value, or when the value is
    not going to fall below that of a `rival`: when REACH times the predicted decrease does not get there.
    """
    vector = box.clip(vector)
    here = evaluate(vector)
    report(vector, here.value)
    model, radius = Model(here.information), FIRST_RADIUS
    for _ in range(most if here.finite else 0):
        step, promised = model.step(vector, here.gradient, box, radius)
        if promised < enough or here.value - REACH * promised > rival:
            break
        there = evaluate(box.clip(vector + step))
        report(vector + step, there.value)
        gained = here.value - there.value if there.finite else -np.inf
        radius = _next_radius(radius, step, gained / promised, 2.0)
        if there.finite and promised < NEAR * enough:
            model = model.after(step, there.gradient - here.gradient)
        if gained > 0:
            vector, here = box.clip(vector + step), there
            model = model._replace(information=here.information)
    return vector, here


def climb(
    vector: Vector,
    slope: Callable[[Vector], Slope],
    model: Model,
    box: Bounds,
    count: int,
    report: Report,
    here: Slope | None = None,
) -> tuple[Vector, float]:
    """Maximise the log evidence of `count` observations by trust-region steps while they are predicted to be worthwhile.

    `here` is the slope at `vector`, where that is known.
    """
    if here is None:
        here = slope(vector)
        report(vector, -here.evidence.value / count)
    radius = FIRST_RADIUS
    for _ in range(BOUND_STEPS):
        step, promised = model.step(vector, -here.gradient.values / count, box, radius)
        if promised * count < WORTHWHILE:
            break
        trial = box.clip(vector + step)
        there = slope(trial)
        report(trial, -there.evidence.value / count)
        if not np.all(np.isfinite([there.evidence.value, *there.gradient.values])):
            radius *= 0.3
            continue
        gained = there.evidence.value - here.evidence.value
        model = model.after(step, (here.gradient.values - there.gradient.values) / count)
        radius = _next_radius(radius, step, gained / (promised * count), 3.0)
        if gained > -there.evidence.error:
            vector, here = trial, there
    return vector, -here.evidence.value / count


def _next_radius(radius: float, step: Vector, ratio: float, growth: float) -> float:
    """The radius of the trust region after a step, by the ratio of the gain to the predicted one."""
    size = float(np.max(np.abs(step)))
    if ratio > 0.75 and size > 0.9 * radius:
        return min(growth * radius, LARGEST_RADIUS)
    return 0.3 * size if ratio < 0.25 else radius


def uncertainty(
    information: Float[np.ndarray, "q q"], count: int, fixed: np.ndarray
) -> Float[np.ndarray, "q q"]:
    """The covariance of the log-parameters from `count` observations with this information each.

    For the others, parameters on a bound count as known; they themselves get infinite variance and zero covariances, and
    so do parameters along directions that the data do not determine.
    """
    out, free = np.diag(np.full(len(fixed), np.inf)), np.flatnonzero(~fixed)
    if len(free) and np.all(np.isfinite(information)):
        values, vectors = np.linalg.eigh(information[np.ix_(free, free)])
        flat = values <= 1e-14 * values[-1]
        known = np.sum(vectors[:, flat] ** 2, axis=1) <= 0.1
        covariance = (vectors[:, ~flat] / (count * values[~flat])) @ vectors[:, ~flat].T
        out[np.ix_(free[known], free[known])] = covariance[np.ix_(known, known)]
    return out
