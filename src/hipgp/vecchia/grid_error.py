"""Estimated errors of the posterior due to the grid, by local kriging with and without it at some observations.

The residual of an observation, which the grid does not represent, counts as noise independent of all other noise. That is
an approximation: observations closer to each other than a grid cell have correlated residuals. Its error is estimated
here. Around some observations the nearest others are taken, and the posterior at the centre, at the nearest grid point and at a
place between grid points is computed with the kernel's covariances (A, c) and with the grid's (B, b). With d = A^-1 c - B^-1 b and data drawn from the model, the two
means differ by sqrt(d' A d) in the root mean square, which is compared with the posterior standard deviation
sqrt(k - c' A^-1 c). The measured values are not needed, and no program is compiled for a new grid.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int

from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.vecchia.local_problems import TABLE, LocalProblems, Resolution
from hipgp.vecchia.node_sums import NodeSums, covariance_of_sums, kernel_covariance, tabulated_covariance
from hipgp.weights.stencil_geometry import STENCIL, locate_stencils, stencil_offsets
from hipgp.weights.stencils import WeightRows

ROUNDING = 1e-12  # relative to the prior variance: smaller noise is lost in rounding errors
USUAL_ORDER, LEAST_ORDER, MOST_ORDER = 2.0, 0.5, 6.0  # of the convergence of the errors in the spacing


class GridError(NamedTuple):
    """The largest errors over some places.

    `mean` is the error of the mean in posterior standard deviations; `std` is the ratio of the larger to the smaller of the
    stated and the true standard deviation, less one; `places` is the number of places.
    """

    mean: float
    std: float
    places: int


def convergence_order(of_errors: float, of_spacings: float) -> float:
    """The order at which errors converge, from the ratios of two errors and of the spacings that caused them."""
    return float(np.clip(np.log(of_errors) / np.log(of_spacings), LEAST_ORDER, MOST_ORDER))


class GridModel(NamedTuple):
    """An engine's approximation of the data by its grid.

    - `rows` is W if the engine has it as a sparse matrix; otherwise it is approximated by stencils of `stencil` points per
      axis.
    - `residual` holds the residual variances if they are known for all data; with `residual_as_noise` they are added to
      the noise (FITC).
    - `vecchia_std`: standard deviations come from the nearest observations and the kernel, not from the grid.
    - `block` numbers the blocks of observations with jointly Gaussian residuals (PIC).
    """

    rows: WeightRows | None
    residual: Float[np.ndarray, " N"] | None
    stencil: int
    residual_as_noise: bool
    vecchia_std: bool
    block: Int[np.ndarray, " N"] | None = None


class GridApproximation(NamedTuple):
    """The grid's approximation of the observations of local problems: their rows of W, and the residual variances.

    With `residual_as_noise` the residual variances are added to the noise. If `residual` is None they follow from the
    covariances. `stencil` is the number of points per axis from which a value at a place is interpolated.
    """

    columns: Int[np.ndarray, "n e"]
    values: Float[np.ndarray, "n e"]
    residual_as_noise: bool
    stencil: int
    residual: Float[np.ndarray, " n"] | None = None

    @staticmethod
    def from_rows(
        rows: WeightRows, problems: LocalProblems, counted: bool, stencil: int
    ) -> "GridApproximation":
        """Select the rows of the problems' observations from those of all data."""
        residual = np.asarray(rows.residual, float)[problems.rows]
        columns, values = rows.csr.padded_rows(problems.rows)
        return GridApproximation(columns, values, counted, _of_places(stencil, problems), residual)

    def by_cell(self) -> Any:
        """Return the membership of observations in cells, as blocks with jointly Gaussian residuals."""
        cell = np.unique(self.columns[:, 0], return_inverse=True)[1]
        entries = np.ones(len(cell)), (np.arange(len(cell)), cell)
        return scipy.sparse.csr_array(entries, shape=(len(cell), int(np.max(cell)) + 1))


