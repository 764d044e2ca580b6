"""Columns of features as places, and observations with weights, as scikit-learn gives them."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hipgp.model.coordinates import as_places, conversion
from hipgp.model.data import Data, observe
from hipgp.model.dates import are_dates
from hipgp.model.degrees import degrees_among
from hipgp.model.frames import Frame, on_plane
from hipgp.model.functionals import Functionals, Points
from hipgp.model.likelihood import Likelihood
from hipgp.model.quantities import is_quantity
from hipgp.model.tables import points_of


def as_columns(X: Any, frame: Frame | None) -> tuple[Any, Frame]:
    """X as numbers in the units and on the plane of `frame`, or in their own, and that frame.

    Dates and quantities are converted; longitude and latitude, by these names, become places on a plane, and the first two
    columns.
    """
    columns = list(X.columns) if hasattr(X, "iloc") and hasattr(X, "columns") else None
    pair = None if columns is None else degrees_among(columns)
    if columns is not None and pair is not None and (frame is None or frame.crs):
        points = points_of(X, "" if frame is None else frame.crs)
        if frame is not None:
            points, _ = on_plane(points, frame.crs, frame.axes)
        columns = [*pair, *(name for name in columns if name not in pair)]
        return type(X)(points.x, columns=columns, index=X.index), Frame(points.units, "", points.crs)
    parts = [X] if columns is None else [X[name] for name in columns]
    if not any(are_dates(part) or is_quantity(part) for part in parts):
        if frame is not None and frame.axes:
            raise ValueError(
                f"X: expected columns in {', '.join(map(repr, frame.axes))} like those of fit, got plain numbers"
            )
        return X, Frame()
    found, units = as_places("X", X)
    if frame is not None:
        factor, shift = conversion("X", units, frame.axes)
        found = factor * found + shift
    if columns is not None:
        found = type(X)(found, columns=columns, index=X.index)
    return found, Frame(units) if frame is None else frame


def places(X: np.ndarray, frame: Frame) -> Points:
    """The points X, in the units and on the plane of the frame."""
    return Points(X).with_fields({"units": frame.axes, "crs": frame.crs})


class Weighted(NamedTuple):
    """Values y at X, each counting as `weight` of them; `noise` is the std of one, one each, or None to learn it."""

    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, " N"]
    noise: Any
    weight: Float[np.ndarray, " N"] | None
    frame: Frame
    likelihood: Likelihood | None

    @classmethod
    def of(
        cls, X: np.ndarray, y: np.ndarray, noise: Any, weight: Any, frame: Frame, likelihood: Any
    ) -> "Weighted":
        """The observations of positive weight; a ValueError where weights mean nothing."""
        if weight is None:
            return cls(X, y, noise, None, frame, likelihood)
        if likelihood is not None:
            raise ValueError(
                f"sample_weight: expected none with {type(likelihood).__name__}, got weights, which divide the variance of "
                "Gaussian noise; leave out the weights or the likelihood"
            )
        used = weight > 0
        if not np.any(used):
            raise ValueError("sample_weight: expected some positive weights, got zero for every observation")
        std = noise if np.ndim(noise) == 0 else noise[used]
        return cls(X[used], y[used], std, weight[used], frame, likelihood)

    def data(self, noise: Any) -> Data:
        """The observations, of which one of weight 1 has this noise where none was given."""
        std = noise if self.noise is None else self.noise
        if self.weight is not None:
            std = np.broadcast_to(std, self.y.shape) / np.sqrt(self.weight)
        noise = None if self.noise is None and self.weight is None else std
        return observe(places(self.X, self.frame), self.y, noise, self.likelihood)

    def to_learn(self) -> Data:
        """Observations of which kernel and noise are learned.

        With weights w and one noise to be learned these are sqrt(w) y of functionals sqrt(w) f(x), all with the noise of one.
        """
        if self.weight is None or self.noise is not None:
            return self.data(self.noise)
        root = np.sqrt(self.weight)
        scaled = Functionals(self.X[:, None, :], root[:, None])
        return observe(scaled.with_fields({"units": self.frame.axes, "crs": self.frame.crs}), root * self.y)
