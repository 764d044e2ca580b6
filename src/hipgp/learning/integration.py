"""Kernels in place of one: points with weights that stand for what the data say of kernel and noise.

With theta the logarithms of the parameters, and a prior that is flat in them between the bounds of learning, the
posterior is p(theta | y) ~ p(y | theta). Where the Vecchia likelihood of all the data is cheap, it is explored by adaptive
importance sampling: points from Student's t around what was learned, weights p(y | theta) / q(theta), then points from
distributions that fit these weights, q being the mixture of all that were drawn from. A few of the points, one from
each of as many parts of equal weight, stand for all. Of more data, whose likelihood is all but Gaussian, and of
data that are not Gaussian, the points are those of a normal distribution with mean and covariance of what was learned.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float

from hipgp.learning.learned import Learned, WeightedKernels
from hipgp.learning.likelihood import evaluate
from hipgp.learning.parameters import Bounds
from hipgp.learning.search import Task, in_fixed_order, stages_of
from hipgp.model.data import Data, Observations
from hipgp.model.kernels import Kernel
from hipgp.model.problem import Problem
from hipgp.runtime.precision import float64_available
from hipgp.runtime.threads import one_blas_thread

# Observations up to which the likelihood is explored, at hundreds of points; with more it is all but Gaussian.
EXPLORED = 2**15
POINTS = 32  # kernels that stand for all
DRAWN, ROUNDS = 128, 6  # points of a round of the importance sampling; rounds at most
ENOUGH = 200.0  # effective points, at which it ends
FREEDOM = 4.0  # degrees of freedom of Student's t
# Points a parameter that the next distribution is fitted to: weights are evened out until then.
LEAST_EFFECTIVE = 2.0
WIDER = 1.5  # the covariance of the next distribution, over that of the weighted points

LogDensity = Callable[[Float[np.ndarray, " q"]], float]


class Weighted(NamedTuple):
    """Points with the logarithms of their densities and of their importance weights."""

    points: Float[np.ndarray, "S q"]
    log_densities: Float[np.ndarray, " S"]
    log_weights: Float[np.ndarray, " S"]

    @property
    def weights(self) -> Float[np.ndarray, " S"]:
        return _normalised(self.log_weights)

    @property
    def effective(self) -> float:
        """The effective number of points: that of equal weights with the same variance."""
        return float(1 / np.sum(self.weights**2))


class Student(NamedTuple):
    """Student's t with a location and a scale matrix."""

    location: Float[np.ndarray, " q"]
    root: Float[np.ndarray, "q q"]

    def draws(self, count: int, seed: int) -> Float[np.ndarray, "count q"]:
        """Quasi-random ones, the same for the same seed."""
        q = len(self.location)
        uniform = scipy.stats.qmc.Sobol(q + 1, seed=seed).random(count)
        uniform = np.clip(uniform, 1e-6, 1 - 1e-6)
        chi = scipy.stats.chi2.ppf(uniform[:, -1], FREEDOM) / FREEDOM
        return self.location + scipy.special.ndtri(uniform[:, :-1]) / np.sqrt(chi)[:, None] @ self.root.T

    def log_density(self, points: Float[np.ndarray, "S q"]) -> Float[np.ndarray, " S"]:
        """Up to a constant that is the same for all."""
        z = scipy.linalg.solve_triangular(self.root, (points - self.location).T, lower=True)
        return -0.5 * (FREEDOM + len(z)) * np.log1p(np.sum(z**2, axis=0) / FREEDOM) - np.sum(
            np.log(np.diag(self.root))
        )


@one_blas_thread
@float64_available
def weighted_kernels(learned: Learned, problem: Problem) -> WeightedKernels:
    """Kernels that stand for what the data of the problem say, given what was learned; the grid bounds lengthscales."""
    data = problem.data
    if not data.gaussian:
        return _normal(learned, "the likelihood of data that are not Gaussian is not explored")
    if (most := min(stages_of(data)[-1][0], EXPLORED)) < len(data):
        return _normal(learned, f"there are more than {most:,} observations")
    if "noise" not in learned.names and not np.all(data.noise_known):
        data = _with_noise(data, problem.noise)
    known = problem._replace(kernel=learned.kernel, data=data, noise=learned.noise)
    task = Task.of(in_fixed_order(known), "kernel", learned.bounds, 0)
    terms, layout = task.terms(len(data), np.log(learned.values)), task.layout

    def log_density(vector: Float[np.ndarray, " q"]) -> float:
        value = -terms.count * evaluate(vector, layout, terms).value
        return value if np.isfinite(value) else -np.inf

    centre = task.box.clip(np.log(learned.values))
    found = importance_sampled(log_density, centre, _finite_covariance(learned, task.box), task.box)
    chosen, weights = evenly_chosen(found.points, found.weights, POINTS)
    kernels, noises = _unpacked(learned, found.points[chosen])
    reason = (
        f"averaged over {len(chosen)} kernels, with probabilities from the likelihood of all observations at "
        f"{len(found.points)} points, as good as {found.effective:.0f} draws"
    )
    return WeightedKernels(kernels, noises, weights, found.log_densities[chosen], reason)


