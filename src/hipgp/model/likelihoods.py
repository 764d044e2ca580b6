"""Likelihoods of measured numbers: Gaussian, Student's t, gamma, beta, log-normal, and detection limits (censoring)."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, gammainc, gammaln, log_ndtr, ndtr, polygamma
from jaxtyping import Array, Float

from hipgp.model.arguments import as_float
from hipgp.model.likelihood import LibraryLikelihood, Likelihood, check_range, positive

LOG_2PI = float(np.log(2 * np.pi))
TINY = 1e-300  # the smallest probability whose logarithm is taken


class Gaussian(LibraryLikelihood):
    """Additive Gaussian noise of standard deviation `noise`, the default of `observe`."""

    additive: ClassVar[bool] = True

    def log_density(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return -0.5 * (((y - eta) / noise) ** 2 + LOG_2PI) - jnp.log(noise)

    def information(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return jnp.ones_like(eta) / noise**2

    def mean(self, eta: Array) -> Float[Array, "..."]:
        return eta

    def variance(self, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return jnp.ones_like(eta) * noise**2

    def cdf(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return ndtr((y - eta) / noise)


class StudentT(LibraryLikelihood):
    """Additive noise with outliers: y = eta + noise * t, with t of Student's distribution of `df` degrees of freedom."""

    df: Any = None
    additive: ClassVar[bool] = True
    learnable: ClassVar[dict[str, float]] = {"df": 4.0}

    def __init__(self, df: Any = None):
        self.logpdf, self.df = None, positive("df", df)

    def log_density(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        half = 0.5 * self.df
        constant = gammaln(half + 0.5) - gammaln(half) - 0.5 * jnp.log(np.pi * self.df) - jnp.log(noise)
        return constant - (half + 0.5) * jnp.log1p(((y - eta) / noise) ** 2 / self.df)

    def information(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        """The weight of iteratively reweighted least squares, which is small for outliers."""
        return (self.df + 1) / (self.df * noise**2 + (y - eta) ** 2)

    def mean(self, eta: Array) -> Float[Array, "..."]:
        return eta

    def variance(self, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        df = jnp.asarray(self.df)
        return jnp.where(df > 2, df / (df - 2), jnp.inf) * noise**2 * jnp.ones_like(eta)

    def cdf(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        t = (y - eta) / noise
        tail = 0.5 * betainc(0.5 * self.df, 0.5, self.df / (self.df + t**2))
        return jnp.where(t > 0, 1 - tail, tail)


class Gamma(LibraryLikelihood):
    """Positive values with mean eta and standard deviation eta / sqrt(shape)."""

    shape: Any = None
    learnable: ClassVar[dict[str, float]] = {"shape": 5.0}

    def __init__(self, shape: Any = None):
        self.logpdf, self.shape = None, positive("shape", shape)

    def check(self, y: Float[np.ndarray, " N"]) -> None:
        check_range(y, "positive values", y <= 0)

    def log_density(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        a = self.shape
        return a * jnp.log(a / eta) - gammaln(a) + (a - 1) * jnp.log(y) - a * y / eta

    def information(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return self.shape / eta**2

    def mean(self, eta: Array) -> Float[Array, "..."]:
        return eta

    def variance(self, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return eta**2 / self.shape

    def cdf(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return jnp.where(
            y <= 0, 0.0, gammainc(self.shape * jnp.ones_like(eta), self.shape * jnp.maximum(y, 0) / eta)
        )


class Beta(LibraryLikelihood):
    """Shares between 0 and 1 with mean eta, and variance eta (1 - eta) / (1 + precision): use link="logistic"."""

    precision: Any = None
    learnable: ClassVar[dict[str, float]] = {"precision": 10.0}

    def __init__(self, precision: Any = None):
        self.logpdf, self.precision = None, positive("precision", precision)

    def check(self, y: Float[np.ndarray, " N"]) -> None:
        check_range(y, "values between 0 and 1", (y <= 0) | (y >= 1))

    def log_density(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        a, b = eta * self.precision, (1 - eta) * self.precision
        constant = gammaln(a + b) - gammaln(a) - gammaln(b)
        return constant + (a - 1) * jnp.log(y) + (b - 1) * jnp.log1p(-y)

    def information(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        phi = self.precision
        return phi**2 * (polygamma(1, eta * phi) + polygamma(1, (1 - eta) * phi))

    def mean(self, eta: Array) -> Float[Array, "..."]:
        return eta

    def variance(self, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return eta * (1 - eta) / (1 + self.precision)

    def cdf(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return betainc(eta * self.precision, (1 - eta) * self.precision, jnp.clip(y, 0.0, 1.0))


class LogNormal(LibraryLikelihood):
    """Positive values with median eta, whose logarithm has the standard deviation `scale`."""

    scale: Any = None
    learnable: ClassVar[dict[str, float]] = {"scale": 0.3}

    def __init__(self, scale: Any = None):
        self.logpdf, self.scale = None, positive("scale", scale)

    def check(self, y: Float[np.ndarray, " N"]) -> None:
        check_range(y, "positive values", y <= 0)

    def log_density(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        z = (jnp.log(y) - jnp.log(eta)) / self.scale
        return -0.5 * (z**2 + LOG_2PI) - jnp.log(self.scale) - jnp.log(y)

    def information(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return 1 / (self.scale * eta) ** 2

    def mean(self, eta: Array) -> Float[Array, "..."]:
        return eta * jnp.exp(0.5 * jnp.square(self.scale))

    def variance(self, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return self.mean(eta) ** 2 * jnp.expm1(jnp.square(self.scale))

    def cdf(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return jnp.where(y <= 0, 0.0, ndtr((jnp.log(jnp.maximum(y, 1e-300)) - jnp.log(eta)) / self.scale))


class Censored(LibraryLikelihood):
    """Detection limits: y at or below `lower` means "at most `lower`", y at or above `upper` means "at least `upper`".

    Between the limits y has the likelihood `base`, Gaussian by default. Each limit is a number or one per observation.
    """

    lower: Any = None
    upper: Any = None
    base: Likelihood = Gaussian()

    def __init__(self, lower: Any = None, upper: Any = None, base: Likelihood | None = None):
        base = Gaussian() if base is None else base
        if not isinstance(base, Gaussian | StudentT | LogNormal | Gamma):
            raise ValueError(
                f"base: expected Gaussian(), StudentT(), LogNormal() or Gamma(), got {type(base).__name__}"
            )
        if lower is None and upper is None:
            raise ValueError("lower, upper: expected at least one limit, got neither")
        limit = lambda name, a: None if a is None else as_float(name, a, ndim=(0, 1)).astype(float)
        self.logpdf, self.lower, self.upper, self.base = (
            None,
            limit("lower", lower),
            limit("upper", upper),
            base,
        )
        if self.lower is not None and self.upper is not None and np.any(self.lower >= self.upper):
            raise ValueError(
                "upper: expected limits above those of lower, got some at or below; check whether they are swapped"
            )

    @property
    def additive(self) -> bool:  # type: ignore[override]
        return self.base.additive

    @property
    def learnable(self) -> dict[str, float]:  # type: ignore[override]
        return self.base.learnable

    def check(self, y: Float[np.ndarray, " N"]) -> None:
        inside = np.ones(len(y), bool)
        inside &= True if self.lower is None else y > self.lower
        inside &= True if self.upper is None else y < self.upper
        if np.any(inside):
            self.base.check(y[inside])

    def log_density(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        out = self.base.log_density(y, eta, noise)
        if self.lower is not None:
            out = jnp.where(y <= self.lower, _log_cdf(self.base, self.lower, eta, noise), out)
        if self.upper is not None:
            out = jnp.where(y >= self.upper, _log_sf(self.base, self.upper, eta, noise), out)
        return out

    def information(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        out, positive = self.base.information(y, eta, noise), super().information(y, eta, noise)
        if self.lower is not None:
            out = jnp.where(y <= self.lower, positive, out)
        return out if self.upper is None else jnp.where(y >= self.upper, positive, out)

    def mean(self, eta: Array) -> Float[Array, "..."]:
        return self.base.mean(eta)

    def variance(self, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return self.base.variance(eta, noise)

    def cdf(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        return self.base.cdf(y, eta, noise)

    def parameters(self) -> dict[str, Any]:
        limits = {name: v for name, v in (("lower", self.lower), ("upper", self.upper)) if v is not None}
        return limits | self.base.parameters()

    def unknown(self) -> list[str]:
        return self.base.unknown()

    def replaced(self, values: dict[str, Any]) -> "Censored":
        made = object.__new__(Censored)
        limits = {name: values.get(name, getattr(self, name)) for name in ("lower", "upper")}
        for name, value in {"logpdf": None, **limits, "base": self.base.replaced(values)}.items():
            object.__setattr__(made, name, value)
        return made


def _log_cdf(base: Likelihood, limit: Array, eta: Array, noise: Array | float) -> Float[Array, "..."]:
    """The log probability of a value of at most `limit`, without underflow where there is a formula."""
    if isinstance(base, Gaussian):
        return log_ndtr((limit - eta) / noise)
    if isinstance(base, LogNormal):
        return log_ndtr((jnp.log(limit) - jnp.log(eta)) / base.scale)
    return jnp.log(jnp.maximum(base.cdf(limit, eta, noise), TINY))


def _log_sf(base: Likelihood, limit: Array, eta: Array, noise: Array | float) -> Float[Array, "..."]:
    """The log probability of a value of at least `limit`."""
    if isinstance(base, Gaussian):
        return log_ndtr((eta - limit) / noise)
    if isinstance(base, LogNormal):
        return log_ndtr((jnp.log(eta) - jnp.log(limit)) / base.scale)
    return jnp.log(jnp.maximum(1 - base.cdf(limit, eta, noise), TINY))