def grid_error(
    kernel: Kernel, grid: Grid, problems: LocalProblems, approximation: GridApproximation, vecchia: bool
) -> GridError:
    """Return the errors of the posterior on `grid`, at the centres of the problems, the nearest grid points, and between these.

    With `vecchia`, standard deviations come from the kernel itself, given the nearest observations (`batch/variances.py`).
    """
    on_grid = tabulated_covariance(kernel, grid) if grid.size <= TABLE else kernel_covariance(kernel)
    found, rows = [], _point_weights(kernel, grid, problems.between, approximation.stencil)
    each = zip(problems.members, problems.points, problems.between, *rows, strict=True)
    for members, point, between, columns, values in each:
        places = np.stack([point, between])
        true = covariance_of_sums(_exact(grid, problems, members, places), kernel_covariance(kernel))
        sums = _on_grid(grid, approximation, members, point, (columns, values))
        ours = covariance_of_sums(sums, on_grid)
        if problems.shares is not None:  # residuals of points in the same cell are known together
            k, same = len(members), approximation.columns[members, 0] == columns[0]
            ours[:k, -1] += same * (true - ours)[:k, -1]
        found.append(_errors(true, ours, problems, approximation, members, vecchia))
    mean, std = np.moveaxis(np.array(found), -1, 0)
    return GridError(float(np.max(mean)), float(np.expm1(np.max(np.abs(std)))), mean.size)


def _errors(
    true: Float[np.ndarray, "k+2 k+2"],
    ours: Float[np.ndarray, "k+2 k+2"],
    problems: LocalProblems,
    approximation: GridApproximation,
    members: Int[np.ndarray, " k"],
    vecchia: bool,
) -> Float[np.ndarray, "3 2"]:
    """Return the errors of the mean and of log std: of the functional at the centre, and of the field at two places nearby.

    `true` and `ours` are the kernel's and the grid's covariances of the members and, last, of a grid point and a place between.
    """
    k, at = len(members), [0, -2, -1]
    left_out = np.maximum(np.diag(true) - np.diag(ours), 0.0)[:k]
    residual = left_out if approximation.residual is None else approximation.residual[members]
    prior = np.diag(ours)[at] + [residual[0], 0.0, max(true[-1, -1] - ours[-1, -1], 0.0)]
    known = 1 / problems.precision[members] + ROUNDING * np.max(np.diag(true))
    noise = known
    if problems.shares is not None:
        shares = problems.shares[members].toarray()
        ours[:k, :k] += (shares @ shares.T) * (true - ours)[:k, :k]
    elif approximation.residual_as_noise:
        noise = known + residual / problems.count[members]
    a, c = true[:k, :k] + np.diag(known), true[:k][:, at]
    b, cross = ours[:k, :k] + np.diag(noise), ours[:k][:, at]
    weights, approximate = _solve(a, c), _solve(b, cross)
    conditional = lambda prior, c, w: np.maximum(prior - np.sum(c * w, axis=0), ROUNDING * np.diag(true)[at])
    variance = conditional(np.diag(true)[at], c, weights)
    if vecchia:
        stated = conditional(np.diag(true)[at], c, _solve(true[:k, :k] + np.diag(noise), c))
    else:
        stated = conditional(prior, cross, approximate)
    gap = weights - approximate
    mean = np.sqrt(np.sum(gap * (a @ gap), axis=0) / variance)
    return np.stack([mean, np.log(stated / variance) / 2], axis=1)


def _solve(matrix: Float[np.ndarray, "k k"], rhs: Float[np.ndarray, "k 2"]) -> Float[np.ndarray, "k 2"]:
    """Solve by Cholesky, or by least squares if rounding has made the matrix indefinite."""
    try:
        return scipy.linalg.cho_solve(scipy.linalg.cho_factor(matrix, lower=True), rhs)
    except np.linalg.LinAlgError:
        return np.linalg.lstsq(matrix, rhs)[0]


# --- functionals as sums over nodes -----------------------------------------------------------------------------------


