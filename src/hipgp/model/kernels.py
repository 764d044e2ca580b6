"""Stationary covariance functions, written for one pair of points.

A kernel is k(x, y) = variance * g(s) with s = sum_d ((x_d - y_d) / lengthscale_d)^2. Kernels compose with `+` and `*`.

    >>> kernel = Matern32(variance=2.0, lengthscale=(0.5, 1.0)) + Matern12(lengthscale=3.0)
    >>> kernel([[0.0, 0.0]], [[0.0, 0.0]])
    array([[3.]])

Derivatives come from automatic differentiation of `evaluate`. The profile g is a function of the *squared* distance, with
explicit derivatives (`model/profiles.py`).
"""

import abc
import dataclasses
import functools
import inspect
import operator
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from hipgp.model import profiles
from hipgp.model.arguments import as_float
from hipgp.model.differences import differences
from hipgp.runtime.precision import float64_available
from hipgp.runtime.shown import as_html, numbers

SMOOTH = 99  # stands for infinitely many derivatives


class Kernel(eqx.Module):
    """A stationary covariance. Subclasses define `evaluate` for one difference x - y."""

    @abc.abstractmethod
    def evaluate(self, difference: Float[Array, "D ..."]) -> Float[Array, "..."]:
        """The covariance of f(x) and f(y), given x - y.

        Defined for one pair, (D,); it broadcasts elementwise over further axes.
        """

    @property
    @abc.abstractmethod
    def differentiable(self) -> int:
        """The number of mean-square derivatives of the field (SMOOTH for infinitely many)."""

    @property
    @abc.abstractmethod
    def parts(self) -> tuple["Stationary", ...]:
        """The elementary kernels of a sum or product; a tuple of itself for an elementary kernel."""

    def evaluate_around(
        self, difference: Float[Array, "D ..."], around: Float[Array, "D ..."]
    ) -> Float[Array, "..."]:
        """The covariance on a torus: of parts that repeat at the differences `around` it, which others see flattened."""
        return self.evaluate(difference)

    def __call__(self, x: Any, y: Any) -> Float[np.ndarray, "N M"]:
        """The Gram matrix between two sets of points, (N, D) and (M, D)."""
        a, b = (as_float(name, points, ndim=(2,)) for name, points in (("x", x), ("y", y)))
        if a.shape[1] != b.shape[1]:
            raise ValueError(f"y: expected points of {a.shape[1]} coordinates like x, got {b.shape[1]}")
        self.check_dimension(a.shape[1])
        return np.asarray(_gram(self, a, b))

    def __add__(self, other: "Kernel") -> "Kernel":
        return Sum(self, _kernel(other))

    def __mul__(self, other: "Kernel") -> "Kernel":
        return Product(self, _kernel(other))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The kernel's parameters by name; those of the parts of a sum or product as left__lengthscale and so on."""
        found = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        if deep:
            for name, part in list(found.items()):
                if isinstance(part, Kernel):
                    found |= {f"{name}__{inner}": value for inner, value in part.get_params().items()}
        return found

    def set_params(self, **values: Any) -> "Kernel":
        """A new kernel with other values of some parameters, by the names of `get_params`."""
        known, direct = self.get_params(), self.get_params(deep=False)
        for name in values:
            if name not in known:
                raise ValueError(f"kernel: expected parameters among {', '.join(known)}, got {name!r}")
        direct |= {name: value for name, value in values.items() if "__" not in name}
        for part in direct:
            inside = {n.partition("__")[2]: v for n, v in values.items() if n.startswith(f"{part}__")}
            direct[part] = direct[part].set_params(**inside) if inside else direct[part]
        return type(self)(**direct)

    def _repr_html_(self) -> str:
        """The form of the kernel and a row for each part with its parameters, as notebooks show it."""
        if isinstance(self, _Pair):
            rows = {f"{i}. {type(part).__name__}": _inside(part) for i, part in enumerate(self.parts, 1)}
            return as_html(_form(self), rows)
        return as_html(repr(self), {})

    def __sklearn_clone__(self) -> "Kernel":
        return self  # nothing changes it

    def check_dimension(self, ndim: int) -> None:
        """Raise a ValueError if the kernel has lengthscales for other than `ndim` axes, or no covariance there."""
        for part in self.parts:
            part.check_axes(ndim)
        if np.any(np.isinf(np.min([part.scales(ndim) for part in self.parts], axis=0))):
            raise ValueError(
                f"kernel: expected one that varies along all of {ndim} axes, got one that repeats along a single axis; "
                "multiply it by a kernel such as Matern32(), or add one"
            )


