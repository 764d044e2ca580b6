"""Standard deviations of the batch posterior, by three algorithms.

- *vecchia*: condition each functional on its nearest observations, or on the nearest clusters of crowded noisy points.
  It is deterministic and needs small systems only. With fewer data the standard deviation is larger, never smaller, up to
  a few percent of error from clusters and from the coarse quadrature of lines.
- *samples*: the mean square error of the exact posterior mean over simulated data sets, with its Monte Carlo error. If all
  functionals have one node, the error of the Vecchia predictor is a control variate: var = E[d^2] - c (E[d_V^2] - var_V),
  where d and d_V are the errors of the two predictors on the same simulation, and var_V is the mean of d_V^2 over
  EXTRA_SIMULATIONS times as many further simulations, which need no solve. d is uncorrelated with d_V - d, so the best c
  is about (var / var_V)^2: near one if Vecchia is accurate, and near zero if not, as for lines and areas, where it is not
  used.
- *exact*: solves or a factorisation, in `batch/exact_variances.py`.

`automatic` chooses among them.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Array, Float, Int

from hipgp.batch.decisions import Decision, standard_deviations, work
from hipgp.batch.simulation import GridTarget, simulate
from hipgp.batch.systems import System, draws_at_once, solve
from hipgp.model.arguments import check_whole
from hipgp.model.functionals import Functional, Points
from hipgp.model.kernel_scales import metric_coordinates, repeats, typical_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.model.problem import Problem
from hipgp.predictions import DEFAULT_STD
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Report, silent
from hipgp.vecchia.aggregation import cluster_means, cluster_points, clusters_as_points
from hipgp.vecchia.conditioning_sets import (
    Groups,
    Neighbours,
    append_targets,
    bisected_groups,
    location_features,
    share_one_end,
    target_groups,
)
from hipgp.vecchia.factor import Conditionals, conditionals
from hipgp.vecchia.group_covariances import are_point_values, coarse_data_nodes, coarse_nodes

if TYPE_CHECKING:
    from hipgp.batch.posterior import BatchPosterior

ALONE = (1, 30)  # points given points: groups of one with 30 neighbours
# Clusters of points so small that the std changes by a few percent at most: a smooth field is nearly linear across one.
CLUSTER_SHARE, CLUSTER_SHARE_ROUGH, CLUSTER_MOST = 1.0, 0.2, 1024
MOST_TOGETHER = 32  # largest group of targets with shared neighbours, for lines and areas
FEW, NEIGHBOURS = 4096, (512, 256)  # 512 neighbours for up to FEW targets, 256 for more
EXTRA_SIMULATIONS = 16  # simulations without a solve for each one with a solve


class _LocalConditional(NamedTuple):
    """Conditionals of functionals given their nearest observations, or the nearest clusters of observations."""

    conditionals: Conditionals
    clusters: Int[np.ndarray, " N"] | None
    noise: Float[np.ndarray, " N"]

    @property
    def variance(self) -> Float[np.ndarray, " T"]:
        return self.conditionals.variance

    def mean(self, y: Float[np.ndarray, "s N"]) -> Float[np.ndarray, "s T"]:
        data = y if self.clusters is None else cluster_means(y, self.clusters, self.noise)
        return self.conditionals.mean(data)


def _local_conditional(post: "BatchPosterior", functional: Functional) -> _LocalConditional:
    """The conditional of each functional given its nearest observations.

    Crowded noisy points are aggregated first (`vecchia/aggregation.py`), since thirty of them cover a small region.
    """
    nodes, noise = coarse_data_nodes(post.data, post.kernel), np.asarray(post.noise_variance, float)
    targets = coarse_nodes(functional, post.kernel)
    scale = typical_lengthscale(post.kernel, post.grid.ndim)
    clusters, spread = None, noise
    if are_point_values(nodes) and targets.x.shape[1] == 1:
        x = np.asarray(nodes.x)[:, 0]
        share = CLUSTER_SHARE if post.kernel.differentiable else CLUSTER_SHARE_ROUGH
        clusters = cluster_points(post.kernel, x, noise, scale, share, CLUSTER_MOST)
        if clusters is not None:
            nodes, spread = clusters_as_points(x, clusters, noise)
    groups = _nearest_groups(nodes, targets, post.kernel)
    return _LocalConditional(conditionals(post.kernel, nodes, spread, targets, groups), clusters, noise)


def _nearest_groups(nodes: Nodes, targets: Nodes, kernel: Kernel) -> Groups:
    """Observations near the targets: by place for points, by ends for lines given lines, by closest node otherwise."""
    many, of_targets = nodes.x.shape[1] > 1, targets.x.shape[1] > 1
    if many == of_targets:
        both = location_features(Nodes.concatenate([nodes, targets]), kernel)
        sizes = _group_sizes(len(nodes), len(targets)) if many else ALONE
        return target_groups(both[: len(nodes)], both[len(nodes) :], *sizes)
    n, q, d = nodes.x.shape
    middle = metric_coordinates(kernel, np.asarray(targets.x[:, targets.x.shape[1] // 2]))
    size, k = _group_sizes(n, len(middle))
    groups = bisected_groups(middle, size)
    tree = scipy.spatial.KDTree(metric_coordinates(kernel, np.asarray(nodes.x).reshape(-1, d)))
    count = min(n * q, 4 * k)
    centres = np.array([middle[rows].mean(axis=0) for rows in groups])
    owner = np.asarray(tree.query(centres, k=count, workers=-1)[1]).reshape(len(groups), count) // q
    first = np.sort(np.where(_first_occurrences(owner), np.arange(count), count), axis=1)[:, : min(k, n)]
    used = first < count
    near = Neighbours(np.take_along_axis(owner, np.minimum(first, count - 1), axis=1), used)
    return append_targets(near, groups, n)


def _group_sizes(observations: int, targets: int) -> tuple[int, int]:
    """The group size, such that a group spans about a quarter of its neighbours' region, and the number of neighbours."""
    k = NEIGHBOURS[targets > FEW]
    return int(np.clip(k * targets / (4 * observations), 1, MOST_TOGETHER)), k


