"""Ways to the best parameters: L-BFGS from afar, Newton's steps along the ridges near them, and how sure they are.

All work on a vector of log-parameters within bounds; what they return is the negative log-likelihood per observation.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hipgp.engines import Slope
from hipgp.learning.likelihood import Terms, value_and_gradient
from hipgp.learning.parameters import Bounds, Layout

NEWTON_STEPS = 10
BOUND_STEPS = 5
WORTHWHILE = 0.3  # nats: what a step on the bound must promise
FLATTEST = 1e-4  # no direction is taken to be flatter than this share of the steepest
CURVED_BY = 8_192  # observations that the curvature is taken from

Report = Callable[[np.ndarray, float], None]


def descend(
    vector: np.ndarray,
    layout: Layout,
    terms: Terms,
    box: Bounds,
    iterations: int,
    report: Report,
) -> tuple[np.ndarray, float]:
    """L-BFGS within the bounds; a point where the likelihood is not finite counts as very bad."""
    from scipy.optimize import minimize

    def evaluate(v: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(v, layout, terms)
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            return 1e10, np.zeros_like(v)
        report(v, value)
        return value, gradient

    options = {"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 1e-9, "gtol": 1e-6}
    limits = list(zip(box.lower, box.upper, strict=True))
    found = minimize(evaluate, box.clip(vector), jac=True, method="L-BFGS-B", bounds=limits, options=options)
    return np.asarray(found.x), float(found.fun)


def _curvature(vector: np.ndarray, layout: Layout, terms: Terms, free: np.ndarray) -> np.ndarray:
    """The likelihood's second derivatives in the free parameters, by differences of its gradient."""
    step = 1e-3
    gradient = lambda v: value_and_gradient(v, layout, terms)[1][free]
    rows = [
        (gradient(vector + e) - gradient(vector - e)) / (2 * step) for e in step * np.eye(len(vector))[free]
    ]
    return (np.array(rows) + np.array(rows).T) / 2 if rows else np.zeros((0, 0))


class Curved(NamedTuple):
    """Second derivatives in the free parameters, positive definite."""

    free: np.ndarray
    hessian: np.ndarray

    def step(self, gradient: np.ndarray) -> np.ndarray:
        """Newton's, in all parameters; none more than doubles at once."""
        step = np.zeros(len(gradient))
        step[self.free] = -np.linalg.solve(self.hessian, gradient[self.free])
        return step * min(1.0, 0.7 / max(np.max(np.abs(step)), 1e-300))

    def corrected(self, step: np.ndarray, change: np.ndarray) -> "Curved":
        """With what a step told of them: the gradient's `change` along it (BFGS)."""
        s, y = step[self.free], change[self.free]
        if not s @ y > 1e-3 * np.linalg.norm(s) * np.linalg.norm(y):
            return self
        seen = self.hessian @ s
        return Curved(self.free, self.hessian + np.outer(y, y) / (y @ s) - np.outer(seen, seen) / (s @ seen))


def curved_at(vector: np.ndarray, layout: Layout, terms: Terms, box: Bounds) -> Curved | None:
    """The curvature of a part of the data; None where there is none to speak of."""
    free = np.flatnonzero(~box.touching(vector))
    curvature = _curvature(vector, layout, terms.some(CURVED_BY), free)
    if len(free) == 0 or not np.all(np.isfinite(curvature)):
        return None
    values, vectors = np.linalg.eigh(curvature)
    values = np.maximum(np.abs(values), FLATTEST * np.max(np.abs(values)))
    return Curved(free, (vectors * values) @ vectors.T)


def newton(
    vector: np.ndarray,
    layout: Layout,
    terms: Terms,
    box: Bounds,
    enough: float,
    report: Report,
) -> tuple[np.ndarray, float]:
    """Newton steps on all the data with the curvature of a part of them: along the ridge between a variance and its
    lengthscale, where L-BFGS creeps, these take a handful of evaluations. Ends when less than `enough` nats are to gain.
    """
    curved = curved_at(vector, layout, terms, box)
    if curved is None:
        return descend(vector, layout, terms, box, NEWTON_STEPS, report)
    value, gradient = value_and_gradient(vector, layout, terms)
    for _ in range(NEWTON_STEPS):
        step = curved.step(gradient)
        if -0.5 * float(step @ gradient) * float(terms.count) < enough:
            break
        for shrink in (1.0, 0.3, 0.1):
            trial = box.clip(vector + shrink * step)
            found, slope = value_and_gradient(trial, layout, terms)
            report(trial, found)
            if found < value:
                break
        else:
            break
        curved = curved.corrected(trial - vector, slope - gradient)
        vector, value, gradient = trial, found, slope
    return vector, float(value)


def climb(
    vector: np.ndarray,
    slope: Callable[[np.ndarray], Slope],
    curved: Curved | None,
    box: Bounds,
    count: int,
    report: Report,
) -> tuple[np.ndarray, float]:
    """Newton steps on the log-evidence of `count` observations while they promise anything, and keep it."""
    here = slope(vector)
    report(vector, -here.evidence.value / count)
    for _ in range(BOUND_STEPS):
        if curved is None:
            break
        trial = box.clip(vector + curved.step(-here.gradient.values / count))
        if not 0.5 * float((trial - vector) @ here.gradient.values) > WORTHWHILE:
            break
        there = slope(trial)
        report(trial, -there.evidence.value / count)
        kept = there.evidence.value > here.evidence.value - there.evidence.error
        if not kept or not np.all(np.isfinite(there.gradient.values)):
            break
        curved = curved.corrected(trial - vector, (here.gradient.values - there.gradient.values) / count)
        vector, here = trial, there
    return vector, -here.evidence.value / count


def uncertainty(
    vector: np.ndarray, layout: Layout, terms: Terms, total: int, fixed: np.ndarray
) -> np.ndarray:
    """Standard deviations of the log-parameters from the likelihood's curvature.

    Parameters on a bound have none, and count as known in those of the others. The curvature is that of some of the
    data, but for its flattest direction, where these tell nothing: all of them are asked there.
    """
    free = np.flatnonzero(~fixed)
    curvature = _curvature(vector, layout, terms.some(CURVED_BY), free)
    out = np.full(len(vector), np.inf)
    if len(free) and np.all(np.isfinite(curvature)):
        values, vectors = np.linalg.eigh(curvature)
        along = np.zeros(len(vector))
        along[free] = 0.3 * vectors[:, 0]
        slope = lambda v: value_and_gradient(v, layout, terms)[1]
        values[0] = (slope(vector + along) - slope(vector - along)) @ along / (2 * 0.3**2)
        flat = values <= 0  # directions that the data leave open
        variance = vectors[:, ~flat] ** 2 @ (1 / (total * values[~flat]))
        out[free] = np.where(np.sum(vectors[:, flat] ** 2, axis=1) > 0.1, np.inf, np.sqrt(variance))
    return out
