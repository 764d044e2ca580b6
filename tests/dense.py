"""The truth that every law is checked against: dense inter-domain GPs in plain NumPy and float64.

Nothing here comes from hipgp, and nothing is differentiated automatically. A kernel is a function of the difference
delta = x - x'. A functional is L_n f = sum_q c_nq (value_n f(x_nq) + direction_n . grad f(x_nq)), so that

    cov(L_a f, L_b f) = sum_pq c_ap c_bq [v_a v_b k - v_a d_b.grad k + v_b d_a.grad k - d_a' (hess k) d_b](x_ap - x_bq).

Two models: `exact_gp`, and the sparse GP with inducing points `svgp`, the latter also with explicit whitened
variational parameters (`svgp_optimum`, `svgp_predict`, `svgp_elbo`). Noise is N = diag(noise_std^2) throughout.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.sparse import csr_array

from dense_kernels import (
    Gneiting as Gneiting,
)
from dense_kernels import (
    Kernel as Kernel,
)
from dense_kernels import (
    Matern12 as Matern12,
)
from dense_kernels import (
    Matern32 as Matern32,
)
from dense_kernels import (
    Matern52 as Matern52,
)
from dense_kernels import (
    Periodic as Periodic,
)
from dense_kernels import (
    Product as Product,
)
from dense_kernels import (
    RationalQuadratic as RationalQuadratic,
)
from dense_kernels import (
    SquaredExponential as SquaredExponential,
)
from dense_kernels import (
    Sum as Sum,
)

LARGEST_BLOCK = 1_000_000  # pairs of nodes held at once
LARGEST_JITTER = (
    1e-12  # relative to the mean of the diagonal, and only where a Cholesky factor fails without it
)

# ---------------------------------------------------------------- functionals


class Functional(NamedTuple):
    """N functionals of Q nodes each: nodes (N, Q, D), weights (N, Q), value (N,) 0 or 1, direction (N, D)."""

    nodes: np.ndarray
    weights: np.ndarray
    value: np.ndarray
    direction: np.ndarray

    def rows(self, index):
        return Functional(*(field[index] for field in self))

    def __add__(self, other):
        return concatenate(self, other)


def functionals(nodes, weights, direction=None):
    """sum_q c_nq f(x_nq); with a direction (D,) or (N, D), of the derivative of f along it."""
    nodes, weights = np.asarray(nodes, float), np.asarray(weights, float)
    count, _, dimension = nodes.shape
    if direction is None:
        return Functional(nodes, weights, np.ones(count), np.zeros((count, dimension)))
    direction = np.broadcast_to(np.asarray(direction, float), (count, dimension))
    return Functional(nodes, weights, np.zeros(count), direction)


def points(x):
    x = np.asarray(x, float)
    return functionals(x[:, None, :], np.ones((len(x), 1)))


def derivatives(x, axis=None, direction=None):
    x = np.asarray(x, float)
    direction = np.eye(x.shape[-1])[axis] if direction is None else direction
    return functionals(x[:, None, :], np.ones((len(x), 1)), direction)


def line_integrals(start, end, order=16, panels=4, average=False):
    """Composite Gauss-Legendre: `panels` equal pieces of `order` nodes."""
    end = np.asarray(end, float)
    start = np.broadcast_to(np.asarray(start, float), end.shape)
    t, weight = _composite_gauss(order, panels)
    nodes = start[:, None, :] + t[:, None] * (end - start)[:, None, :]
    length = np.ones(len(end)) if average else np.linalg.norm(end - start, axis=-1)
    return functionals(nodes, length[:, None] * weight)


def box_averages(lower, upper, order=8, panels=1):
    lower, upper = np.broadcast_arrays(np.asarray(lower, float), np.asarray(upper, float))
    dimension = lower.shape[-1]
    t, weight = _composite_gauss(order, panels)
    unit = np.stack([g.ravel() for g in np.meshgrid(*[t] * dimension, indexing="ij")], axis=-1)
    weights = np.prod([g.ravel() for g in np.meshgrid(*[weight] * dimension, indexing="ij")], axis=0)
    nodes = lower[:, None, :] + unit * (upper - lower)[:, None, :]
    return functionals(nodes, np.broadcast_to(weights, nodes.shape[:2]))


def polygon_averages(polygons, order=16, total=False):
    """Rings of vertices, outlines counter-clockwise and holes clockwise: signed triangles with the origin, in polar form."""
    (t, c), made = _composite_gauss(order, 1), []
    s, along = (g.ravel() for g in np.meshgrid(t, t, indexing="ij"))
    for rings in polygons:
        edges = [(a, b) for ring in rings for a, b in zip(ring, np.roll(ring, -1, axis=0), strict=True)]
        nodes = [s[:, None] * (a + along[:, None] * (b - a)) for a, b in edges]
        weights = [np.outer(c * t, c).ravel() * (a[0] * b[1] - a[1] * b[0]) for a, b in edges]
        scale = 1 if total else np.sum(weights)
        made.append(functionals(np.concatenate(nodes)[None], np.concatenate(weights)[None] / scale))
    return concatenate(*made)


def concatenate(*parts):
    """One functional after the other; fewer nodes than the most are padded with nodes of zero weight."""
    most = max(f.weights.shape[1] for f in parts)
    pad = [most - f.weights.shape[1] for f in parts]
    nodes = [np.pad(f.nodes, ((0, 0), (0, n), (0, 0)), mode="edge") for f, n in zip(parts, pad, strict=True)]
    weights = [np.pad(f.weights, ((0, 0), (0, n))) for f, n in zip(parts, pad, strict=True)]
    return Functional(
        np.concatenate(nodes),
        np.concatenate(weights),
        np.concatenate([f.value for f in parts]),
        np.concatenate([f.direction for f in parts]),
    )


def _composite_gauss(order, panels):
    x, w = np.polynomial.legendre.leggauss(order)
    nodes = (np.arange(panels)[:, None] + (x + 1) / 2) / panels
    return nodes.ravel(), np.tile(w / 2, panels) / panels


def covariance(kernel, a, b):
    """cov(L_a f, L_b f), (Na, Nb): values with values, with derivatives, and derivatives with derivatives."""
    a0, a1, b0, b1 = (
        _nodes_of_values(a),
        _nodes_of_derivatives(a),
        _nodes_of_values(b),
        _nodes_of_derivatives(b),
    )

    def slope_of_b(delta, _, d):
        return -np.einsum("pqi,qi->pq", kernel.gradient(delta), d)

    def slope_of_a(delta, d, _):
        return np.einsum("pqi,pi->pq", kernel.gradient(delta), d)

    def slopes(delta, d, e):
        return -np.einsum("pqij,pi,qj->pq", kernel.hessian(delta), d, e, optimize=True)

    total = _sum_over_pairs(lambda delta, *_: kernel.value(delta), a0, b0)
    total += _sum_over_pairs(slope_of_b, a0, b1) + _sum_over_pairs(slope_of_a, a1, b0)
    return total + _sum_over_pairs(slopes, a1, b1)


def variance(kernel, a):
    """The diagonal of `covariance(kernel, a, a)`, (N,)."""
    each = (a.rows(slice(n, n + 1)) for n in range(len(a.value)))
    return np.array([covariance(kernel, f, f)[0, 0] for f in each])


class _Nodes(NamedTuple):
    """All nodes of nonzero weight in one list: x (P, D), direction (P, D), and the sums (N, P) that they enter."""

    x: np.ndarray
    direction: np.ndarray
    sums: csr_array


def _nodes_of_values(f):
    return _flat_nodes(f, f.value != 0)


def _nodes_of_derivatives(f):
    return _flat_nodes(f, np.any(f.direction != 0, axis=-1))


def _flat_nodes(f, chosen):
    row, column = np.nonzero((f.weights != 0) & chosen[:, None])
    shape = (len(f.value), len(row))
    sums = csr_array((f.weights[row, column], (row, np.arange(len(row)))), shape=shape)
    return _Nodes(f.nodes[row, column], f.direction[row], sums)


def _sum_over_pairs(entry, a, b):
    """sum_pq c_ap c_bq entry(x_ap - x_bq, d_a, d_b), in blocks of rows that fit in memory."""
    total = np.zeros((a.sums.shape[0], b.sums.shape[0]))
    rows = max(1, LARGEST_BLOCK // max(1, len(b.x)))
    for i in range(0, len(a.x) if len(b.x) else 0, rows):
        part = slice(i, i + rows)
        pairs = entry(a.x[part, None, :] - b.x, a.direction[part], b.direction)
        total += a.sums[:, part] @ (b.sums @ pairs.T).T
    return total


# ---------------------------------------------------------------- models


class Result(NamedTuple):
    """Posterior `mean` and `covariance` of the functionals asked for; `objective`: log marginal likelihood or ELBO."""

    mean: np.ndarray
    covariance: np.ndarray
    objective: float
    coefficients: np.ndarray  # of the trend; empty without one

    @property
    def std(self):
        return np.sqrt(np.diag(self.covariance))


def exact_gp(kernel, f, y, noise_std, f_star, trend=None, trend_star=None):
    """The exact posterior of `f_star` given y = L f + trend . beta + noise, with a flat prior on beta.

    With a trend the objective is log of the integral of N(y | X beta, A) over beta: the restricted likelihood.
    """
    a = covariance(kernel, f, f) + np.diag(_noise_variance(noise_std, y))
    cross = covariance(kernel, f_star, f)
    return _condition(a, cross, covariance(kernel, f_star, f_star), y, trend, trend_star)


def svgp(kernel, grid_points, f, y, noise_std, f_star, residual="bound", trend=None, trend_star=None):
    """The full-rank optimum in collapsed form: A = Qff + N and cov = K** - Q*f A^-1 Qf*, so K** - Q** is included.

    residual="bound": the variational one, ELBO = log N(y | 0, A) - sum v / (2 s^2), v = diag(Kff - Qff).
    residual="noise": v is added to the noise instead (FITC), and the objective is log N(y | 0, A).
    """
    phi, v = whitened_features(kernel, grid_points, f)
    phi_star, _ = whitened_features(kernel, grid_points, f_star)
    noise, penalty = _split_residual(_noise_variance(noise_std, y), v, residual)
    a = phi @ phi.T + np.diag(noise)
    result = _condition(a, phi_star @ phi.T, covariance(kernel, f_star, f_star), y, trend, trend_star)
    return result._replace(objective=result.objective - penalty)


def whitened_features(kernel, grid_points, f, root=None):
    """Rows k_n' of paper eq. (whitened-criteria), k_n = R^-1 k*_un, and residual variances v_n = k**_n - k_n'k_n.

    R is the Cholesky factor of Kuu, or any other `root` (M, T) with R R' = Kuu: then k_n = R' Kuu^-1 k*_un.
    """
    inducing = points(grid_points)
    lower = _cholesky(covariance(kernel, inducing, inducing))
    phi = solve_triangular(lower, covariance(kernel, inducing, f), lower=True).T
    v = np.maximum(variance(kernel, f) - np.sum(phi**2, axis=1), 0.0)
    if root is not None:
        phi = solve_triangular(lower, phi.T, lower=True, trans="T").T @ root
    return phi, v


def svgp_optimum(kernel, grid_points, f, y, noise_std, residual="bound", root=None, blocks=None):
    """The optimal whitened m, S: L = I + Phi' N^-1 Phi, m = L^-1 Phi' N^-1 y, S = L^-1 (paper, appendix B.1.1).

    `blocks`: index arrays that part the whitened variables; then S_b = (L_bb)^-1, and m is the same.
    """
    phi, v = whitened_features(kernel, grid_points, f, root)
    noise, _ = _split_residual(_noise_variance(noise_std, y), v, residual)
    precision = np.eye(phi.shape[1]) + (phi.T / noise) @ phi
    m = np.linalg.solve(precision, phi.T @ (y / noise))
    s = np.zeros_like(precision)
    for block in [np.arange(len(m))] if blocks is None else blocks:
        s[np.ix_(block, block)] = np.linalg.inv(precision[np.ix_(block, block)])
    return m, s


def svgp_predict(m, s, kernel, grid_points, f_star, root=None):
    """Mean and covariance of `f_star` under q: Phi* m and K** - Phi* (I - S) Phi*'."""
    phi, _ = whitened_features(kernel, grid_points, f_star, root)
    return phi @ m, covariance(kernel, f_star, f_star) - phi @ phi.T + phi @ s @ phi.T


