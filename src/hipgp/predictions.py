"""Predictions of functionals of the field, and how their standard deviations are to be computed."""

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import jax
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float

from hipgp.model.arguments import as_float
from hipgp.runtime.progress import Report, silent

if TYPE_CHECKING:
    import pandas as pd

StdMethod = Literal["auto", "vecchia", "samples", "exact"]
HALVINGS = 60  # of the interval that holds a quantile of a mixture


class StdOptions(NamedTuple):
    """How to compute standard deviations. An engine refuses options that it does not support."""

    method: StdMethod = "auto"
    samples: int = 64
    key: Any = 0
    columns: Any = None  # trend columns of the predicted functionals, if the user gave the trend as columns
    report: Report = silent


DEFAULT_STD = StdOptions()


class SampleOptions(NamedTuple):
    """How many joint draws to take, and how; `key` is a JAX key."""

    count: int
    key: jax.Array
    columns: Any = None  # as in StdOptions
    report: Report = silent


def check_std(how: StdOptions, engine: str, methods: tuple[str, ...]) -> None:
    """Raise a ValueError if options ask an engine with deterministic standard deviations for something else."""
    if how.method not in methods:
        expected = " or ".join(f'"{name}"' for name in methods)
        raise ValueError(
            f"std: expected {expected} with the {engine} engine, got "
            f"{how.method!r}; use method=Batch() to choose how they are computed"
        )
    if how.samples != DEFAULT_STD.samples:
        raise ValueError(
            f"samples: expected none with the {engine} engine, whose standard deviations are not "
            f"sampled, got {how.samples}; leave it out, or use method=Batch()"
        )


class _Moments(NamedTuple):
    mean: Float[np.ndarray, " N"]
    std: Float[np.ndarray, " N"]
    std_error: Float[np.ndarray, " N"] | None = None


