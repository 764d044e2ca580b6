"""Dense covariance matrices between functionals, by quadrature that is refined to a stated accuracy."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Array, Float, Int

from hipgp.model.data import Data
from hipgp.model.differences import differences
from hipgp.model.functional import Functional
from hipgp.model.kernel_scales import shortest_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.runtime.callers import warn_caller
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.progress import Report, silent
from hipgp.weights.covariance import TransposedNodes, kernel_between_nodes

ENTRIES_AT_ONCE = 2**20  # covariances computed together
TILE = 2**9  # nodes whose covariances with as many others are computed by one program
TESTED = 3  # number of functionals on which the accuracy of the quadrature is measured
STEPS = (
    2.0,
    1.5,
)  # refinements of the spacing: of lines, and of areas and volumes, whose nodes become far more
MOST_NODES = 2**10  # nodes of one functional
# Added to the diagonal, smallest first, if the covariance of draws is singular in float64; relative to the prior variance.
JITTERS = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10)
MISSED = 0.01  # of a variance, that quadrature may miss: a tenth of the standard deviation
FINEST = 64  # refinement that shows whether the number of nodes depends on the resolution at all


class Quadrature(NamedTuple):
    """A node spacing, the number of nodes of the longest functional with it, and the largest error of covariances."""

    spacing: Float[np.ndarray, " D"]
    nodes: int
    error: float


def quadratures(kernel: Kernel, functional: Functional, accuracy: float) -> list[Quadrature]:
    """Return ever finer quadratures of functionals in float64; the last has `accuracy`, or MOST_NODES do not suffice.

    Nodes given by the user, random ones included, define the functional and have no quadrature error.
    """
    functional = jax.tree.map(lambda a: np.asarray(a, float), functional)
    longest = number_of_longest(functional)  # sets the rule of all
    some = functional.take(np.unique([*longest, *np.linspace(0, len(functional) - 1, TESTED).astype(int)]))
    spacing, one = shortest_lengthscale(kernel, functional.ndim), functional.take(longest)
    coarsest, *finest = (one.nodes_each(np.arange(1), spacing / finer) for finer in (1, FINEST / 2, FINEST))
    if coarsest == finest[1] or getattr(functional, "rule", "gauss") == "monte-carlo":
        return [Quadrature(spacing, coarsest, 0.0)]
    step, found = STEPS[finest[1] > 3 * finest[0]], []
    coarse = some.nodes(spacing)
    while True:
        fine = some.nodes(spacing / step)
        # if the numbers of nodes are equal, both are the smallest rule
        error = _difference(kernel, coarse, fine) if fine.rule_size > coarse.rule_size else np.inf
        found.append(Quadrature(spacing, coarse.rule_size, error))
        if error <= accuracy or fine.rule_size > MOST_NODES:
            return found
        coarse, spacing = fine, spacing / step


def refine_quadrature(
    kernel: Kernel, functional: Functional, accuracy: float
) -> tuple[Functional, np.ndarray, float]:
    """Return the functional in float64, a node spacing for `accuracy`, and the remaining error measured on a sample."""
    exact: Functional = jax.tree.map(lambda a: np.asarray(a, float), functional)
    spacing, _, error = quadratures(kernel, exact, accuracy)[-1]
    return exact, spacing, error


@float64_available
def quadrature_sizes(kernel: Kernel, data: Data, accuracies: list[float]) -> list[tuple[float, float]]:
    """The estimated number of quadrature nodes of all data for each accuracy, and the largest error with them."""
    totals, worst = np.zeros(len(accuracies)), np.zeros(len(accuracies))
    for block in data.blocks:
        if block.functional.single:
            totals += len(block.y)
            continue
        found = quadratures(kernel, block.functional, min(accuracies))
        for i, accuracy in enumerate(accuracies):
            rule = next((rule for rule in found if rule.error <= accuracy), found[-1])
            totals[i] += len(block.y) * rule.nodes
            worst[i] = max(worst[i], rule.error)
    return list(zip(totals, worst, strict=True))


def number_of_longest(functional: Any) -> Int[np.ndarray, " 1"]:
    """The number of the longest of these functionals, in an array of one."""
    places = np.asarray(functional.places(), float)
    return np.argmax(np.linalg.norm(np.ptp(places, axis=1), axis=1), keepdims=True)


def factor(matrix: Float[np.ndarray, "n n"], scale: float = 0.0) -> Float[np.ndarray, "n n"]:
    """The lower Cholesky factor; JITTERS times `scale` are added to the diagonal, the smallest that allows one."""
    for jitter in JITTERS if scale else (0.0,):
        try:
            added = matrix + jitter * scale * np.eye(len(matrix)) if jitter else matrix
            return scipy.linalg.cholesky(added, lower=True, check_finite=False)
        except scipy.linalg.LinAlgError:
            continue
    raise ValueError(
        "noise: expected noise that makes the covariance of the data positive definite, got too little for float64: "
        "observations nearly repeat each other; give more noise, or merge them"
    )


def warn_of_quadrature(
    functional: Functional,
    error: float,
    accuracy: float,
    prior: Float[np.ndarray, " N"],
    variance: Float[np.ndarray, " N"],
    of_what: str,
) -> None:
    """Warn where an `error` of covariances beyond `accuracy` is a share of some variances that matters.

    An error of covariances is about the variance of what quadrature misses of a functional. Its root is at most what a mean
    and a standard deviation are off by, which is to be small beside the functional's posterior standard deviation, or beside
    an observation's noise.
    """
    share = float(np.max(error * prior / np.maximum(variance, np.finfo(float).tiny)))
    if error > accuracy and share > MISSED:
        warn_caller(
            f"quadrature leaves errors of {error:.2g} in the covariances of {type(functional).__name__}, relative to prior "
            f"variances (accuracy {accuracy:.2g}), and up to {share:.2g} {of_what}: the kernel is rough, or its lengthscale "
            "short for them; split them into smaller ones",
        )


class _FlatNodes(NamedTuple):
    """The nodes of all functionals one after the other; `owner` numbers the functional of each."""

    x: Float[np.ndarray, "D n"]
    weights: Float[np.ndarray, " n"]
    owner: Int[np.ndarray, " n"]
    value: Float[np.ndarray, " n"] | None
    direction: Float[np.ndarray, "D n"] | None

    @staticmethod
    def of(nodes: Nodes) -> "_FlatNodes":
        per, x = nodes.rule_size, np.asarray(nodes.x, float)
        each = lambda a: None if a is None else np.repeat(np.asarray(a, float).T, per, axis=-1)
        flat = np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T)
        owner = np.repeat(np.arange(len(x)), per)
        return _FlatNodes(flat, np.ravel(nodes.weights), owner, each(nodes.value), each(nodes.direction))

    def at(self, index: Int[np.ndarray, " k"], shape: tuple[int, ...]) -> TransposedNodes:
        """The nodes numbered `index` without their weights, in an array of this shape, for broadcasting."""
        pick = lambda a: np.take(a, index, axis=-1).reshape(*a.shape[:-1], *shape)
        value, direction = (None if a is None else pick(a) for a in (self.value, self.direction))
        return TransposedNodes(pick(self.x), np.empty(0), value, direction)

    def summed(self, values: Float[np.ndarray, "k m"], some: slice) -> Float[np.ndarray, "f m"]:
        """The weighted sums over the nodes `some` of each functional that has some of them."""
        owner = self.owner[some]
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        return np.add.reduceat(self.weights[some, None] * values, first, axis=0)

    def functionals(self, some: slice) -> slice:
        return slice(int(self.owner[some][0]), int(self.owner[some][-1]) + 1)


def covariance_matrix(kernel: Kernel, a: list[Nodes], b: list[Nodes], report: Report = silent) -> np.ndarray:
    """Return the covariances between all functionals of `a` and all of `b`; pairs are evaluated once if `b` is `a`."""
    return _matrix(functools.partial(_between_nodes, kernel), a, b, report)


def covariance_derivative(
    kernel_of: Callable[[Any], Kernel], vector: Array, direction: Array, nodes: list[Nodes]
) -> Float[np.ndarray, "N N"]:
    """Return the derivative of the covariances along `direction` of the vector of parameters that determines the kernel."""
    return _matrix(
        functools.partial(_derivative_between_nodes, kernel_of, vector, direction), nodes, nodes, silent
    )


def compiled_prior_variances(kernel: Kernel, nodes: Nodes) -> Float[np.ndarray, " N"]:
    """Return the variance of every functional under the prior."""
    return _paired_covariances(kernel, nodes, nodes)


def _matrix(entries: Any, a: list[Nodes], b: list[Nodes], report: Report) -> Float[np.ndarray, "Na Nb"]:
    """Fill a matrix of covariances of functionals tile by tile from those of nodes, `entries(nodes, others)`.

    All tiles have one size, so that no program is compiled for new numbers of functionals or of nodes.
    """
    starts, ends = ([0, *np.cumsum([len(part) for part in parts])] for parts in (a, b))
    out = np.zeros((starts[-1], ends[-1]))
    flat = [_FlatNodes.of(part) for part in a]
    others = flat if b is a else [_FlatNodes.of(part) for part in b]
    for i, rows in enumerate(flat):
        for some, index in _tiles(rows):
            along = rows.functionals(some)
            for j, columns in enumerate(others[: i + 1] if b is a else others):
                for other, position in _tiles(columns):
                    mirrored = b is a and (j < i or other.start < some.start)
                    if b is a and j == i and other.start > some.start:
                        break
                    k = np.asarray(entries(rows.at(index, (TILE, 1)), columns.at(position, (1, TILE))))
                    k = rows.summed(k[: some.stop - some.start, : other.stop - other.start], some)
                    k = columns.summed(k.T, other).T
                    across = columns.functionals(other)
                    at = slice(starts[i] + along.start, starts[i] + along.stop)
                    to = slice(ends[j] + across.start, ends[j] + across.stop)
                    out[at, to] += k
                    if mirrored:
                        out[to, at] += k.T
            report(starts[i] + along.stop, len(out))
    return out


def _tiles(nodes: _FlatNodes) -> Iterator[tuple[slice, Int[np.ndarray, " k"]]]:
    """Yield slices of at most TILE nodes, each with the numbers of its nodes, filled up to TILE."""
    count = len(nodes.weights)
    for begin in range(0, count, TILE):
        yield slice(begin, min(begin + TILE, count)), np.minimum(np.arange(begin, begin + TILE), count - 1)


@eqx.filter_jit
def _between_nodes(kernel: Kernel, a: TransposedNodes, b: TransposedNodes) -> Float[Array, "..."]:
    """Return the covariances of nodes, without their weights; `a` and `b` broadcast."""
    return kernel_between_nodes(kernel, a, b)(differences(a.x, b.x))


@bounded_jit(most=64)
def _derivative_between_nodes(
    kernel_of: Callable[[Any], Kernel],
    vector: Array,
    direction: Array,
    a: TransposedNodes,
    b: TransposedNodes,
) -> Float[Array, "..."]:
    return jax.jvp(lambda v: _between_nodes(kernel_of(v), a, b), (vector,), (direction,))[1]


def _difference(kernel: Kernel, a: Nodes, b: Nodes) -> float:
    """Return the largest difference between covariances by two quadratures, relative to the standard deviations.

    Of every functional its variance, where kernels have their kinks, and its covariance with the next one.
    """
    numbers = np.arange(len(a))
    rows, columns = np.append(numbers, numbers), np.append(numbers, np.roll(numbers, 1))
    one, other = (_paired_covariances(kernel, n[rows], n[columns]) for n in (a, b))
    std = np.sqrt(other[: len(a)])
    return float(np.max(np.abs(one - other) / (std[rows] * std[columns])))


def _paired_covariances(kernel: Kernel, a: Nodes, b: Nodes) -> Float[np.ndarray, " N"]:
    """Return the covariance of every functional of `a` with the one of `b` that has its number."""
    rows, columns = _FlatNodes.of(a), _FlatNodes.of(b)
    nodes_of_each = np.arange(len(columns.weights)).reshape(len(b), -1)  # nodes of each functional of b
    total, size = np.zeros(len(a)), max(1, TILE**2 // b.rule_size)
    for begin in range(0, len(rows.weights), size):
        n = rows.owner[begin : begin + size]
        others, count = nodes_of_each[n], len(n) * b.rule_size
        fill = lambda index, missing=TILE**2 - count: np.pad(index, (0, max(missing, 0)), mode="edge")
        first = rows.at(fill(np.repeat(np.arange(begin, begin + len(n)), b.rule_size)), (-1,))
        k = np.asarray(_between_nodes(kernel, first, columns.at(fill(np.ravel(others)), (-1,))))[:count]
        each = (
            np.sum(k.reshape(len(n), -1) * columns.weights[others], axis=1)
            * rows.weights[begin : begin + size]
        )
        total += np.bincount(n, each, len(a))
    return total
