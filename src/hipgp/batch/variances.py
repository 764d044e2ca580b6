"""Standard deviations of the batch posterior, three ways.

- *vecchia*: the functional given its nearest observations only, or the nearest bins of points that crowd in their noise.
  Deterministic, small systems, no solve. Fewer data cannot say more, so it is wide rather than narrow, but for a few
  percent that bins, and the few nodes that covariances of lines are summed over, may err by.
- *samples*: the mean square error of the exact posterior mean over simulated data sets, the Monte Carlo error stated. Where
  all have but one node, the Vecchia predictor's error is a control variate: var = E[d^2] - c (E[d_V^2] - var_V), d and d_V
  the two predictors' errors on the same simulation, and var_V the mean of d_V^2 over ROUGH times as many others, which no
  solve is needed for. d is uncorrelated with d_V - d, so the best c is near (var / var_V)^2: near one where Vecchia is
  good and few draws go far, near zero where it is poor, as it is among lines and areas: they have none.
- *exact*: see `batch/exact_variances.py`.

`automatic` says which is best.
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
from hipgp.engines import DEFAULT_STD
from hipgp.model.arguments import check_whole
from hipgp.model.data import Data
from hipgp.model.functionals import Functional, Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import typical_lengthscale
from hipgp.model.nodes import Nodes
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Report, silent
from hipgp.vecchia import conditioning_sets as neighbours
from hipgp.vecchia import factor as vecchia
from hipgp.vecchia import group_covariances as coarse
from hipgp.vecchia.aggregation import cluster_means, cluster_points, clusters_as_points
from hipgp.vecchia.conditioning_sets import Groups, Neighbours
from hipgp.vecchia.factor import Conditionals

if TYPE_CHECKING:
    from hipgp.batch.posterior import BatchPosterior

ALONE = (1, 30)  # points given points: in groups of one, with 30 neighbours
# or given bins of them, as wide as leaves the std within some percent: a smooth field is nearly straight across one
BIN_SHARE, BIN_SHARE_ROUGH, BIN_MOST = 1.0, 0.2, 1024
MOST_TOGETHER = 32  # where there are lines or areas: they share their neighbours,
FEW, NEIGHBOURS = 4096, (512, 256)  # 512 for up to FEW targets, 256 for more
ROUGH = 16  # simulations without a solve, for each with one


class LocalConditional(NamedTuple):
    """Functionals given their nearest observations, or the nearest bins of them."""

    conditionals: Conditionals
    bins: Int[np.ndarray, " N"] | None
    noise: Float[np.ndarray, " N"]

    @property
    def variance(self) -> Float[np.ndarray, " T"]:
        return self.conditionals.variance

    def mean(self, y: Float[np.ndarray, "s N"]) -> Float[np.ndarray, "s T"]:
        return self.conditionals.mean(y if self.bins is None else cluster_means(y, self.bins, self.noise))


def local_conditional(post: "BatchPosterior", functional: Functional) -> LocalConditional:
    """Each functional given its nearest observations.

    Points that crowd in their noise are taken together first (`vecchia/aggregation.py`): the nearest thirty of them would not reach far.
    """
    nodes, noise = coarse.coarse_data_nodes(post.data, post.kernel), np.asarray(post.noise_variance, float)
    targets = coarse.coarse_nodes(functional, post.kernel)
    scale = typical_lengthscale(post.kernel, post.grid.ndim)
    bins, spread = None, noise
    if coarse.are_point_values(nodes) and targets.x.shape[1] == 1:
        x = np.asarray(nodes.x)[:, 0]
        share = BIN_SHARE if post.kernel.differentiable else BIN_SHARE_ROUGH
        bins = cluster_points(post.kernel, x, noise, scale, share, BIN_MOST)
        if bins is not None:
            nodes, spread = clusters_as_points(x, bins, noise)
    near = _near(nodes, targets, scale)
    return LocalConditional(vecchia.conditionals(post.kernel, nodes, spread, targets, near), bins, noise)


def _near(nodes: Nodes, targets: Nodes, scale: np.ndarray) -> Groups:
    """Observations near the targets: by place for points, by ends for alike rays, by closest approach otherwise."""
    many, of_targets = nodes.x.shape[1] > 1, targets.x.shape[1] > 1
    if many == of_targets:
        both = neighbours.location_features(Nodes.concatenate([nodes, targets]), scale)
        sizes = _sizes(len(nodes), len(targets)) if many else ALONE
        return neighbours.target_groups(both[: len(nodes)], both[len(nodes) :], *sizes)
    n, q, d = nodes.x.shape
    middle = np.asarray(targets.x[:, targets.x.shape[1] // 2] / scale)
    size, k = _sizes(n, len(middle))
    groups = neighbours.bisected_groups(middle, size)
    tree = scipy.spatial.KDTree((nodes.x / scale).reshape(-1, d))
    count = min(n * q, 4 * k)
    centres = np.array([middle[rows].mean(axis=0) for rows in groups])
    owner = np.asarray(tree.query(centres, k=count, workers=-1)[1]).reshape(len(groups), count) // q
    first = np.sort(np.where(_first_seen(owner), np.arange(count), count), axis=1)[:, : min(k, n)]
    used = first < count
    near = Neighbours(np.take_along_axis(owner, np.minimum(first, count - 1), axis=1), used)
    return neighbours.append_targets(near, groups, n)


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


@float64_available
def vecchia_variance(
    post: "BatchPosterior", functional: Functional, columns: Float[np.ndarray, "T p"]
) -> Float[np.ndarray, " T"]:
    """The variance of each functional given its nearest observations; `columns` are its trend's."""
    local = local_conditional(post, functional)
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
    check_whole("samples", count, 2)  # one tells no error
    single = all(f.single for f in (functional, *(block.functional for block in post.data.blocks)))
    local = local_conditional(post, functional) if single else None
    of_exact, of_rough = [], []  # squares
    for y, truth in _simulations(post, target, count, key):
        solved = solve(post.system, y, post.method.tolerance, post.method.max_iterations)
        of_exact.append((truth - target.mean(solved.field, solved.alpha)) ** 2)
        of_rough += [] if local is None else [_rough(local, y, truth)]
        report(sum(map(len, of_exact)), count)
    exact = np.concatenate(of_exact)
    if local is None:
        found, error = exact.mean(axis=0), _standard_error(exact)
    else:
        others = _simulations(post, target, ROUGH * count, jax.random.fold_in(key, 2**29))
        known = _moments(_rough(local, y, truth) for y, truth in others)
        found, error = _controlled(exact, np.concatenate(of_rough), *known)
    alpha, field = post.solved_columns()
    gap = columns - np.asarray(target.mean(field, alpha), float).T
    return found + post.trend_variance(gap), error