def svgp_elbo(m, s, kernel, grid_points, f, y, noise_std, residual="bound", root=None):
    """The whitened bound at any m, S (paper, eq. whitened-elbo, with its constant)."""
    phi, v = whitened_features(kernel, grid_points, f, root)
    noise, penalty = _split_residual(_noise_variance(noise_std, y), v, residual)
    spread = np.sum((phi @ s) * phi, axis=1)
    fit = -0.5 * np.sum(np.log(2 * np.pi * noise) + ((y - phi @ m) ** 2 + spread) / noise)
    kl = 0.5 * (np.trace(s) + m @ m - np.linalg.slogdet(s)[1] - len(m))
    return fit - penalty - kl


def _condition(a, cross, prior, y, trend, trend_star):
    """N(0, prior) given y ~ N(trend . beta, a), by generalised least squares for beta."""
    x = np.zeros((len(y), 0)) if trend is None else np.asarray(trend, float)
    x_star = np.zeros((len(cross), 0)) if trend_star is None else np.asarray(trend_star, float)
    factor = (cholesky(a, lower=True), True)
    information = x.T @ cho_solve(factor, x)
    beta = np.linalg.solve(information, x.T @ cho_solve(factor, y))
    misfit = y - x @ beta
    alpha = cho_solve(factor, misfit)
    left = x_star - cross @ cho_solve(factor, x)
    cov = prior - cross @ cho_solve(factor, cross.T) + left @ np.linalg.solve(information, left.T)
    log_det = 2 * np.sum(np.log(np.diag(factor[0]))) + np.linalg.slogdet(information)[1]
    objective = -0.5 * (misfit @ alpha + log_det + (len(y) - x.shape[1]) * np.log(2 * np.pi))
    return Result(x_star @ beta + cross @ alpha, (cov + cov.T) / 2, float(objective), beta)


def _noise_variance(noise_std, y):
    return np.broadcast_to(np.asarray(noise_std, float), np.shape(y)) ** 2


def _split_residual(noise, v, residual):
    """The noise that is fitted with, and what the objective loses: v is either penalised or added to the noise."""
    if residual not in ("bound", "noise"):
        raise ValueError(f"residual: expected 'bound' or 'noise', got {residual!r}")
    return (noise, 0.5 * np.sum(v / noise)) if residual == "bound" else (noise + v, 0.0)


def _cholesky(matrix):
    for jitter in (0.0, 1e-15, 1e-14, 1e-13, LARGEST_JITTER):
        try:
            return cholesky(matrix + jitter * np.mean(np.diag(matrix)) * np.eye(len(matrix)), lower=True)
        except np.linalg.LinAlgError:
            continue
    raise np.linalg.LinAlgError(
        f"the inducing covariance is singular even with a relative jitter of {LARGEST_JITTER}"
    )
