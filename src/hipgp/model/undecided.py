"""The kernel of GP("auto") before learning, and the kernels among which data choose."""

import itertools
from typing import Never

import numpy as np
from jaxtyping import Array, Float

from hipgp.model.kernels import SMOOTH, Kernel, Matern12, Matern32, Matern52, Stationary

ROUGHNESSES = (Matern12, Matern32, Matern52)


class Undecided(Kernel):
    """A kernel that is to be chosen by the data; nothing is known of it before."""

    def evaluate(self, difference: Float[Array, "D ..."]) -> Never:
        raise _unknown()

    @property
    def differentiable(self) -> int:
        """Infinitely many derivatives stand for: kernels that lack those that were observed are not tried."""
        return SMOOTH

    @property
    def parts(self) -> Never:
        raise _unknown()

    def check_dimension(self, ndim: int) -> None:
        """Any number of axes will do."""

    def __repr__(self) -> str:
        return "auto: chosen when learned"


def _unknown() -> ValueError:
    return ValueError(
        'kernel: expected one that is known, got "auto", which is chosen when data are learned from; call '
        "gp = gp.learn(data) first"
    )


def single_kernels(ndim: int, derivatives: int, per_axis: bool) -> list[Kernel]:
    """The elementary kernels whose draws have that many derivatives, with one lengthscale, or one for each axis."""
    return [
        _unit(cls, ndim, per_axis)
        for cls in ROUGHNESSES
        if _unit(cls, 1, False).differentiable >= derivatives
    ]


def sums_of_two(ndim: int, derivatives: int, per_axis: bool) -> list[Kernel]:
    """The sums of two different ones of `single_kernels`."""
    singles = single_kernels(ndim, derivatives, per_axis)
    return [one + other for one, other in itertools.combinations(singles, 2)]


def _unit(cls: type[Stationary], ndim: int, per_axis: bool) -> Stationary:
    return cls(1.0, np.ones(ndim) if per_axis else 1.0)
