"""The dense systems of the paper's tables in plain NumPy: the exact GP and SGPR, for any linear functional.

    f = points(x)                      # or derivatives(x), line_integrals(start, end)
    mean, std = exact_gp(Kernel("matern32", variance, lengthscale), [f], y, noise, [points(x_test)])

Nothing here comes from hipgp. A functional is nodes (N, Q, D) and weights (N, Q) of values, or, in one dimension, of slopes.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

LARGEST_EXACT = 20_000  # observations: a covariance of 3 GiB, and a minute or two
AT_ONCE = 2_000_000  # pairs of nodes

PROFILES = {  # k / variance as a function of the scaled distance
    "matern12": lambda r: np.exp(-r),
    "matern32": lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    "matern52": lambda r: (1 + np.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-np.sqrt(5) * r),
    "squared exponential": lambda r: np.exp(-0.5 * r**2),
}


class Kernel(NamedTuple):
    profile: str
    variance: float
    lengthscale: Any  # a number, or one per axis


class Functional(NamedTuple):
    nodes: np.ndarray
    weights: np.ndarray
    slope: bool = False

    def rows(self, some: slice) -> "Functional":
        return Functional(self.nodes[some], self.weights[some], self.slope)


def points(x: Any) -> Functional:
    x = np.asarray(x, float)
    return Functional(x[:, None, :], np.ones((len(x), 1)))


def derivatives(x: Any) -> Functional:
    """Slopes at places in one dimension, (N, 1)."""
    return points(x)._replace(slope=True)


def line_integrals(start: Any, end: Any, order: int = 16) -> Functional:
    """Gauss-Legendre nodes from `start` to each `end`."""
    t, w = np.polynomial.legendre.leggauss(order)
    start, end = np.asarray(start, float), np.asarray(end, float)
    nodes = start + (t[:, None] + 1) / 2 * (end - start)[:, None, :]
    return Functional(nodes, np.linalg.norm(end - start, axis=-1)[:, None] * w / 2)


def covariance(kernel: Kernel, a: list[Functional], b: list[Functional]) -> np.ndarray:
    """Cov(L_a f, L_b f), for lists of functionals one after the other."""
    return np.block([[_pair(kernel, f, g) for g in b] for f in a])


def _pair(kernel: Kernel, f: Functional, g: Functional) -> np.ndarray:
    out = np.empty((len(f.nodes), len(g.nodes)))
    step = max(1, AT_ONCE // (f.nodes.shape[1] * g.nodes.shape[0] * g.nodes.shape[1]))
    for begin in range(0, len(out), step):
        part = slice(begin, begin + step)
        some = f.rows(part)
        k = _between(kernel, some, g)
        out[part] = np.einsum("np,npmq,mq->nm", some.weights, k, g.weights, optimize=True)
    return out


def _between(kernel: Kernel, f: Functional, g: Functional) -> np.ndarray:
    """The kernel between all nodes of both, (n, p, m, q)."""
    return _entries(kernel, f.nodes[:, :, None, None, :] - g.nodes, f.slope, g.slope)


def _entries(kernel: Kernel, difference: np.ndarray, slope_left: bool, slope_right: bool) -> np.ndarray:
    """The kernel at differences of places, (..., D); differentiated on either side where slopes are meant."""
    delta = difference / np.asarray(kernel.lengthscale)
    k = kernel.variance * PROFILES[kernel.profile](np.sqrt(np.sum(delta**2, axis=-1)))
    if not (slope_left or slope_right):
        return k
    if kernel.profile != "squared exponential" or delta.shape[-1] != 1:
        raise ValueError("slopes: expected a squared exponential in one dimension")
    u, ell = delta[..., 0], float(kernel.lengthscale)
    if slope_left and slope_right:
        return k * (1 - u**2) / ell**2
    return k * u / ell if slope_right else -k * u / ell


def prior_variance(kernel: Kernel, functionals: list[Functional]) -> np.ndarray:
    return np.concatenate([_own(kernel, f) for f in functionals])


def _own(kernel: Kernel, f: Functional) -> np.ndarray:
    k = _entries(kernel, f.nodes[:, :, None, :] - f.nodes[:, None, :, :], f.slope, f.slope)
    return np.einsum("np,npq,nq->n", f.weights, k, f.weights)


def exact_gp(
    kernel: Kernel, f: list[Functional], y: np.ndarray, noise: np.ndarray, target: list[Functional]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std of `target` given y = L f + noise."""
    factor = cho_factor(covariance(kernel, f, f) + np.diag(noise**2), lower=True, overwrite_a=True)
    cross = covariance(kernel, target, f)
    mean = cross @ cho_solve(factor, y)
    half = solve_triangular(factor[0], cross.T, lower=True)
    return mean, _root(prior_variance(kernel, target) - np.sum(half**2, axis=0))


def sgpr(
    kernel: Kernel, inducing: np.ndarray, f: list[Functional], y: np.ndarray, noise: np.ndarray,
    target: list[Functional],
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Titsias' optimum for given inducing points: L = I + Phi' N^-1 Phi with Phi = Kfu Kuu^-1/2."""
    u = points(inducing)
    kuu = covariance(kernel, [u], [u])
    root = cholesky(kuu + 1e-10 * kernel.variance * np.eye(len(kuu)), lower=True)
    phi = solve_triangular(root, covariance(kernel, [u], f), lower=True)
    phi_target = solve_triangular(root, covariance(kernel, [u], target), lower=True)
    factor = cho_factor(np.eye(len(phi)) + (phi / noise**2) @ phi.T, lower=True)
    mean = phi_target.T @ cho_solve(factor, phi @ (y / noise**2))
    left = np.sum(phi_target * cho_solve(factor, phi_target), axis=0)
    return mean, _root(prior_variance(kernel, target) - np.sum(phi_target**2, axis=0) + left)


def _root(variance: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(variance, 0.0))
