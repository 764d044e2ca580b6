"""Leave-one-out and leave-group-out predictions without further fits.

With A the covariance of the data and alpha = A^-1 (y - X beta) from the fit's solve, a group I is predicted from the
others with the covariance C = ((A^-1)_II)^-1 and the error C alpha_I. C is the covariance of the group given all the
others. For values at points it is computed given the nearest of them, which is nearly the same, with the kernel's
covariances. For lines, areas and slopes, of which far ones matter too, A is formed and inverted where there are few enough. The
mean depends on all data through alpha, so a relative error of C is an error of the mean in standard deviations. For some
groups given their nearest C is computed exactly, by solves; the largest difference is the stated error.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Array, Float, Int

from hipgp.batch.decisions import FACTORED, all_points
from hipgp.batch.systems import solve
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.runtime import memory
from hipgp.runtime.buckets import round_up_to_power_of_two
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit
from hipgp.scores import LeaveOut, group_numbers, members, without_group
from hipgp.vecchia.conditioning_sets import location_features
from hipgp.vecchia.group_covariances import coarse_data_nodes, group_covariances

if TYPE_CHECKING:
    from hipgp.batch.posterior import BatchPosterior
    from hipgp.batch.systems import System

InverseOf = Callable[["System"], Float[np.ndarray, "N N"] | None]

# Neighbours outside the group: for each of its points, for each of its other functionals, and at most (or its own size).
NEAREST_POINTS, NEAREST_OTHERS, MOST_NEAREST = 32, 128, 512
LARGEST_GROUP = 1024
ENTRIES_AT_ONCE = 2**24  # entries of covariance matrices computed together
CHECKED, MOST_SOLVES = 8, 64  # groups with exact solves, and observations in them, at most
CHECKED_TO = {"float64": 1e-8, "float32": 1e-5}  # tolerance of these solves, in nats


@float64_available
def leave_out(post: "BatchPosterior", groups: object, inverse_of: InverseOf) -> LeaveOut:
    """Predict every observation from those outside its group; `groups` has a label for each, in the user's order.

    `inverse_of` gives A^-1 of a system as a matrix.
    """
    numbers = group_numbers(groups, len(post.data))[post.order]
    rows = members(numbers)
    largest = max(len(r) for r in rows)
    if largest > LARGEST_GROUP:
        raise ValueError(
            f"groups: expected at most {LARGEST_GROUP:,} observations in a group with the batch engine, got one of "
            f"{largest:,}; take smaller groups, or condition on the others"
        )
    y, alpha = np.asarray(post.data.y, float), np.asarray(post.alpha, float)
    columns = np.asarray(post.solved_columns()[0], float).T
    mean, std = np.empty(len(y)), np.empty(len(y))
    inverse = inverse_of(post.system) if _within_reach(post) else None
    blocks = _precisions(post, rows) if inverse is None else [inverse[np.ix_(r, r)] for r in rows]
    for row, precision in zip(rows, blocks, strict=True):
        of_trend = columns[row] @ post.beta_covariance @ columns[row].T
        error, std[row] = without_group(precision, of_trend, alpha[row], post.order[row])
        mean[row] = y[row] - error
    found = np.argsort(post.order)
    error = _largest_error(post, rows, blocks) if inverse is None else 0.0
    return LeaveOut(y[found], mean[found], std[found], numbers[found], error)


def _within_reach(post: "BatchPosterior") -> bool:
    """Whether A^-1 is formed: where the nearest observations do not tell nearly all, and there are few enough."""
    count = len(post.data)
    return not all_points(post.data) and count <= FACTORED and memory.fits(memory.dense_bytes(count, 2))


def _precisions(post: "BatchPosterior", rows: list[Int[np.ndarray, " n"]]) -> list[Float[np.ndarray, "n n"]]:
    """The block of A^-1 of each group, given the nearest observations outside it."""
    nodes = coarse_data_nodes(post.data, post.kernel)
    noise = post.problem.noise_std**2
    places = location_features(nodes, post.kernel)
    tree = scipy.spatial.KDTree(places)
    least = NEAREST_POINTS if nodes.rule_size == 1 else NEAREST_OTHERS
    out: list[np.ndarray] = [np.empty(0)] * len(rows)
    sizes = np.array([len(r) for r in rows])
    for width in np.unique([round_up_to_power_of_two(size) for size in sizes.tolist()]):
        chosen = np.flatnonzero((sizes <= width) & (2 * sizes > width))
        k = min(least * int(width), max(MOST_NEAREST, int(width)), len(noise) - 1)
        each = max(1, ENTRIES_AT_ONCE // (k + int(width)) ** 2)
        for begin in range(0, len(chosen), each):
            some = chosen[begin : begin + each]
            nearest = _with_nearest(tree, places, [rows[i] for i in some], int(width), k)
            matrix = np.asarray(_matrices(post.kernel, nodes, jnp.asarray(noise), *map(jnp.asarray, nearest)))
            chol = np.linalg.cholesky(matrix)[:, k:, k:]
            for i, factor in zip(some, chol, strict=True):
                half = np.linalg.inv(factor[: sizes[i], : sizes[i]])
                out[i] = half.T @ half
    return out


@bounded_jit()
def _matrices(kernel: Kernel, nodes: Nodes, noise: Array, index: Array, used: Array) -> Array:
    return group_covariances(kernel, nodes, noise, index, used)


def _with_nearest(
    tree: "scipy.spatial.KDTree",
    places: Float[np.ndarray, "N F"],
    rows: list[Int[np.ndarray, " n"]],
    width: int,
    k: int,
) -> tuple[Int[np.ndarray, "G m"], np.ndarray]:
    """For each group the k nearest observations outside it and, last, its members; `used` is False for padding."""
    index, used = np.zeros((len(rows), k + width), int), np.zeros((len(rows), k + width), bool)
    flat = np.concatenate(rows)
    count = min(k + width, len(places))
    distance, nearest = (
        np.reshape(a, (len(flat), count)) for a in tree.query(places[flat], k=count, workers=-1)
    )
    begin = 0
    for i, row in enumerate(rows):
        end = begin + len(row)
        order = np.argsort(distance[begin:end], axis=None, kind="stable")
        candidates = nearest[begin:end].reshape(-1)[order]
        first = np.sort(np.unique(candidates, return_index=True)[1])
        candidates = candidates[first]
        candidates = candidates[~np.isin(candidates, row)][:k]
        index[i, : len(candidates)], used[i, : len(candidates)] = candidates, True
        index[i, k : k + len(row)], used[i, k : k + len(row)] = row, True
        begin = end
    return index, used


def _largest_error(
    post: "BatchPosterior", rows: list[Int[np.ndarray, " n"]], blocks: list[Float[np.ndarray, "n n"]]
) -> float:
    """The largest relative difference of standard deviations from those by solves, over some groups."""
    chosen: list[int] = []
    for i in np.random.default_rng(0).permutation(len(rows)):
        if len(chosen) < CHECKED and sum(len(rows[j]) for j in [*chosen, i]) <= MOST_SOLVES:
            chosen.append(int(i))
    if not chosen:
        chosen = [int(np.argmin([len(r) for r in rows]))]
    flat = np.concatenate([rows[i] for i in chosen])
    scale = np.sqrt(np.asarray(post.noise_variance, float))[flat]
    z = np.zeros((len(flat), len(post.data)))
    z[np.arange(len(flat)), flat] = scale
    tolerance = CHECKED_TO[str(post.data.dtype)]
    solved = solve(post.system, jnp.asarray(z, post.data.dtype), tolerance, post.method.max_iterations)
    inverse = np.asarray(solved.alpha, float)[:, flat] / scale[:, None]
    worst, begin = 0.0, 0
    for i in chosen:
        part = slice(begin, begin + len(rows[i]))
        exact, found = inverse[part, part], blocks[i]
        exact = (exact + exact.T) / 2
        ratio = np.sqrt(np.diag(np.linalg.inv(found)) / np.diag(np.linalg.inv(exact)))
        worst, begin = max(worst, float(np.max(np.abs(ratio - 1)))), part.stop
    return worst
