"""Standard deviations of the batch posterior, three ways.

- *vecchia*: the functional given its nearest observations only, or the nearest bins of points that crowd in their noise.
  Deterministic, small systems, no solve. Fewer data cannot say more, so it is wide rather than narrow, but for a few
  percent that bins, and the few nodes that covariances of lines are summed over, may err by.
- *samples*: the mean square error of the exact posterior mean over simulated data sets, with the Vecchia predictor's
  error as control variate: var = E[d^2] - c (E[d_V^2] - var_V), d and d_V the two predictors' errors on the same
  simulation. d is uncorrelated with d_V - d, so the best c is (var / var_V)^2: near one where Vecchia is good and few
  draws go far, near zero where it is poor. The Monte Carlo error is stated.
- *exact*: c' A^-1 c from one solve per functional, or, where it takes fewer products with A and N is at most
  FACTORED, from the Cholesky factor of A: N products to write it down, one for each functional, and no solve.

`automatic` says which is best.
"""

import functools
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int
from scipy.spatial import KDTree

from hipgp import neighbours, vecchia
from hipgp.bins import as_points, bin_means, bins_of
from hipgp.functionals import Functional, LineIntegrals, Nodes, Points
from hipgp.inference.batch_posterior import BatchPosterior, simulate
from hipgp.inference.progress import Report, silent
from hipgp.inference.systems import solve
from hipgp.neighbours import Groups, Neighbours
from hipgp.precision import float64_available
from hipgp.vecchia import Conditionals
from hipgp.weights import Weights

ALONE = (1, 30)  # points given points: in groups of one, with 30 neighbours
# or given bins of them, as wide as leaves the std within some percent: a smooth field is nearly straight across one
BIN_SHARE, BIN_SHARE_ROUGH, BIN_MOST = 1.0, 0.2, 1024
MOST_TOGETHER = 32  # where there are lines or areas: they share their neighbours,
FEW, NEIGHBOURS = 4096, (512, 256)  # 512 for up to FEW targets, 256 for more
FACTORED = 10_000  # observations whose matrix A may be written down and factored: 800 MB
CHEAP = 1e8  # points of the torus, times products: some seconds on two cores


class Local(NamedTuple):
    """Functionals given their nearest observations, or the nearest bins of them."""

    conditionals: Conditionals
    bins: Int[np.ndarray, " N"] | None
    noise: Float[np.ndarray, " N"]

    @property
    def variance(self) -> Float[np.ndarray, " T"]:
        return self.conditionals.variance

    def mean(self, y: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "... T"]:
        return self.conditionals.mean(y if self.bins is None else bin_means(y, self.bins, self.noise))


def local_conditional(post: BatchPosterior, functional: Functional) -> Local:
    """Each functional given its nearest observations.

    Points that crowd in their noise are taken together first (`bins.py`): the nearest thirty of them would not reach far.
    """
    nodes, noise = vecchia.data_nodes(post.data, post.kernel), np.asarray(post.noise_variance, float)
    targets = vecchia.coarse_nodes(functional, post.kernel)
    scale = vecchia.typical_lengthscale(post.kernel, post.grid.ndim)
    bins, spread = None, noise
    if vecchia.plain_points(nodes) and targets.x.shape[1] == 1:
        x = np.asarray(nodes.x)[:, 0]
        share = BIN_SHARE if post.kernel.differentiable else BIN_SHARE_ROUGH
        bins = bins_of(post.kernel, x, noise, scale, share, BIN_MOST)
        if bins is not None:
            nodes, spread = as_points(x, bins, noise)
    near = _near(nodes, targets, scale)
    return Local(vecchia.conditionals(post.kernel, nodes, spread, targets, near), bins, noise)