def _exact(
    grid: Grid, problems: LocalProblems, rows: Int[np.ndarray, " k"], places: Float[np.ndarray, "m D"]
) -> NodeSums:
    """Return the functionals as sums over their quadrature nodes and, last, the values at some places."""
    last = Nodes(places[:, None], np.ones((len(places), 1)))
    parts = [*problems.nodes(grid, rows, problems.density), (last, len(rows) + np.arange(len(places)))]
    derivative = any(nodes.direction is not None for nodes, _ in parts)
    if derivative:
        parts = [(nodes.with_derivative_fields(), at) for nodes, at in parts]
    flat = lambda pick: np.concatenate([np.asarray(pick(nodes), float) for nodes, _ in parts])
    each = lambda a, nodes: np.repeat(a, nodes.rule_size, axis=0)
    owner = np.concatenate([each(at, nodes) for nodes, at in parts])
    c = flat(lambda nodes: np.ravel(nodes.weights))
    kept = np.flatnonzero(c)
    weights = scipy.sparse.csr_array(
        (c[kept], (owner[kept], np.arange(len(kept)))), shape=(len(rows) + len(places), len(kept))
    )
    x = flat(lambda nodes: np.reshape(nodes.x, (-1, grid.ndim)))[kept]
    if not derivative:
        return NodeSums(x, weights)
    value, direction = (
        flat(lambda nodes, n=n: each(getattr(nodes, n), nodes)) for n in ("value", "direction")
    )
    return NodeSums(x, weights, value[kept], direction[kept])


def stencil_approximation(
    kernel: Kernel, grid: Grid, problems: LocalProblems, p: int, counted: bool
) -> GridApproximation:
    """Approximate the observations by stencils of `p` points per axis, in NumPy, without compiling for a grid."""
    stencil, flat, between = _stencil(kernel, grid, p)
    columns, values = [], []
    for nodes, numbers in problems.nodes(grid, np.arange(len(problems.rows)), 1):
        x = np.asarray(nodes.x, float).reshape(-1, grid.ndim)
        begin, offset = locate_stencils(grid, x, p)
        cross = _stencil_covariance(kernel, nodes, offset * np.asarray(grid.spacing), stencil)
        w = np.linalg.solve(between, cross.T).T * np.reshape(nodes.weights, (-1, 1))
        columns.append((begin[:, None] + flat).reshape(len(numbers), -1))
        values.append(w.reshape(len(numbers), -1))
    most = max(a.shape[1] for a in columns)
    fill = lambda a: np.pad(a, ((0, 0), (0, most - a.shape[1])))
    stacked = [np.concatenate([fill(a) for a in found]) for found in (columns, values)]
    approximation = GridApproximation(stacked[0], stacked[1], counted, _of_places(p, problems))
    if all(functional.single for functional in problems.data.functionals):
        return approximation  # residual variances are the difference of the covariances
    parts = [
        _unseen_and_prior(kernel, grid, problems, approximation, row)[0] for row in range(len(problems.rows))
    ]
    return approximation._replace(residual=np.array(parts))


def _of_places(stencil: int, problems: LocalProblems) -> int:
    """Return the width of the stencil of values at places, which is wider than that of lines in three dimensions."""
    single = all(functional.single for functional in problems.data.functionals)
    return stencil if single else max(stencil, STENCIL)


def _stencil(kernel: Kernel, grid: Grid, p: int) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, "P P"]]:
    """Return the points of a stencil, relative to its first one and in the grid's flat order, and their covariances."""
    steps, flat = stencil_offsets(grid, p)
    stencil = steps * np.asarray(grid.spacing)
    between = kernel_covariance(kernel)(NodeSums(stencil), slice(None), slice(None))
    return stencil, flat, between + 10 * np.finfo(float).eps * np.trace(between) * np.eye(len(between))


def _point_weights(
    kernel: Kernel, grid: Grid, x: Float[np.ndarray, "n D"], p: int
) -> tuple[Int[np.ndarray, "n P"], Float[np.ndarray, "n P"]]:
    """Return the grid points that values at places are interpolated from, and their weights."""
    stencil, flat, between = _stencil(kernel, grid, p)
    begin, offset = locate_stencils(grid, x, p)
    nodes = Nodes(x[:, None], np.ones((len(x), 1)))
    cross = _stencil_covariance(kernel, nodes, offset * np.asarray(grid.spacing), stencil)
    return begin[:, None] + flat, np.linalg.solve(between, cross.T).T