class Prediction(_Moments):
    """Mean and standard deviation of functionals of the field, without observation noise.

    `std_error` is the Monte Carlo error of `std` if it was estimated from samples, and None otherwise. `places` holds
    the coordinates of the functionals by column name; `to_frame` includes them.
    """

    places: Mapping[str, np.ndarray] = MappingProxyType({})

    def placed(self, places: Mapping[str, np.ndarray]) -> Self:
        """This prediction with the coordinates of its functionals."""
        found = copy.copy(self)
        found.places = places
        return found

    def to_frame(self) -> "pd.DataFrame":
        """A pandas DataFrame with a row for each functional: its coordinates, mean, std, and std_error where known."""
        import pandas as pd

        found = {name: values for name, values in self._asdict().items() if values is not None}
        return pd.DataFrame({**self.places, **found})

    def to_xarray(self) -> Any:
        """An xarray Dataset of mean and std, with the coordinates of the functionals along the dimension "place"."""
        import xarray as xr

        found = {name: ("place", values) for name, values in self._asdict().items() if values is not None}
        return xr.Dataset(found, {name: ("place", values) for name, values in self.places.items()})

    def plot(self, ax: Any = None) -> Any:
        """Draw mean and 95% interval with matplotlib's pyplot, or on `ax`, and return the axes.

        A curve for places in one dimension, two panels of coloured points in two, otherwise a bar for each functional.
        """
        from hipgp.plots.predictions import draw_prediction
        from hipgp.plots.style import shown

        return draw_prediction(self, ax, shown() if ax is None else None)

    def with_noise(self, noise: Any) -> "Prediction":
        """The prediction of new measurements, whose independent noise has the standard deviation `noise`."""
        added = as_float("noise", noise, ndim=(0, 1)).astype(float)
        if added.shape not in ((), np.shape(self.mean)) or np.any(added < 0):
            raise ValueError(
                f"noise: expected a standard deviation, or one for each of {len(self.mean)} values, none below 0, got "
                f"{noise!r}"
            )
        std = np.hypot(self.std, added)
        error = (
            None
            if self.std_error is None
            else self.std_error * self.std / np.maximum(std, np.finfo(float).tiny)
        )
        return Prediction(self.mean, std, error).placed(self.places)

    def with_noise_of_data(self, noise: Any) -> "Prediction":
        """The prediction of new measurements, whose noise is that of the data, `noise`."""
        return self.with_noise(noise)

    def each(self, of: Callable[["Prediction"], "Prediction"]) -> "Prediction":
        """`of` this prediction, or of every part of a mixture."""
        return of(self)

    def in_unit(self, power: int, longer: float) -> "Prediction":
        """The prediction in the unit of y times 2^power over `longer`."""
        return Prediction(*(None if a is None else np.ldexp(a, power) / longer for a in self))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        few = {name: np.array2string(np.asarray(a), precision=4, threshold=6, edgeitems=2, separator=", ")
               for name, a in self._asdict().items() if a is not None}  # fmt: skip
        return f"Prediction({', '.join(f'{name}={text}' for name, text in few.items())})"

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(max_rows=10)

    def quantile(self, q: Any) -> np.ndarray:
        """The quantiles of every functional at probability `q`, (N,), or at several, (len(q), N)."""
        share = _probability("q", q)
        at = share[:, None] if share.ndim else share
        return self.mean + scipy.special.ndtri(at) * self.std

    def cdf(self, values: Any) -> np.ndarray:
        """The probability that each value is not exceeded."""
        return scipy.special.ndtr((values - self.mean) / np.maximum(self.std, np.finfo(float).tiny))

    def interval(self, p: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the central interval that holds the value with probability `p`."""
        share = float(_probability("p", p))
        lower, upper = self.quantile([0.5 * (1 - share), 0.5 * (1 + share)])
        return lower, upper


class MixturePrediction(Prediction):
    """A weighted mixture of predictions: mean and standard deviation of all, and the quantiles of the mixture."""

    weights: Float[np.ndarray, " K"]
    parts: list[Prediction]
    noises: list[float | None]

    @staticmethod
    def of(
        weights: Float[np.ndarray, " K"], parts: list[Prediction], noises: list[float | None]
    ) -> "MixturePrediction":
        found = MixturePrediction(*mixture_moments(weights, parts))
        found.weights, found.parts, found.noises = weights, parts, noises
        return found

    def cdf(self, values: Any) -> np.ndarray:
        return np.tensordot(self.weights, [part.cdf(values) for part in self.parts], 1)

    def quantile(self, q: Any) -> np.ndarray:
        """The quantile of the mixture, by bisection between the least and the largest quantile of its parts."""
        quantiles = np.array([part.quantile(q) for part in self.parts])
        low, high, share = quantiles.min(axis=0), quantiles.max(axis=0), np.asarray(q, float)
        share = share[:, None] if share.ndim else share
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            below = np.reshape([self.cdf(row) for row in np.atleast_2d(middle)], middle.shape) < share
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return high

    def each(self, of: Callable[[Prediction], Prediction]) -> Prediction:
        parts = [part.each(of) for part in self.parts]
        return MixturePrediction.of(self.weights, parts, self.noises).placed(self.places)

    def with_noise(self, noise: Any) -> Prediction:
        return self.each(lambda part: part.with_noise(noise))

    def with_noise_of_data(self, noise: Any) -> Prediction:
        """The noise that goes with each kernel where it was learned."""
        stds = [noise if each is None else each for each in self.noises]
        parts = [part.with_noise(std) for part, std in zip(self.parts, stds, strict=True)]
        return MixturePrediction.of(self.weights, parts, self.noises).placed(self.places)

    def in_unit(self, power: int, longer: float) -> Prediction:
        noises = [None if noise is None else float(np.ldexp(noise, power)) for noise in self.noises]
        return MixturePrediction.of(
            self.weights, [part.in_unit(power, longer) for part in self.parts], noises
        )


def mixture_moments(weights: Float[np.ndarray, " K"], parts: list[Prediction]) -> Prediction:
    """Mean and standard deviation of a mixture; of Monte Carlo errors the same share as of the parts."""
    means, stds = (np.array([getattr(part, name) for part in parts], float) for name in ("mean", "std"))
    average = lambda a: np.tensordot(weights, a, 1)
    mean = average(means)
    std = np.sqrt(average(stds**2 + (means - mean) ** 2))
    if any(part.std_error is None for part in parts):
        return Prediction(mean, std)
    errors = np.array([part.std_error for part in parts], float)
    return Prediction(mean, std, average(errors * stds) / np.maximum(std, np.finfo(float).tiny))


def _probability(name: str, value: Any) -> np.ndarray:
    array = as_float(name, value, ndim=(0, 1)).astype(float)
    if np.any((array <= 0) | (array >= 1)):
        raise ValueError(f"{name}: expected probabilities between 0 and 1, got {value!r}")
    return array