def _near(nodes: Nodes, targets: Nodes, scale: np.ndarray) -> Groups:
    """Observations near the targets: by place for points, by ends for alike rays, by closest approach otherwise."""
    many, of_targets = nodes.x.shape[1] > 1, targets.x.shape[1] > 1
    if many == of_targets:
        both = neighbours.features(Nodes.concatenate([nodes, targets]), scale)
        sizes = _sizes(len(nodes), len(targets)) if many else ALONE
        return neighbours.around(both[: len(nodes)], both[len(nodes) :], *sizes)
    n, q, d = nodes.x.shape
    middle = np.asarray(targets.x[:, targets.x.shape[1] // 2] / scale)
    size, k = _sizes(n, len(middle))
    groups = neighbours.together(middle, size)
    tree = KDTree((nodes.x / scale).reshape(-1, d))
    count = min(n * q, 4 * k)
    centres = np.array([middle[rows].mean(axis=0) for rows in groups])
    owner = np.asarray(tree.query(centres, k=count, workers=-1)[1]).reshape(len(groups), count) // q
    first = np.sort(np.where(_first_seen(owner), np.arange(count), count), axis=1)[:, : min(k, n)]
    used = first < count
    near = Neighbours(np.take_along_axis(owner, np.minimum(first, count - 1), axis=1), used)
    return neighbours.after(near, groups, n)


def _sizes(observations: int, targets: int) -> tuple[int, int]:
    """How many together, such that a group spans about a quarter of its neighbours' region, and how many neighbours."""
    k = NEIGHBOURS[targets > FEW]
    return int(np.clip(k * targets / (4 * observations), 1, MOST_TOGETHER)), k


def _first_seen(owner: np.ndarray) -> np.ndarray:
    """Marks each entry that differs from all before it in its row."""
    order = np.argsort(owner, axis=1, kind="stable")
    ranked = np.take_along_axis(owner, order, axis=1)
    new = np.concatenate([np.ones((len(owner), 1), bool), np.diff(ranked, axis=1) != 0], axis=1)
    out = np.zeros_like(new)
    np.put_along_axis(out, order, new, axis=1)
    return out


def _trend_variance(post: BatchPosterior, target: np.ndarray, local: Local) -> np.ndarray:
    """What not knowing the trend's coefficients adds: (x* - X'b)' Cov(beta) (x* - X'b)."""
    gap = target - local.mean(post.trend.of_data(post.data, post.grid).T).T
    return np.einsum("tp,pq,tq->t", gap, post.beta_covariance, gap)


@float64_available
def vecchia_variance(
    post: BatchPosterior, functional: Functional, columns: Any = None
) -> Float[np.ndarray, " T"]:
    local = local_conditional(post, functional)
    target = post.trend.of(functional, post.grid, columns)
    return local.variance + _trend_variance(post, target, local)


@float64_available
def sampled_variance(
    post: BatchPosterior,
    functional: Functional,
    count: int,
    key: Any,
    columns: Any = None,
    report: Report = silent,
) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"]]:
    """The variance by `count` simulations with the Vecchia control variate, and its Monte Carlo standard error."""
    if count < 2:
        raise ValueError(f"samples: expected at least 2 to tell an error from, got {count}")
    local = local_conditional(post, functional)
    target = post.trend.of(functional, post.grid, columns)
    base = local.variance + _trend_variance(post, target, local)
    weights = post.target_weights(functional)
    squares = []
    for begin in range(0, count, size := post.draws_at_once()):
        number = min(size, count - begin)
        draw_key = jax.random.fold_in(key, begin)
        prior, rhs = simulate(post.system, jnp.zeros(len(post.data), post.data.dtype), draw_key, number)
        simulated = -rhs
        solved = solve(post.system, simulated, post.method.tolerance, post.method.max_iterations)
        extra = jax.random.normal(jax.random.fold_in(draw_key, 2**30), (number, len(functional)), prior.dtype)
        truth = weights.matmul(prior) + jnp.sqrt(weights.residual) * extra
        exact = np.asarray(truth - weights.matmul(solved.field), float)
        rough = np.asarray(truth, float) - local.mean(np.asarray(simulated, float))
        squares.append((exact**2, rough**2))
        report(begin + number, count)
    of_exact, of_rough = (np.concatenate(s) for s in zip(*squares, strict=True))
    share = np.clip(of_exact.mean(axis=0) / of_rough.mean(axis=0), 0.0, 1.0) ** 2  # the two means err alike
    estimate = of_exact.mean(axis=0) - share * (of_rough.mean(axis=0) - base)
    error = np.std(of_exact - share * of_rough, axis=0, ddof=1) / np.sqrt(count)
    return np.maximum(estimate, 0.1 * of_exact.mean(axis=0)), error  # a mean of squares is positive


@float64_available
def exact_variance(
    post: BatchPosterior, functional: Functional, columns: Any = None, report: Report = silent
) -> Float[np.ndarray, " T"]:
    """v + w'K w - c' A^-1 c with c = W K w, and what the trend adds."""
    factor = _factor(post, report) if factored(post, len(functional), len(functional)) else None
    explained = _by_solves if factor is None else functools.partial(_by_factor, factor)
    weights, system = post.target_weights(functional), post.system
    target = post.trend.of(functional, post.grid, columns)
    out = []
    for begin in range(0, len(functional), size := post.draws_at_once()):
        rows = np.arange(begin, min(begin + size, len(functional)))
        prior, cross = _seen(system, weights, jnp.asarray(rows))
        known, of_columns = explained(post, prior, cross)
        variance = np.asarray(weights.residual, float)[rows] + np.asarray(prior, float) - known
        gap = target[rows] - of_columns
        out.append(np.maximum(variance, 0.0) + np.einsum("tp,pq,tq->t", gap, post.beta_covariance, gap))
        report(int(rows[-1]) + 1, len(functional))
    return np.concatenate(out)


@eqx.filter_jit
def _seen(system: Any, weights: Weights, rows: Int[Array, " t"]) -> tuple[Array, Array]:
    """w'K w and c = W K w of some functionals, in float64."""
    system, weights = _in_float64(system), _in_float64(weights)
    w = weights.transpose_matmul(jax.nn.one_hot(rows, len(weights.residual), dtype=jnp.float64))
    field = system.toeplitz.matmul(w.reshape(-1, *system.toeplitz.shape)).reshape(w.shape)
    return jnp.sum(w * field, axis=-1), system.weights.matmul(field)


def _by_solves(post: BatchPosterior, prior: Array, cross: Array) -> tuple[np.ndarray, np.ndarray]:
    """c' A^-1 c and X' A^-1 c."""
    # The error of c'A^-1 c is at most r'N^-1 r = 2 nats: here nats are in units of the variance.
    target = 1e-6 * np.asarray(prior)
    solved = solve(post.system, cross.astype(post.data.dtype), target, post.method.max_iterations)
    alpha = np.asarray(solved.alpha, float)
    known = np.asarray(_explained(post.system, cross, jnp.asarray(alpha)))
    return known, alpha @ post.trend.of_data(post.data, post.grid)


@eqx.filter_jit
def _explained(system: Any, cross: Array, alpha: Array) -> Array:
    """c' A^-1 c from alpha ~ A^-1 c: 2 c'alpha - alpha'A alpha, which only the square of alpha's error enters."""
    system = _in_float64(system)
    w = system.weights.transpose_matmul(alpha)
    field = system.toeplitz.matmul(w.reshape(-1, *system.toeplitz.shape)).reshape(w.shape)
    own = jnp.sum(w * field, axis=-1) + jnp.sum(system.noise * alpha**2, axis=-1)
    return 2 * jnp.sum(cross * alpha, axis=-1) - own


def _by_factor(
    factor: np.ndarray, post: BatchPosterior, prior: Array, cross: Array
) -> tuple[np.ndarray, np.ndarray]:
    """c' A^-1 c and X' A^-1 c."""
    solve = lambda b: scipy.linalg.solve_triangular(factor, b, lower=True, check_finite=False)
    half = solve(np.asarray(cross).T)
    return np.sum(half**2, axis=0), half.T @ solve(post.trend.of_data(post.data, post.grid))


def _factor(post: BatchPosterior, report: Report) -> Float[np.ndarray, "N N"] | None:
    """The Cholesky factor of A, kept with the posterior's system; None where the noise is too small for rounding."""
    if post.deferred.factor is None:
        count, size = len(post.data), post.draws_at_once()
        matrix = np.empty((count, count))
        for begin in range(0, count, size):
            rows = np.minimum(np.arange(begin, begin + size), count - 1)  # the last again: one compilation
            matrix[rows] = _seen(post.system, post.system.weights, jnp.asarray(rows))[1]  # type: ignore[attr-defined]
            report(int(rows[-1]) + 1, count)
        matrix[np.diag_indices(count)] += post.noise_variance
        try:
            factor = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        except scipy.linalg.LinAlgError:
            return None
        post.deferred.factor = factor
    return post.deferred.factor


def _in_float64(tree: Any) -> Any:
    return jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, tree)


def factored(post: BatchPosterior, targets: int, solves: int) -> bool:
    """Whether to factor A: where that takes fewer products with it, for so many targets, than so many solves, or few."""
    products = len(post.data) + targets
    shorter = products <= solves * max(1, post.diagnostics["iterations"])
    cheap = products * post.system.toeplitz.torus.size <= CHEAP  # type: ignore[attr-defined]
    return len(post.data) <= FACTORED and (shorter or cheap)


def automatic(
    post: BatchPosterior, functional: Functional, samples: int
) -> Literal["vecchia", "samples", "exact"]:
    """The way that is right for these data, in the fewest seconds.

    Nearest observations tell all but a few percent of points given points, and of lines given such from the same place.
    Of a line given others that cross it, of slopes among values, and of one kind given another they tell much less.
    """
    blocks = [block.functional for block in post.data.blocks]
    kinds = {type(f) for f in (*blocks, functional)}
    if kinds == {Points} or (kinds == {LineIntegrals} and _from_one_place([*blocks, functional])):
        return "vecchia"
    if factored(post, len(functional), samples):
        return "exact"
    return "vecchia" if all(f.single for f in (*blocks, functional)) else "samples"


def _from_one_place(lines: list[Any]) -> bool:
    start, end = (np.concatenate([getattr(f, name) for f in lines]) for name in ("start", "end"))
    return neighbours.from_one_place(start, end)