def importance_sampled(
    log_density: LogDensity,
    centre: Float[np.ndarray, " q"],
    covariance: Float[np.ndarray, "q q"],
    box: Bounds,
) -> Weighted:
    """Points within the box, and their weights under the density; rounds go on until the weights are even enough."""
    proposals, points, densities = [], np.empty((0, len(centre))), np.empty(0)
    proposal = Student(centre, np.linalg.cholesky(covariance))
    for number in range(ROUNDS):
        drawn = proposal.draws(DRAWN, number)
        inside = np.all((drawn >= box.lower) & (drawn <= box.upper), axis=1)
        drawn = drawn[inside]
        proposals.append(proposal)
        points = np.concatenate([points, drawn])
        densities = np.concatenate([densities, [log_density(point) for point in drawn]])
        mixture = np.logaddexp.reduce([one.log_density(points) for one in proposals], axis=0)
        found = Weighted(points, densities, densities - mixture)
        if found.effective >= ENOUGH:
            break
        proposal = _fitted(found, covariance)
    return found


def evenly_chosen(
    points: Float[np.ndarray, "S q"], weights: Float[np.ndarray, " S"], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """At most `count` of the points that represent all, and their weights.

    The points are halved by weight across the direction in which they scatter most, the halves again, and so on; the
    weighted median of each last part along the last direction stands for it.
    """
    parts = [(np.flatnonzero(weights > 0), count)]
    chosen, shares = [], []
    while parts:
        rows, many = parts.pop()
        rows, below = _along_scatter(points, weights, rows)
        if many == 1 or len(rows) == 1:
            chosen.append(rows[np.searchsorted(below, 0.5)])
            shares.append(np.sum(weights[rows]))
            continue
        first = many // 2
        cut = int(np.clip(np.searchsorted(below, first / many), 1, len(rows) - 1))
        parts += [(rows[:cut], first), (rows[cut:], many - first)]
    return np.array(chosen), np.array(shares) / np.sum(shares)


def _along_scatter(
    points: Float[np.ndarray, "S q"], weights: Float[np.ndarray, " S"], rows: np.ndarray
) -> tuple[np.ndarray, Float[np.ndarray, " n"]]:
    """These points in order along the direction in which they scatter most, and the share of weight up to each."""
    share = weights[rows] / np.sum(weights[rows])
    away = points[rows] - share @ points[rows]
    direction = np.linalg.eigh((share[:, None] * away).T @ away)[1][:, -1]
    direction = direction * np.sign(direction[np.argmax(np.abs(direction))])
    order = np.argsort(away @ direction, kind="stable")
    return rows[order], np.cumsum(share[order])


def _fitted(found: Weighted, covariance: Float[np.ndarray, "q q"]) -> Student:
    """The distribution that the next points come from: mean and covariance of those so far, weights evened out."""
    least, power = LEAST_EFFECTIVE * found.points.shape[1], 1.0
    while found._replace(log_weights=power * found.log_weights).effective < least and power > 1e-6:
        power *= 0.7
    weights = _normalised(power * found.log_weights)
    mean = weights @ found.points
    away = found.points - mean
    scatter = WIDER * (weights[:, None] * away).T @ away
    return Student(mean, np.linalg.cholesky(scatter + 1e-3 * np.diag(np.diag(covariance))))


def _finite_covariance(learned: Learned, box: Bounds) -> Float[np.ndarray, "q q"]:
    """The covariance of what was learned, finite along what the data leave open: that of a flat prior in the box."""
    known = np.isfinite(np.diag(learned.log_covariance))
    precision = np.diag(12.0 / (box.upper - box.lower) ** 2)
    precision[np.ix_(known, known)] += np.linalg.inv(learned.log_covariance[np.ix_(known, known)])
    return np.linalg.inv(precision)


def _normal(learned: Learned, why: str) -> WeightedKernels:
    """Points whose mean and covariance are exactly those of what was learned; what is not determined stays."""
    centre = np.log(learned.values)
    known = np.flatnonzero(np.isfinite(np.diag(learned.log_covariance)))
    points = np.tile(centre, (POINTS, 1))
    if len(known):
        root = np.linalg.cholesky(learned.log_covariance[np.ix_(known, known)])
        z = scipy.special.ndtri(scipy.stats.qmc.Sobol(len(known), seed=0).random(POINTS))
        z -= np.mean(z, axis=0)
        z = np.linalg.solve(np.linalg.cholesky(z.T @ z / POINTS), z.T)
        points[:, known] += (root @ z).T
    reason = f"averaged over {POINTS} kernels of a normal distribution with the covariance of what was learned: {why}"
    return WeightedKernels(*_unpacked(learned, points), np.full(POINTS, 1 / POINTS), None, reason)


def _unpacked(learned: Learned, points: Float[np.ndarray, "K q"]) -> tuple[list[Kernel], list[float | None]]:
    layout = learned.layout
    found = [layout.unpack(point) for point in points]
    return [kernel for kernel, _ in found], [
        learned.noise if noise is None else float(noise) for _, noise in found
    ]


def _with_noise(data: Data, noise: float | None) -> Data:
    """The data with `noise` where they come without one."""
    std = np.asarray(data.noise_std(noise))
    begins = np.cumsum([0, *(len(block.y) for block in data.blocks)])
    blocks = zip(data.blocks, begins, strict=False)
    return Data(tuple(Observations(b.functional, b.y, std[at : at + len(b.y)]) for b, at in blocks))


def _normalised(logs: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    shares = np.exp(logs - np.max(logs))
    return shares / np.sum(shares)