def _unseen_and_prior(
    kernel: Kernel, grid: Grid, problems: LocalProblems, approximation: GridApproximation, row: int
) -> tuple[float, float]:
    """Return the variance of one observation's functional less its row of W, and that of the functional itself."""
    ((nodes, _),) = problems.nodes(grid, np.array([row]), 1)
    used, where = np.unique(approximation.columns[row], return_inverse=True)
    w = np.bincount(where, approximation.values[row])
    points = np.asarray(grid.origin) + np.stack(np.unravel_index(used, grid.shape), axis=-1) * np.asarray(
        grid.spacing
    )
    x = np.concatenate([np.asarray(nodes.x[0], float), points])
    c = np.asarray(nodes.weights[0], float)
    weights = scipy.sparse.csr_array(np.stack([np.append(c, -w), np.append(c, 0.0 * w)]))
    sums = NodeSums(x, weights, *_values_and_directions(nodes, len(used)))
    unseen, prior = np.diag(covariance_of_sums(sums, kernel_covariance(kernel)))
    return max(float(unseen), 0.0), float(prior)


def unseen_variances(
    kernel: Kernel, grid: Grid, data: Data, p: int, resolution: Resolution
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """The residual variance of every observation with stencils of `p` points per axis, and its prior variance.

    For any grid, without compiling; meant for a few tens of observations.
    """
    rows = np.arange(len(data))
    one, at = np.ones(len(data)), np.tile(np.asarray(grid.lower), (len(data), 1))
    problems = LocalProblems(data, rows, one, one, None, rows[:, None], at, at, 1, resolution)
    view = stencil_approximation(kernel, grid, problems, p, True)
    unseen, prior = np.transpose([_unseen_and_prior(kernel, grid, problems, view, int(row)) for row in rows])
    return unseen, prior


def _stencil_covariance(
    kernel: Kernel, nodes: Nodes, at: Float[np.ndarray, "n D"], stencil: Float[np.ndarray, "P D"]
) -> Float[np.ndarray, "n P"]:
    """Return the covariances of nodes with the points of their stencils."""
    x = np.concatenate([at, stencil])
    sums = NodeSums(x, None, *_values_and_directions(nodes, len(stencil)))
    return kernel_covariance(kernel)(sums, slice(len(at)), slice(len(at), None))


def _values_and_directions(nodes: Nodes, points: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The factors of value and derivative of nodes and, after them, of grid points; None where all are plain values."""
    if nodes.direction is None or nodes.value is None:
        return None, None
    direction = np.repeat(nodes.direction, nodes.rule_size, axis=0)
    value = np.concatenate([np.repeat(nodes.value, nodes.rule_size), np.ones(points)])
    return value, np.concatenate([direction, np.zeros((points, direction.shape[1]))])


def _on_grid(
    grid: Grid,
    approximation: GridApproximation,
    rows: Int[np.ndarray, " k"],
    point: Float[np.ndarray, " D"],
    between: tuple[Int[np.ndarray, " P"], Float[np.ndarray, " P"]],
) -> NodeSums:
    """Return the functionals as sums over grid points, by their rows of W, and last the values at a grid point and `between`."""
    columns, values = approximation.columns[rows], approximation.values[rows]
    steps = np.rint((point - np.asarray(grid.origin)) / np.asarray(grid.spacing)).astype(int)
    position = np.ravel_multi_index(tuple(steps), grid.shape)
    owner, slot = np.nonzero(values)
    at = np.concatenate([columns[owner, slot], [position], between[0]])
    used, where = np.unique(at, return_inverse=True)
    of_between = np.full(len(between[0]), len(rows) + 1)
    number = np.concatenate([owner, [len(rows)], of_between])
    entries = np.concatenate([values[owner, slot], [1.0], between[1]]), (number, where)
    weights = scipy.sparse.csr_array(entries, shape=(len(rows) + 2, len(used)))
    index = np.stack(np.unravel_index(used, grid.shape), axis=-1)
    return NodeSums(np.asarray(grid.origin) + index * np.asarray(grid.spacing), weights)