def _first_occurrences(owner: np.ndarray) -> np.ndarray:
    """Mark each entry that differs from all before it in its row."""
    order = np.argsort(owner, axis=1, kind="stable")
    ranked = np.take_along_axis(owner, order, axis=1)
    new = np.concatenate([np.ones((len(owner), 1), bool), np.diff(ranked, axis=1) != 0], axis=1)
    out = np.zeros_like(new)
    np.put_along_axis(out, order, new, axis=1)
    return out


@float64_available
def vecchia_variance(
    post: "BatchPosterior", functional: Functional, columns: Float[np.ndarray, "T p"]
) -> Float[np.ndarray, " T"]:
    """The variance of each functional given its nearest observations; `columns` holds its trend columns."""
    local = _local_conditional(post, functional)
    gap = columns - local.mean(post.trend.of_data(post.data, post.grid).T).T
    return local.variance + post.trend_variance(gap)


@float64_available
def sampled_variance(
    post: "BatchPosterior",
    functional: Functional,
    target: GridTarget,
    columns: Float[np.ndarray, "T p"],
    count: int,
    key: Any,
    report: Report = silent,
) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"]]:
    """The variance by `count` simulations, and its Monte Carlo standard error; `target` is `functional` on the grid."""
    check_whole("samples", count, 2)  # the error estimate needs two
    single = all(f.single for f in (functional, *post.data.functionals))
    local = _local_conditional(post, functional) if single else None
    of_exact, of_vecchia = [], []  # squared errors of the two predictors
    for y, truth in _simulations(post, target, count, key):
        solved = solve(post.system, y, post.method.tolerance, post.method.max_iterations)
        of_exact.append((truth - target.mean(solved.field, solved.alpha)) ** 2)
        of_vecchia += [] if local is None else [_squared_error(local, y, truth)]
        report(sum(map(len, of_exact)), count)
    exact = np.concatenate(of_exact)
    if local is None:
        found, error = exact.mean(axis=0), _standard_error(exact)
    else:
        others = _simulations(post, target, EXTRA_SIMULATIONS * count, jax.random.fold_in(key, 2**29))
        known = _moments(_squared_error(local, y, truth) for y, truth in others)
        found, error = _controlled(exact, np.concatenate(of_vecchia), *known)
    alpha, field = post.solved_columns()
    gap = columns - np.asarray(target.mean(field, alpha), float).T
    return found + post.trend_variance(gap), error


