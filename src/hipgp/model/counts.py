"""Likelihoods of counts: Poisson, negative binomial, binomial and Bernoulli.

>>> like = Poisson(exposure=[1.0, 2.0])
>>> np.round(np.asarray(like.log_density(np.array([0.0, 3.0]), np.array([1.0, 1.5]))), 4).tolist()
[-1.0, -1.4959]
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, gammaincc, gammaln
from jaxtyping import Array, Float

from hipgp.model.likelihood import LibraryLikelihood, check_counts, check_range, positive


class Poisson(LibraryLikelihood):
    """Counts with mean exposure * eta; `exposure` is an area, a time, a population, or one of these per observation."""

    exposure: Any = 1.0
    whole: ClassVar[bool] = True

    def __init__(self, exposure: Any = 1.0):
        self.logpdf, self.exposure = None, positive("exposure", exposure)

    def check(self, y: Float[np.ndarray, " N"]) -> None:
        check_counts(y)

    def log_density(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        rate = self.exposure * eta
        return jax.scipy.special.xlogy(y, rate) - rate - gammaln(y + 1)

    def information(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return self.exposure / eta

    def mean(self, eta: Array) -> Float[Array, "..."]:
        return self.exposure * eta

    def variance(self, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return self.exposure * eta

    def cdf(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return jnp.where(y < 0, 0.0, gammaincc(jnp.floor(jnp.maximum(y, 0)) + 1, self.exposure * eta))


class NegativeBinomial(LibraryLikelihood):
    """Counts with more scatter than Poisson counts: mean mu = exposure * eta, variance mu + mu^2 / dispersion."""

    dispersion: Any = None
    exposure: Any = 1.0
    whole: ClassVar[bool] = True
    learnable: ClassVar[dict[str, float]] = {"dispersion": 5.0}

    def __init__(self, dispersion: Any = None, exposure: Any = 1.0):
        self.logpdf = None
        self.dispersion, self.exposure = positive("dispersion", dispersion), positive("exposure", exposure)

    def check(self, y: Float[np.ndarray, " N"]) -> None:
        check_counts(y)

    def log_density(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        mean, r = self.exposure * eta, self.dispersion
        constant = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
        return constant - r * jnp.log1p(mean / r) + jax.scipy.special.xlogy(y, mean / (mean + r))

    def information(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return self.exposure / (eta * (1 + self.exposure * eta / self.dispersion))

    def mean(self, eta: Array) -> Float[Array, "..."]:
        return self.exposure * eta

    def variance(self, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        mean = self.exposure * eta
        return mean + mean**2 / self.dispersion

    def cdf(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        p = self.dispersion / (self.dispersion + self.exposure * eta)
        return jnp.where(
            y < 0, 0.0, betainc(self.dispersion * jnp.ones_like(p), jnp.floor(jnp.maximum(y, 0)) + 1, p)
        )


class Binomial(LibraryLikelihood):
    """Successes among `trials`, each with probability eta: use link="logistic"."""

    trials: Any = 1.0
    whole: ClassVar[bool] = True

    def __init__(self, trials: Any):
        self.logpdf, self.trials = None, positive("trials", trials)
        if np.any(np.asarray(self.trials) != np.floor(self.trials)):
            bad = np.atleast_1d(self.trials)[np.atleast_1d(self.trials != np.floor(self.trials))]
            raise ValueError(f"trials: expected whole numbers, got {bad[0]:g}")

    def check(self, y: Float[np.ndarray, " N"]) -> None:
        check_counts(y)
        check_range(y, "at most as many successes as trials", y > self.trials)

    def log_density(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        n, xlogy = self.trials, jax.scipy.special.xlogy
        constant = gammaln(n + 1.0) - gammaln(n - y + 1) - gammaln(y + 1)
        return constant + xlogy(y, eta) + xlogy(n - y, 1 - eta)

    def information(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return self.trials / (eta * (1 - eta))

    def mean(self, eta: Array) -> Float[Array, "..."]:
        return self.trials * eta

    def variance(self, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return self.trials * eta * (1 - eta)

    def cdf(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        k = jnp.clip(jnp.floor(y), 0, self.trials - 1.0)
        inside = betainc(self.trials - k, k + 1, 1 - eta)
        return jnp.where(y < 0, 0.0, jnp.where(y >= self.trials, 1.0, inside))


class Bernoulli(Binomial):
    """Yes or no, 1 or 0, with probability eta of yes: use link="logistic"."""

    def __init__(self) -> None:
        super().__init__(1.0)
