"""docs/certificate.md, checked on dense problems: the divergence, its two bounds, and the one with a trend."""

import numpy as np
import pytest


def problem(seed, noise):
    """W, K, N, y and X of no particular shape."""
    rng = np.random.default_rng(seed)
    n, m = 14, 9
    root = rng.normal(size=(m, m))
    w, x = rng.normal(size=(n, m)), rng.normal(size=(n, 2))
    return w, root @ root.T + 0.1 * np.eye(m), noise * rng.uniform(0.5, 2.0, n), rng.normal(size=n), x, rng


def divergence(mean, other, precision):
    """KL(N(mean, C) || N(other, C)) by the general formula, not only the part that is left for equal covariances."""
    covariance = np.linalg.inv(precision)
    gap = other - mean
    trace = np.trace(precision @ covariance)
    logs = np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(precision)[1]
    return 0.5 * (trace + gap @ precision @ gap - len(gap) - logs)


@pytest.mark.parametrize("noise", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("seed", range(5))
def test_in_data_space(seed, noise):
    w, k, n, y, _, rng = problem(seed, noise)
    a = w @ k @ w.T + np.diag(n)
    exact = np.linalg.solve(a, y)
    d = rng.normal(size=len(y)) * np.std(exact)
    r = a @ d
    kl = divergence(k @ w.T @ (exact - d), k @ w.T @ exact, np.linalg.inv(k) + (w.T / n) @ w)
    np.testing.assert_allclose(kl, 0.5 * (r @ (r / n) - d @ a @ d), rtol=1e-6)
    assert kl <= 0.5 * r @ (r / n)


@pytest.mark.parametrize("noise", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("seed", range(5))
def test_in_grid_space(seed, noise):
    w, k, n, y, _, rng = problem(seed, noise)
    torus = rng.normal(size=(len(k), 12))
    r = (
        np.linalg.cholesky(k) @ np.linalg.qr(torus.T)[0].T
    )  # a root with more columns than rows, as on the torus
    np.testing.assert_allclose(r @ r.T, k, atol=1e-10)
    precision = np.eye(12) + r.T @ (w.T / n) @ w @ r
    exact = np.linalg.solve(precision, r.T @ w.T @ (y / n))
    found = exact + 0.1 * rng.normal(size=12)
    rho = r.T @ w.T @ (y / n) - precision @ found
    kl = divergence(found, exact, precision)
    np.testing.assert_allclose(kl, 0.5 * rho @ np.linalg.solve(precision, rho), rtol=1e-6)
    assert kl <= 0.5 * rho @ rho
    on_grid = divergence(r @ found, r @ exact, np.linalg.inv(k) + (w.T / n) @ w)
    assert on_grid <= kl * (1 + 1e-9)


@pytest.mark.parametrize("noise", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("seed", range(5))
def test_with_a_trend(seed, noise):
    w, k, n, y, x, rng = problem(seed, noise)
    a = w @ k @ w.T + np.diag(n)
    both = np.concatenate([w, x], axis=1)
    precision = (both.T / n) @ both
    precision[: len(k), : len(k)] += np.linalg.inv(k)
    exact = np.linalg.solve(precision, both.T @ (y / n))
    alpha = rng.normal(size=len(y))
    alpha = alpha - x @ np.linalg.lstsq(x, alpha, rcond=None)[0]  # X'alpha = 0
    beta = rng.normal(size=2)
    r = y - x @ beta - a @ alpha
    kl = divergence(np.concatenate([k @ w.T @ alpha, beta]), exact, precision)
    assert kl <= 0.5 * r @ (r / n) * (1 + 1e-9)
    loose = alpha + x @ [0.3, -0.2]  # without X'alpha = 0 the bound need not hold, and the proof says why
    gradient = both.T @ ((y - w @ k @ w.T @ loose - x @ beta) / n)
    gradient[: len(k)] -= w.T @ loose
    residual = y - x @ beta - a @ loose
    np.testing.assert_allclose(gradient[: len(k)], w.T @ (residual / n), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(gradient[len(k) :], x.T @ (residual / n) + x.T @ loose, rtol=1e-6, atol=1e-8)


def test_a_functional_is_off_by_at_most_the_root_of_twice_the_divergence():
    w, k, n, _y, _, rng = problem(0, 0.1)
    precision = np.linalg.inv(k) + (w.T / n) @ w
    gap = rng.normal(size=len(k))
    kl = 0.5 * gap @ precision @ gap
    functionals = rng.normal(size=(1000, len(k)))
    std = np.sqrt(np.einsum("fi,ij,fj->f", functionals, np.linalg.inv(precision), functionals))
    assert np.max(np.abs(functionals @ gap) / std) <= np.sqrt(2 * kl)
