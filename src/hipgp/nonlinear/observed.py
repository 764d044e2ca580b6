"""The predictive distribution of new observations y: uncertainty of the field and the likelihood's scatter together.

p(y) = E p(y | eta) with eta = scale g(zeta), zeta normal. The expectation is a trapezoidal sum over zeta, which converges
exponentially once its step is below the width of the likelihood in zeta; the step is chosen so.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float

from hipgp.model.arguments import as_float
from hipgp.model.data import Data
from hipgp.model.likelihood import Likelihood
from hipgp.model.likelihoods import Censored, Gaussian
from hipgp.model.links import LINKS, Link
from hipgp.nonlinear.expectations import EDGE
from hipgp.predictions import Prediction
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit

if TYPE_CHECKING:
    from hipgp.engines import FittedPosterior

REACH = 6.5  # standard deviations of zeta on either side
FEWEST, MOST, MOST_OF_QUANTILES = 65, 4097, 257  # nodes of the sum
PER_WIDTH = 4  # nodes in twice the width of a likelihood
VALUES_AT_ONCE = 2**22
BISECTIONS = 100
EXACT = 1e-9  # of a standard deviation, to which quantiles are found
DOUBLINGS = 200
QUANTILES = 200  # from which the score of a distribution is computed


class Observed(Prediction):
    """New observations: mean, standard deviation, quantiles, densities and probabilities, noise included."""

    link: Link
    scale: Float[np.ndarray, " N"]
    zeta_mean: Float[np.ndarray, " N"]
    zeta_std: Float[np.ndarray, " N"]
    likelihood: Likelihood
    noise: Float[np.ndarray, " N"]

    @staticmethod
    @float64_available
    def of(found: Prediction, likelihood: Likelihood, noise: Any = 1.0) -> "Observed":
        """New observations where the field is predicted to be `found`; `noise` is the scale of additive noise."""
        count = len(found.mean)
        ones = np.ones(count)
        link, scale = getattr(found, "link", LINKS["identity"]), getattr(found, "scale", ones)
        zeta_mean = np.asarray(getattr(found, "zeta_mean", found.mean), float)
        zeta_std = np.asarray(getattr(found, "zeta_std", found.std), float)
        made = Observed(*_moments(link, scale, zeta_mean, zeta_std, likelihood, noise * ones))
        made.link, made.scale, made.likelihood, made.noise = link, scale, likelihood, noise * ones
        made.zeta_mean, made.zeta_std = zeta_mean, zeta_std
        return made.placed(found.places)

    @float64_available
    def log_density(self, y: Any) -> np.ndarray:
        """log p(y) for a value of each observation; for counts the log probability."""
        values = self._values_of(y)

        def summed(rows: np.ndarray, z: np.ndarray, logs: np.ndarray) -> np.ndarray:
            terms = self._each(_log_density_at, values[rows], rows, z) + logs[:, None]
            return np.asarray(scipy.special.logsumexp(terms, axis=0))

        return self._over(summed, MOST)

    @float64_available
    def cdf(self, y: Any) -> np.ndarray:
        """The probability that each new observation is at most y."""
        values = self._values_of(y)
        return self._over(lambda rows, z, logs: self._below(values[rows], rows, z, logs), MOST)

    def pit(self, y: Any, key: int = 0) -> Float[np.ndarray, " N"]:
        """The probability integral transform of y: uniform where the model is right; of counts a draw between two of them."""
        upper = np.asarray(self.cdf(y))
        if not self.likelihood.whole:
            return upper
        lower = np.asarray(self.cdf(self._values_of(y) - 1.0))
        return lower + np.random.default_rng(key).uniform(size=len(upper)) * (upper - lower)

    @float64_available
    def quantile(self, q: Any) -> np.ndarray:
        shares = np.atleast_1d(np.asarray(q, float))
        if np.any((shares <= 0) | (shares >= 1)):
            raise ValueError(f"q: expected probabilities between 0 and 1, got {q!r}")
        rows = np.tile(np.arange(len(self.mean)), len(shares))
        each = np.repeat(shares, len(self.mean))
        found = self._over(
            lambda some, z, logs: self._solved(each[some], rows[some], z, logs), MOST_OF_QUANTILES, len(rows)
        )
        found = found.reshape(len(shares), -1)
        return found if np.ndim(q) else found[0]

    def crps(self, y: Any) -> Float[np.ndarray, " N"]:
        """The continuous ranked probability score of each y, from quantiles."""
        values, shares = self._values_of(y), (np.arange(QUANTILES) + 0.5) / QUANTILES
        at = np.asarray(self.quantile(shares))
        return 2 * np.mean(((values < at) - shares[:, None]) * (at - values), axis=0)

    def with_noise(self, noise: Any) -> Prediction:
        raise ValueError(
            "noise: expected a prediction of the field, got one of new observations, noise included"
        )

    def _solved(self, share: np.ndarray, rows: np.ndarray, z: np.ndarray, logs: np.ndarray) -> np.ndarray:
        """The value at which the cumulative probability of each row passes its share, by bisection."""
        middle, width = np.asarray(self.mean)[rows], np.asarray(self.std)[rows]
        middle = np.where(np.isfinite(middle), middle, 0.0)
        width = np.where(np.isfinite(width) & (width > 0), width, np.abs(middle) + 1.0)
        below = lambda at: self._below(at, rows, z, logs) < share
        low, high = _bracket(below, middle, width)
        enough = 1.0 if self.likelihood.whole else EXACT * width
        for _ in range(BISECTIONS):
            if np.all(high - low < enough):
                break
            half = 0.5 * (low + high)
            under = below(half)
            low, high = np.where(under, half, low), np.where(under, high, half)
        return np.floor(high) if self.likelihood.whole else 0.5 * (low + high)

    def _values_of(self, y: Any) -> np.ndarray:
        values = as_float("y", y, ndim=(0, 1)).astype(float)
        if values.shape not in ((), (len(self.mean),)):
            raise ValueError(f"y: expected a value for each of {len(self.mean)}, got shape {values.shape}")
        return np.broadcast_to(values, (len(self.mean),)).copy()

    def _below(self, y: np.ndarray, rows: np.ndarray, z: np.ndarray, logs: np.ndarray) -> np.ndarray:
        return np.exp(logs) @ self._each(_cdf_at, y, rows, z)

    def _each(self, of: Callable[..., Any], y: np.ndarray, rows: np.ndarray, z: np.ndarray) -> np.ndarray:
        """A function of the likelihood at the y of these rows, for every node of zeta: (K, n)."""
        likelihood = self.likelihood.take(rows)
        zeta = self.zeta_mean[rows] + z[:, None] * self.zeta_std[rows]
        return np.asarray(of(likelihood, self.link, y, self.noise[rows], self.scale[rows], zeta))

    def _over(
        self,
        of: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
        most: int,
        count: int | None = None,
    ) -> np.ndarray:
        """The values of `of(rows, z, log weights)`, computed for some rows at a time."""
        z, logs = rule(min(most, self._nodes()))
        count = len(self.mean) if count is None else count
        size = max(1, VALUES_AT_ONCE // len(z))
        each = [np.arange(begin, min(begin + size, count)) for begin in range(0, count, size)]
        return np.concatenate([of(rows, z, logs) for rows in each])

    def _nodes(self) -> int:
        """The number of nodes with which a step is well below the width of the likelihood in zeta."""
        sharpest = _sharpness(
            self.link, self.scale, self.zeta_mean, self.zeta_std, self.likelihood, self.noise
        )
        count = PER_WIDTH * REACH * sharpest
        return int(np.clip(2 * math.ceil(count / 2) + 1, FEWEST, MOST)) if np.isfinite(count) else MOST


def rule(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of a trapezoidal sum over a standard normal variable, and the logarithms of their weights."""
    z = np.linspace(-REACH, REACH, count)
    return z, -0.5 * z**2 - float(np.asarray(scipy.special.logsumexp(-0.5 * z**2)))