@float64_available
def _gram(kernel: "Kernel", a: np.ndarray, b: np.ndarray) -> Array:
    return kernel.evaluate(differences(jnp.asarray(a).T[:, :, None], jnp.asarray(b).T[:, None, :]))


class _Pair(Kernel):
    """A composition of two kernels."""

    left: Kernel
    right: Kernel

    @property
    def differentiable(self) -> int:
        return min(self.left.differentiable, self.right.differentiable)

    @property
    def parts(self) -> tuple["Stationary", ...]:
        return self.left.parts + self.right.parts


class Sum(_Pair):
    """The covariance of the sum of two independent fields."""

    def evaluate(self, difference: Float[Array, "D ..."]) -> Float[Array, "..."]:
        return self.left.evaluate(difference) + self.right.evaluate(difference)

    def evaluate_around(
        self, difference: Float[Array, "D ..."], around: Float[Array, "D ..."]
    ) -> Float[Array, "..."]:
        both = difference, around
        return self.left.evaluate_around(*both) + self.right.evaluate_around(*both)

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"


class Product(_Pair):
    """The covariance of the product of two independent fields."""

    def evaluate(self, difference: Float[Array, "D ..."]) -> Float[Array, "..."]:
        return self.left.evaluate(difference) * self.right.evaluate(difference)

    def evaluate_around(
        self, difference: Float[Array, "D ..."], around: Float[Array, "D ..."]
    ) -> Float[Array, "..."]:
        both = difference, around
        return self.left.evaluate_around(*both) * self.right.evaluate_around(*both)

    def __repr__(self) -> str:
        return " * ".join(f"({k!r})" if isinstance(k, Sum) else repr(k) for k in (self.left, self.right))


def _form(kernel: Kernel) -> str:
    """The names of the parts as they are composed, such as "(Matern12 + Matern32) * Matern52"."""
    if not isinstance(kernel, _Pair):
        return type(kernel).__name__
    left, right = (
        f"({_form(k)})" if isinstance(kernel, Product) and isinstance(k, Sum) else _form(k)
        for k in (kernel.left, kernel.right)
    )
    return f"{left} {'+' if isinstance(kernel, Sum) else '*'} {right}"


def _inside(part: Kernel) -> str:
    """The parameters of an elementary kernel as text."""
    return repr(part).removeprefix(f"{type(part).__name__}(").removesuffix(")").replace("=", " ")


class Stationary(Kernel):
    """An elementary kernel: a variance, a lengthscale (one, or one per axis) and a profile g(s)."""

    repeats: ClassVar[bool] = False
    variance: Float[Array, ""] = eqx.field(converter=lambda v: positive("variance", v, (0,)), default=1.0)
    lengthscale: Float[Array, "..."] = eqx.field(
        converter=lambda v: positive("lengthscale", v, (0, 1)), default=1.0
    )

    def __init__(self, variance: Any = 1.0, lengthscale: Any = 1.0):
        self.variance = variance
        self.lengthscale = lengthscale

    @abc.abstractmethod
    def profile(self, s: Float[Array, ""]) -> Float[Array, ""]:
        """The correlation at squared scaled distance s."""

    def evaluate(self, difference: Float[Array, "D ..."]) -> Float[Array, "..."]:
        scale = jnp.broadcast_to(1 / jnp.asarray(self.lengthscale, difference.dtype), difference.shape[:1])
        # Written axis by axis, for XLA to fuse it into one loop; it would not fuse a reduction over D.
        s = functools.reduce(operator.add, [(d * one) ** 2 for d, one in zip(difference, scale, strict=True)])
        return jnp.asarray(self.variance, difference.dtype) * self.profile(s)

    @property
    def parts(self) -> tuple["Stationary", ...]:
        return (self,)

    def scales(self, ndim: int) -> Float[np.ndarray, " D"]:
        """The lengthscale along each axis; infinite where the kernel does not vary along it."""
        return np.array(np.broadcast_to(np.asarray(self.lengthscale, float), (ndim,)))

    def check_axes(self, ndim: int) -> None:
        """Raise a ValueError where the part is not for `ndim` axes."""
        size = np.size(self.lengthscale)
        if np.ndim(self.lengthscale) == 1 and size != ndim:
            raise ValueError(
                f"lengthscale: expected one number or {ndim} (one per axis of the grid and data), got {size}"
            )

    def __repr__(self) -> str:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return f"{type(self).__name__}({', '.join(f'{k}={numbers(v)}' for k, v in fields.items())})"


