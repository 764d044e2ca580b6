"""A kernel that repeats along one axis.

Along the axis a distance d is replaced by the chord (period / pi) sin(pi d / period) of a circle whose circumference is
the period; the squared exponential of chords is a covariance, and repeats for ever. Draws are strictly periodic. Times a
Matern they are quasi-periodic: the shape of a cycle changes slowly.

    >>> from hipgp.model.kernels import Matern32
    >>> kernel = Periodic(period=2.0, lengthscale=0.5) * Matern32(lengthscale=20.0)
    >>> kernel([[0.0], [1.0]], [[2.0]]).round(3).tolist()
    [[0.987], [0.443]]
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.model.kernels import SMOOTH, Kernel, Stationary, positive
from hipgp.runtime.shown import numbers


class Periodic(Stationary):
    """variance * exp(-chord^2 / (2 lengthscale^2)), which repeats after every `period` along an axis.

    `period` is a number, which learning keeps as it is, or a pair (low, high): learning looks for it in between.
    `lengthscale` is in the units of the axis: over distances much shorter than the period the kernel is
    SquaredExponential(variance, lengthscale). (Scikit-learn's and GPyTorch's is 2 pi lengthscale / period.)
    In data of several dimensions `axis` says along which one it repeats; along the others it is constant.
    """

    differentiable: ClassVar[int] = SMOOTH
    repeats: ClassVar[bool] = True
    period: Float[Array, ""] = eqx.field(default=1.0)
    between: tuple[float, float] | None = eqx.field(static=True, default=None)
    axis: int | None = eqx.field(static=True, default=None)

    def __init__(
        self, variance: Any = 1.0, lengthscale: Any = 1.0, period: Any = 1.0, axis: int | None = None
    ):
        super().__init__(variance, positive("lengthscale", lengthscale, (0,)))
        self.period, self.between = _period(period)
        if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int) or axis < 0):
            raise ValueError(
                f"axis: expected the number of an axis, 0 for the first, or None with one axis, got {axis!r}"
            )
        self.axis = axis

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return super().get_params(deep) | {"period": self.between or self.period}

    def profile(self, s: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.exp(-s / 2)

    def evaluate(self, difference: Float[Array, "D ..."]) -> Float[Array, "..."]:
        along = difference[self.along(len(difference))]
        lengthscale, period, variance = (
            jnp.asarray(a, difference.dtype) for a in (self.lengthscale, self.period, self.variance)
        )
        # Whole periods are taken off first: the sine of a large number would lose digits in float32.
        turn = along / period
        chord = period / jnp.pi * jnp.sin(jnp.pi * (turn - jnp.round(turn)))
        return variance * self.profile((chord / lengthscale) ** 2)

    def evaluate_around(
        self, difference: Float[Array, "D ..."], around: Float[Array, "D ..."]
    ) -> Float[Array, "..."]:
        return self.evaluate(around)

    def scales(self, ndim: int) -> Float[np.ndarray, " D"]:
        out = np.full(ndim, np.inf)
        # A long lengthscale leaves one sine wave, whose scale is the radius of the circle.
        out[self.along(ndim)] = min(float(self.lengthscale), float(self.period) / (2 * np.pi))
        return out

    def circle(self, x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N 2"]:
        """Places on the circle of one period, in lengthscales: their straight distances are the kernel's own."""
        angle = 2 * np.pi * (x[:, self.along(x.shape[1])] / float(self.period) % 1.0)
        radius = float(self.period) / (2 * np.pi * float(self.lengthscale))
        return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def check_axes(self, ndim: int) -> None:
        if self.axis is None and ndim > 1:
            raise ValueError(
                f"axis: expected Periodic(..., axis=) to say along which of {ndim} axes it repeats, got None"
            )
        if self.axis is not None and self.axis >= ndim:
            raise ValueError(
                f"axis: expected a number from 0 to {ndim - 1} for {ndim} axes, got {self.axis} of Periodic"
            )

    def along(self, ndim: int) -> int:
        """The axis that it repeats along."""
        self.check_axes(ndim)
        return self.axis or 0

    def __repr__(self) -> str:
        known = self.between is None or not np.isnan(np.asarray(self.period, float))
        period = numbers(self.period) if known else numbers(self.between)
        axis = "" if self.axis is None else f", axis={self.axis}"
        return (
            f"Periodic(variance={numbers(self.variance)}, lengthscale={numbers(self.lengthscale)}, "
            f"period={period}{axis})"
        )


def _period(period: Any) -> tuple[Any, tuple[float, float] | None]:
    """The period as a number and None, or NaN and the range in which it is to be learned."""
    periods = positive("period", period, (0, 1))
    if periods.ndim == 0:
        return periods, None
    if periods.shape != (2,) or periods[0] >= periods[1]:
        raise ValueError(
            f"period: expected a number, or (low, high) to look for it in between, got {period!r}"
        )
    return np.asarray(np.nan), (float(periods[0]), float(periods[1]))


def check_periods(kernel: Kernel) -> None:
    """Raise a ValueError where a period is still to be learned."""
    for part in kernel.parts:
        if isinstance(part, Periodic) and np.isnan(part.period):
            raise ValueError(
                f"period: expected a number, got {part.between}, between which it is to be looked for; call "
                "gp.learn(data) first, or give a number where there is a link or a likelihood"
            )