def _eta(link: Link, scale: Any, zeta: Any) -> Any:
    field = link(zeta)
    return scale * (jnp.clip(field, EDGE, 1 - EDGE) if link.name == "logistic" else field)


@bounded_jit()
def _log_density_at(likelihood: Likelihood, link: Link, y: Any, noise: Any, scale: Any, zeta: Any) -> Any:
    return likelihood.log_density(y, _eta(link, scale, zeta), noise)


@bounded_jit()
def _cdf_at(likelihood: Likelihood, link: Link, y: Any, noise: Any, scale: Any, zeta: Any) -> Any:
    return likelihood.cdf(y, _eta(link, scale, zeta), noise)


@bounded_jit()
def _moments_at(likelihood: Likelihood, link: Link, noise: Any, scale: Any, zeta: Any) -> tuple[Any, Any]:
    eta = _eta(link, scale, zeta)
    return likelihood.mean(eta), likelihood.variance(eta, noise)


@bounded_jit()
def _sharpness_at(likelihood: Likelihood, link: Link, noise: Any, scale: Any, zeta: Any, std: Any) -> Any:
    """The ratio of zeta's standard deviation to the width of the likelihood in zeta."""
    of = lambda t: likelihood.mean(_eta(link, scale, t))
    slope = jax.jvp(of, (zeta,), (jnp.ones_like(zeta),))[1]
    variance = likelihood.variance(_eta(link, scale, zeta), noise)
    width = jnp.where(jnp.isfinite(variance), jnp.sqrt(variance), noise)  # Student's t may have none
    return jnp.abs(slope) * std / width


