"""Kernels by their public names, and in words."""

import functools
from typing import Any

import numpy as np

from hipgp.model import dates
from hipgp.model.kernels import (
    Gneiting,
    Kernel,
    Matern12,
    Matern32,
    Matern52,
    Product,
    RationalQuadratic,
    SquaredExponential,
    Stationary,
    Sum,
)
from hipgp.model.periodic import Periodic


def describe(kernel: Kernel, units: tuple[str, ...] = ()) -> str:
    """The kernel in one line, such as "Matern32(variance 1.2, lengthscale 12.3 days) + ...", with the units of the axes."""
    if isinstance(kernel, Sum):
        return f"{describe(kernel.left, units)} + {describe(kernel.right, units)}"
    if isinstance(kernel, Product):
        both = (kernel.left, kernel.right)
        return " * ".join(
            f"({describe(k, units)})" if isinstance(k, Sum) else describe(k, units) for k in both
        )
    return " + ".join(_described(part, units) for part in kernel.parts)


def _described(part: Stationary, units: tuple[str, ...]) -> str:
    period = ""
    if isinstance(part, Periodic):
        units = (units[part.axis],) if units and part.axis is not None else units
        period = f", period {_lengths(part.period, units)}"
    lengths = _lengths(part.lengthscale, units)
    return f"{type(part).__name__}(variance {float(part.variance):.3g}, lengthscale {lengths}{period})"


def _lengths(lengthscale: Any, units: tuple[str, ...]) -> str:
    """Lengthscales with their units; a single lengthscale for axes of different units is shown without one."""
    values = np.atleast_1d(np.asarray(lengthscale, float))
    if len(values) != len(units):
        units = units[:1] * len(values) if len(set(units)) == 1 else ("",) * len(values)
    return ", ".join(dates.length(float(f"{v:.3g}"), unit) for v, unit in zip(values, units, strict=True))


def kernel_name(kernel: Kernel) -> str:
    """The names of a kernel's parts, such as "Matern12 + Matern32 (per axis)"."""
    if hasattr(kernel, "left"):
        sign = {"Sum": " + ", "Product": " * "}.get(type(kernel).__name__, " ? ")
        return sign.join(kernel_name(part) for part in (kernel.left, kernel.right))  # type: ignore[attr-defined]
    per_axis = np.ndim(getattr(kernel, "lengthscale", 0.0)) == 1
    return type(kernel).__name__ + (" (per axis)" if per_axis else "")


@functools.cache
def elementary() -> dict[str, type[Stationary]]:
    """Every elementary kernel by its public name."""
    classes = (Matern12, Matern32, Matern52, SquaredExponential, RationalQuadratic, Gneiting, Periodic)
    return {cls.__name__: cls for cls in classes}