def _simulations(
    post: "BatchPosterior", target: GridTarget, count: int, key: Array
) -> Iterator[tuple[Float[Array, "s N"], Float[np.ndarray, "s T"]]]:
    """Yield data simulated from the prior, in chunks, and the true values of the targets."""
    nothing = jnp.zeros(len(post.data), post.data.dtype)
    for begin in range(0, count, size := draws_at_once(post.system)):
        number, draw_key = min(size, count - begin), jax.random.fold_in(key, begin)
        prior, residual, less = simulate(post.system, nothing, draw_key, number)
        yield -less, target.draw(prior, residual, jax.random.fold_in(draw_key, 2**30))


def _squared_error(
    local: _LocalConditional, y: Float[Array, "s N"], truth: Float[np.ndarray, "s T"]
) -> Float[np.ndarray, "s T"]:
    """The squared error of the Vecchia predictor."""
    return (truth - local.mean(np.asarray(y, float))) ** 2


def _standard_error(values: Float[np.ndarray, "S T"]) -> Float[np.ndarray, " T"]:
    return values.std(axis=0, ddof=1) / np.sqrt(len(values))


def _moments(parts: Iterable[Float[np.ndarray, "s T"]]) -> tuple[np.ndarray, np.ndarray]:
    """The mean over all parts, and its standard error, without storing the parts."""
    sums = [(len(part), part.sum(axis=0), np.sum(part**2, axis=0)) for part in parts]
    counts, totals, squares = (np.sum(column, axis=0) for column in zip(*sums, strict=True))
    mean = np.asarray(totals / counts)
    return mean, np.sqrt(np.maximum(squares / counts - mean**2, 0.0) / (counts - 1))


def _controlled(
    exact: Float[np.ndarray, "S T"],
    control: Float[np.ndarray, "S T"],
    known: Float[np.ndarray, " T"],
    known_error: Float[np.ndarray, " T"],
) -> tuple[np.ndarray, np.ndarray]:
    """The mean of `exact` with the control variate `control` of mean `known`, and its standard error."""
    share = np.clip(exact.mean(axis=0) / control.mean(axis=0), 0.0, 1.0) ** 2
    share *= EXTRA_SIMULATIONS / (1 + EXTRA_SIMULATIONS)  # accounts for the error of `known`
    found = exact.mean(axis=0) + share * (known - control.mean(axis=0))
    error = np.hypot(_standard_error(exact - share * control), share * known_error)
    return np.maximum(found, 0.1 * exact.mean(axis=0)), error  # a mean of squares is positive


def automatic(post: "BatchPosterior", functional: Functional, samples: int) -> Decision[str]:
    """The fastest accurate algorithm for standard deviations of these functionals."""
    needed = lambda: work(post.system, post.diagnostics["iterations"])
    nearest_suffice = not repeats(post.kernel)
    return standard_deviations(
        post.data, functional, len(functional), samples, needed, from_one_place, nearest_suffice
    )


def automatic_on_grid(problem: Problem, system: System, iterations: int) -> Decision[str]:
    """The algorithm for standard deviations at the grid points, unless the user asks for another."""
    kernel, grid, data, *_ = problem
    needed, one = lambda: work(system, iterations), Points(np.zeros((1, grid.ndim)))
    how = DEFAULT_STD.samples, needed, from_one_place, not repeats(kernel)
    return standard_deviations(data, one, grid.size, *how)


def from_one_place(lines: list[Any]) -> bool:
    start, end = (np.concatenate([getattr(f, name) for f in lines]) for name in ("start", "end"))
    return share_one_end(start, end)