def _moments(
    link: Link, scale: Any, mean: np.ndarray, std: np.ndarray, likelihood: Likelihood, noise: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of y."""
    z, logs = rule(FEWEST)
    share, size, out = np.exp(logs), VALUES_AT_ONCE // FEWEST, []
    for begin in range(0, len(mean), size):
        rows = np.arange(begin, min(begin + size, len(mean)))
        zeta = mean[rows] + z[:, None] * std[rows]
        of_rows = likelihood.take(rows)
        of, variance = _moments_at(of_rows, link, noise[rows], scale[rows], zeta)
        middle = share @ np.asarray(of)
        out.append((middle, np.sqrt(share @ (np.asarray(variance) + (np.asarray(of) - middle) ** 2))))
    return tuple(np.concatenate(a) for a in zip(*out, strict=True))  # type: ignore[return-value]


def _sharpness(
    link: Link, scale: Any, mean: np.ndarray, std: np.ndarray, likelihood: Likelihood, noise: Any
) -> float:
    found = [_sharpness_at(likelihood, link, noise, scale, mean + z * std, std) for z in (-2.0, 0.0, 2.0)]
    values = np.asarray(found, float)
    return float(np.max(values[np.isfinite(values)], initial=0.0))


def _bracket(
    below: Callable[[np.ndarray], np.ndarray], middle: np.ndarray, width: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of an interval in which the cumulative probability passes the share of `below`."""
    low, high, reach = middle - width, middle + width, width
    for _ in range(DOUBLINGS):
        early, late = ~below(low), below(high)
        if not (np.any(early) or np.any(late)):
            break
        reach = 2 * reach
        low, high = np.where(early, low - reach, low), np.where(late, high + reach, high)
    return low, high


def common_likelihood(likelihoods: list[Likelihood]) -> Likelihood:
    """The likelihood of all data, where they have one and its parameters are the same for all observations."""
    first = likelihoods[0]
    values = {name: np.unique(np.asarray(a)) for name, a in first.parameters().items()}
    same = lambda other: (
        type(other) is type(first)
        and all(
            np.array_equal(np.unique(np.asarray(a)), values[name]) for name, a in other.parameters().items()
        )
    )
    if not all(same(other) for other in likelihoods):
        kinds = ", ".join(sorted({type(one).__name__ for one in likelihoods}))
        raise ValueError(
            f"noisy: expected the likelihood of new observations, as the data have several ({kinds}), got True; give it, such "
            "as predict(..., noisy=StudentT(4.0))"
        )
    names = values.keys() - (("lower", "upper") if isinstance(first, Censored) else ())
    for name in names:
        if len(values[name]) > 1:
            kind = type(first).__name__
            raise ValueError(
                f"noisy: expected the {name} of new observations, as the data have one each, got True; give "
                f"predict(..., noisy={kind}({name}=...))"
            )
    return first.replaced({name: float(values[name][0]) for name in names})


def new_observations(
    found: Prediction, engine: "FittedPosterior", noisy: Any, noise: Any, of_data: Any
) -> Prediction:
    """`found` with the scatter of new observations: that of the data for `noisy=True`, or a likelihood's.

    `of_data` is the noise of the data where there is one for all, and None otherwise.
    """
    if noisy is not True and not isinstance(noisy, Likelihood):
        raise ValueError(
            f"noisy: expected False, True or a likelihood such as Poisson(exposure=...), got {noisy!r}"
        )
    likelihood = engine.scatter(None if noisy is True else noisy)
    if isinstance(likelihood, Censored):
        likelihood = likelihood.base  # what would be seen without limits
    likelihood.check_parameters(len(found.mean))
    if not likelihood.additive:
        if noise is not None:
            raise ValueError(
                f"noise: expected None with {type(likelihood).__name__}, which says itself how y scatters, got a value"
            )
        return found.each(lambda one: Observed.of(one, likelihood))
    scatter = of_data if noise is None else noise
    if scatter is None:
        raise ValueError(
            "noise: expected the noise of new observations, as the data have different ones, got None; give "
            "predict(..., noisy=True, noise=...)"
        )
    if isinstance(likelihood, Gaussian):
        return found.with_noise_of_data(scatter) if noise is None else found.with_noise(noise)
    scale = as_float("noise", scatter, ndim=(0, 1)).astype(float)
    if scale.shape not in ((), np.shape(found.mean)) or np.any(scale <= 0):
        raise ValueError(
            f"noise: expected a positive scale, or one for each of {len(found.mean)} values, got {noise!r}"
        )
    return found.each(lambda one: Observed.of(one, likelihood, scale))


def noise_of_all(data: Data | None, noise: float | None, unit: int) -> float | None:
    """The noise of the data where all have the same, in the unit of y; None where they have different ones."""
    if noise is not None:
        return noise
    stds = [] if data is None else [b.noise for b in data.blocks if b.noise is not None]
    each = np.unique(np.concatenate(stds)) if stds else np.empty(0)
    return float(np.ldexp(each[0], unit)) if len(each) == 1 else None
