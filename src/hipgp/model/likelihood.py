"""The interface of likelihoods: the distribution of a measured value y given eta, the functional of the field.

A likelihood is a pure function of y, eta and its parameters: `log_density`, which JAX differentiates, and `information`,
a positive curvature to use where the true one is negative. A parameter is a number, one per observation, or None to be
learned. The scale of additive noise is the `noise` of `observe`, as for Gaussian data.

The families are in `model/counts.py` and `model/likelihoods.py`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hipgp.model.arguments import as_float


class Likelihood(eqx.Module):
    """A user-defined likelihood: `Likelihood(logpdf)` with logpdf(y, eta), the log density of each y, in jax.numpy.

    >>> laplace = Likelihood(lambda y, eta: -jnp.abs(y - eta) / 0.1 - jnp.log(0.2))
    """

    logpdf: Callable[[Array, Array], Array] = eqx.field(static=True)

    additive: ClassVar[bool] = False  # additive noise, with the observations' `noise` as its scale
    learnable: ClassVar[
        dict[str, float]
    ] = {}  # parameters that may be None, with starting values of learning
    whole: ClassVar[bool] = False  # y takes whole numbers

    def log_density(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        """log p(y | eta), element by element; `noise` is the scale of additive noise."""
        return self.logpdf(y, eta)

    def information(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        """A positive curvature of -log p(y | eta) in eta, by default the true one or the squared slope."""
        slope = lambda e: jax.jvp(lambda t: self.log_density(y, t, noise), (e,), (jnp.ones_like(e),))[1]
        first, second = jax.jvp(slope, (eta,), (jnp.ones_like(eta),))
        return jnp.where(second < 0, -second, jnp.square(first))

    def mean(self, eta: Array) -> Float[Array, "..."]:
        """The mean of y."""
        raise ValueError(self._unable("the mean of new observations"))

    def variance(self, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        """The variance of y."""
        raise ValueError(self._unable("the variance of new observations"))

    def cdf(self, y: Array, eta: Array, noise: Array | float = 1.0) -> Float[Array, "..."]:
        """The cumulative distribution function of y."""
        raise ValueError(self._unable("quantiles of new observations"))

    def check(self, y: Float[np.ndarray, " N"]) -> None:
        """Raise a ValueError if y has impossible values, or if a user's logpdf is not a log density of each y."""
        eta = jnp.asarray(y) * 0 + 0.5  # in the range of every link
        try:
            values = np.asarray(self.logpdf(jnp.asarray(y), eta))
        except Exception as error:
            raise ValueError(
                f"likelihood: expected logpdf(y, eta) made of jax.numpy, got one that raises {type(error).__name__}: {error}"
            ) from error
        if values.shape != y.shape:
            raise ValueError(
                f"likelihood: expected logpdf(y, eta) to give one number per observation, shape {y.shape}, got {values.shape}"
            )
        if np.any(np.isnan(values)):
            bad = int(np.flatnonzero(np.isnan(values))[0])
            raise ValueError(
                f"likelihood: expected numbers from logpdf(y, eta), got NaN at y = {y[bad]:.6g}, eta = 0.5 "
                f"({int(np.sum(np.isnan(values)))} of {len(y)})"
            )

    def check_parameters(self, count: int) -> None:
        """Raise a ValueError unless each parameter is a number or one per observation."""
        for name, value in self.parameters().items():
            if np.shape(value) not in ((), (count,)):
                raise ValueError(
                    f"{name}: expected a number or one per observation, shape {(count,)}, got {np.shape(value)}"
                )

    def take(self, rows: Int[np.ndarray, " n"]) -> "Likelihood":
        """The likelihood of the observations numbered `rows`."""
        picked = {n: v[rows] for n, v in self.parameters().items() if np.ndim(v) == 1}
        return self.replaced(picked) if picked else self

    def parameters(self) -> dict[str, Any]:
        """The known parameters by name."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "logpdf"}
        return {name: value for name, value in fields.items() if value is not None}

    def unknown(self) -> list[str]:
        """The names of the parameters to be learned."""
        return [name for name in self.learnable if getattr(self, name) is None]

    def completed(self, learned: dict[str, float]) -> "Likelihood":
        """This likelihood with learned parameters, by full name, in place of those that have no value."""
        missing = {}
        for name in self.unknown():
            full = f"{type(self).__name__}.{name}"
            if full not in learned:
                raise ValueError(
                    f"{name}: expected a number in {type(self).__name__}({name}=...), got None, which is to be learned; call "
                    "gp.learn(data) first"
                )
            missing[name] = learned[full]
        return self.replaced(missing) if missing else self

    def replaced(self, values: dict[str, Any]) -> "Likelihood":
        """This likelihood with other parameters."""
        made = object.__new__(type(self))
        for field in dataclasses.fields(self):
            value = values.get(field.name, getattr(self, field.name))
            object.__setattr__(made, field.name, value)
        return made

    def _unable(self, what: str) -> str:
        return f"likelihood: expected one of hipgp's own to give {what}, got {type(self).__name__}; use sample() for the field"


def positive(name: str, value: Any) -> Any:
    if value is None:
        return None
    array = as_float(name, value, ndim=(0, 1)).astype(float)
    if np.any(array <= 0):
        raise ValueError(
            f"{name}: expected positive numbers, got {float(np.min(array)):g} ({int(np.sum(array <= 0))} not positive); "
            "leave such observations out"
        )
    return float(array) if array.ndim == 0 else array


def check_counts(y: np.ndarray) -> None:
    for what, bad in (("no negative ones", y < 0), ("whole ones", y != np.floor(y))):
        if np.any(bad):
            raise ValueError(
                f"y: expected counts, {what}, got {y[bad][0]:g} at index {int(np.flatnonzero(bad)[0])} "
                f"({int(np.sum(bad))} of {len(y)})"
            )


def check_range(y: np.ndarray, what: str, bad: np.ndarray) -> None:
    if np.any(bad):
        raise ValueError(
            f"y: expected {what}, got {y[bad][0]:g} at index {int(np.flatnonzero(bad)[0])} ({int(np.sum(bad))} of {len(y)})"
        )


class LibraryLikelihood(Likelihood):
    """A likelihood that the library provides."""

    logpdf: Any = eqx.field(static=True, default=None, init=False, repr=False)

    def check(self, y: Float[np.ndarray, " N"]) -> None:
        """Any number can be observed unless a subclass says otherwise."""
