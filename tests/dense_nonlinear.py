"""The truth for transformed fields on small problems, in plain NumPy: variational posteriors and moments by brute force.

It imports nothing from hipgp. `vi` maximises the variational bound over normal distributions by a general optimiser; `moments`
weighs draws of the prior by the likelihood.
"""

import numpy as np
import scipy.linalg
import scipy.optimize

Z, C = np.polynomial.hermite_e.hermegauss(48)
C = C / C.sum()


def vi(prior_mean, prior, log_likelihood):
    """Mean and std of the best normal q of latent values, where each value has a likelihood of its own.

    `log_likelihood(f)` takes (K, N) latent values and gives the log-likelihood of each. The best q's precision is the prior's and
    a diagonal, so that these are all there is to search.
    """
    n = len(prior_mean)

    def covariance(logs):
        half = np.exp(0.5 * logs)
        inner = np.eye(n) + half[:, None] * prior * half
        return prior - (prior * half) @ np.linalg.solve(inner, half[:, None] * prior), inner

    def loss(vector):
        mean, logs = vector[:n], vector[n:]
        s, inner = covariance(logs)
        std = np.sqrt(np.diag(s))
        value = np.sum(C @ log_likelihood(mean + Z[:, None] * std))
        gap = np.linalg.solve(prior, mean - prior_mean)
        trace = n - np.sum(np.exp(logs) * np.diag(s))  # tr(prior^-1 S)
        kl = 0.5 * (trace - n + (mean - prior_mean) @ gap + np.linalg.slogdet(inner)[1])
        return kl - value

    found = scipy.optimize.minimize(
        loss, np.concatenate([prior_mean, np.zeros(n)]), method="BFGS", options={"gtol": 1e-6}
    )
    return found.x[:n], np.sqrt(np.diag(covariance(found.x[n:])[0]))


def vi_of_integrals(prior_mean, prior, weights, y, noise):
    """Mean and covariance of the best normal q of f, where y = weights exp(f) + noise."""
    n, lower = len(prior_mean), np.tril_indices(len(prior_mean))
    root = np.linalg.cholesky(prior)

    def parts(vector):
        chol = np.zeros((n, n))
        chol[lower] = vector[n:]
        chol = root @ chol
        return prior_mean + root @ vector[:n], chol

    def loss(vector):
        mean, chol = parts(vector)
        s = chol @ chol.T
        e = np.exp(mean + 0.5 * np.diag(s))
        eta = weights @ e
        second = np.einsum("nq,nr,qr->n", weights * e, weights * e, np.exp(s))
        misfit = np.sum((y**2 - 2 * y * eta + second) / (2 * noise**2))
        white = scipy.linalg.solve_triangular(root, chol, lower=True)
        kl = 0.5 * (np.sum(white**2) + vector[:n] @ vector[:n]) - np.sum(np.log(np.abs(np.diag(white))))
        return misfit + kl

    start = np.concatenate([np.zeros(n), 0.3 * np.eye(n)[lower]])
    found = scipy.optimize.minimize(loss, start, method="BFGS", options={"maxiter": 500, "gtol": 1e-5})
    mean, chol = parts(found.x)
    return mean, chol @ chol.T


def moments(prior_mean, prior, log_likelihood, of, draws=400_000, seed=0):
    """Posterior mean and std of `of(f)` by weighing draws of the prior; f is (draws, N)."""
    rng = np.random.default_rng(seed)
    f = prior_mean + rng.standard_normal((draws, len(prior_mean))) @ np.linalg.cholesky(prior).T
    log = log_likelihood(f)
    w = np.exp(log - log.max())
    w /= w.sum()
    values = of(f)
    mean = w @ values
    return mean, np.sqrt(w @ (values - mean) ** 2), 1 / np.sum(w**2)
