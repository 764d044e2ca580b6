"""Calibration by simulation: over data sets drawn from the prior, the truth falls anywhere in its predicted distribution alike."""

import numpy as np
import pytest
import scipy.stats as st

import hipgp as hg

GRID = hg.Grid.cover(0.0, 1.0, shape=24)
KERNEL = hg.Matern52(1.0, 0.35)
X = np.linspace(0.02, 0.98, 12)
AT = np.array([0.3, 0.5])
ROOT = np.linalg.cholesky(
    np.asarray(KERNEL(np.r_[X, AT][:, None], np.r_[X, AT][:, None])) + 1e-10 * np.eye(14)
)
SETS = 150

CASES = {
    "counts": ("exp", hg.Poisson(3.0), None, lambda rng, f: rng.poisson(3 * np.exp(f)).astype(float)),
    "successes": ("logistic", hg.Binomial(5), None, lambda rng, f: rng.binomial(5, 1 / (1 + np.exp(-f))).astype(float)),
    "outliers": (None, hg.StudentT(3.0), 0.3, lambda rng, f: f + 0.3 * rng.standard_t(3.0, len(f))),
    "positive": ("softplus", None, 0.15, lambda rng, f: np.logaddexp(0, f) + 0.15 * rng.standard_normal(len(f))),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_truth_is_anywhere_in_its_distribution(name):
    link, likelihood, noise, draw = CASES[name]
    rng = np.random.default_rng(5)
    gp = hg.GP(KERNEL, GRID, link=link)
    shares = []
    for _ in range(SETS):
        f = ROOT @ rng.standard_normal(14)
        data = hg.observe(hg.Points(X), draw(rng, f[:12]), noise, likelihood)
        latent = gp.condition(data, method=hg.Exact(), progress=False).engine.post.predict(hg.Points(AT))
        shares.append(st.norm.cdf((f[12:] - latent.mean) / latent.std))
    shares = np.array(shares)
    assert st.kstest(shares[:, 0], "uniform").pvalue > 0.01
    inside = np.mean((shares > 0.025) & (shares < 0.975))
    assert 0.915 <= inside <= 0.985, inside