def _simulations(
    post: "BatchPosterior", target: GridTarget, count: int, key: Array
) -> Iterator[tuple[Float[Array, "s N"], Float[np.ndarray, "s T"]]]:
    """Data drawn from the prior, some at a time, and the true values of the targets."""
    nothing = jnp.zeros(len(post.data), post.data.dtype)
    for begin in range(0, count, size := draws_at_once(post.system)):
        number, draw_key = min(size, count - begin), jax.random.fold_in(key, begin)
        prior, residual, less = simulate(post.system, nothing, draw_key, number)
        yield -less, target.draw(prior, residual, jax.random.fold_in(draw_key, 2**30))


def _rough(
    local: LocalConditional, y: Float[Array, "s N"], truth: Float[np.ndarray, "s T"]
) -> Float[np.ndarray, "s T"]:
    """The neighbours' squared error."""
    return (truth - local.mean(np.asarray(y, float))) ** 2


def _standard_error(values: Float[np.ndarray, "S T"]) -> Float[np.ndarray, " T"]:
    return values.std(axis=0, ddof=1) / np.sqrt(len(values))


def _moments(parts: Iterable[Float[np.ndarray, "s T"]]) -> tuple[np.ndarray, np.ndarray]:
    """The mean over all parts, and its standard error, without holding them."""
    sums = [(len(part), part.sum(axis=0), np.sum(part**2, axis=0)) for part in parts]
    counts, totals, squares = (np.sum(column, axis=0) for column in zip(*sums, strict=True))
    mean = np.asarray(totals / counts)
    return mean, np.sqrt(np.maximum(squares / counts - mean**2, 0.0) / (counts - 1))


def _controlled(
    exact: Float[np.ndarray, "S T"],
    rough: Float[np.ndarray, "S T"],
    known: Float[np.ndarray, " T"],
    known_error: Float[np.ndarray, " T"],
) -> tuple[np.ndarray, np.ndarray]:
    """The mean of `exact` with `rough` as control variate, whose mean is `known`; and its standard error."""
    share = np.clip(exact.mean(axis=0) / rough.mean(axis=0), 0.0, 1.0) ** 2  # the two means err alike
    share *= ROUGH / (1 + ROUGH)  # what is known errs too
    found = exact.mean(axis=0) + share * (known - rough.mean(axis=0))
    error = np.hypot(_standard_error(exact - share * rough), share * known_error)
    return np.maximum(found, 0.1 * exact.mean(axis=0)), error  # a mean of squares is positive


def automatic(post: "BatchPosterior", functional: Functional, samples: int) -> Decision[str]:
    """The way to standard deviations of these functionals that is right and takes the fewest seconds."""
    needed = lambda: work(post.system, post.diagnostics["iterations"])
    return standard_deviations(post.data, functional, len(functional), samples, needed, _from_one_place)


def automatic_on_grid(data: Data, grid: Grid, system: System, iterations: int) -> Decision[str]:
    """The way to standard deviations at the grid points, unless the user asks for another."""
    needed, one = lambda: work(system, iterations), Points(np.zeros((1, grid.ndim)))
    return standard_deviations(data, one, grid.size, DEFAULT_STD.samples, needed, _from_one_place)


def _from_one_place(lines: list[Any]) -> bool:
    start, end = (np.concatenate([getattr(f, name) for f in lines]) for name in ("start", "end"))
    return neighbours.share_one_end(start, end)