class Matern12(Stationary):
    """Matern with nu = 1/2 (the exponential): rough draws, no derivative."""

    differentiable: ClassVar[int] = 0

    def profile(self, s: Float[Array, ""]) -> Float[Array, ""]:
        return profiles.matern12(s)


class Matern32(Stationary):
    """Matern with nu = 3/2: draws with one derivative."""

    differentiable: ClassVar[int] = 1

    def profile(self, s: Float[Array, ""]) -> Float[Array, ""]:
        return profiles.matern32(s)


class Matern52(Stationary):
    """Matern with nu = 5/2: draws with two derivatives."""

    differentiable: ClassVar[int] = 2

    def profile(self, s: Float[Array, ""]) -> Float[Array, ""]:
        return profiles.matern52(s)


class SquaredExponential(Stationary):
    """exp(-s / 2): infinitely smooth draws."""

    differentiable: ClassVar[int] = SMOOTH

    def profile(self, s: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.exp(-s / 2)


class RationalQuadratic(Stationary):
    """(1 + s / (2 alpha))^-alpha: a mixture of squared exponentials of many lengthscales."""

    differentiable: ClassVar[int] = SMOOTH
    alpha: Float[Array, ""] = eqx.field(converter=lambda v: positive("alpha", v, (0,)), default=1.0)

    def __init__(self, variance: Any = 1.0, lengthscale: Any = 1.0, alpha: Any = 1.0):
        super().__init__(variance, lengthscale)
        self.alpha = alpha

    def profile(self, s: Float[Array, ""]) -> Float[Array, ""]:
        alpha = jnp.asarray(self.alpha, s.dtype)
        return jnp.exp(-alpha * jnp.log1p(s / (2 * alpha)))


class Gneiting(Stationary):
    """Gneiting's compactly supported kernel: (1 + t^alpha)^-3 ((1 - t) cos(pi t) + sin(pi t) / pi), zero from t = 1 on.

    The form used for interstellar dust (Sale & Magorrian 2014). Its draws are rough for alpha < 2 and have one
    derivative for alpha = 2. Valid in up to three dimensions.
    """

    alpha: float = eqx.field(static=True, default=1.0)

    def __init__(self, variance: Any = 1.0, lengthscale: Any = 1.0, alpha: float = 1.0):
        super().__init__(variance, lengthscale)
        if not 0 < alpha <= 2:
            raise ValueError(f"alpha: expected a number above 0 and at most 2, got {alpha!r}")
        self.alpha = float(alpha)

    @property
    def differentiable(self) -> int:
        return 1 if self.alpha == 2 else 0

    def check_axes(self, ndim: int) -> None:
        super().check_axes(ndim)
        if ndim > 3:
            raise ValueError(
                f"kernel: expected at most 3 dimensions for Gneiting (no covariance beyond), got {ndim}"
            )

    def profile(self, s: Float[Array, ""]) -> Float[Array, ""]:
        power = s if self.alpha == 2 else profiles.power(s, self.alpha / 2)
        return (1 + power) ** -3 * profiles.bump(s)


def positive(name: str, value: Any, ndim: tuple[int, ...]) -> Any:
    """The value as a float64 array of as many axes as `ndim` allows; a ValueError unless all are positive."""
    if isinstance(value, Tracer):
        return value  # JAX does not know its value while tracing
    array = as_float(name, value, ndim=ndim).astype(np.float64)
    if array.size == 0 or np.any(array <= 0):
        raise ValueError(f"{name}: expected positive numbers, got {value!r}")
    return array


def _kernel(other: Any) -> Kernel:
    if not isinstance(other, Kernel):
        raise ValueError(f"kernel: expected a kernel to add or multiply, got {type(other).__name__}")
    return other
