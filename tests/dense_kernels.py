"""Stationary kernels with their first two derivatives by hand, in plain NumPy; `dense` re-exports them."""

import numpy as np


class Kernel:
    """k(delta) for delta (..., D): `value` (...), `gradient` (..., D) and `hessian` (..., D, D) in delta.

    Where the field has no derivative (Matern 1/2, Gneiting with alpha < 2), gradient and Hessian are NaN at delta = 0.
    """

    def __add__(self, other):
        return Sum(self, other)

    def __mul__(self, other):
        return Product(self, other)


class Sum(Kernel):
    def __init__(self, a, b):
        self.a, self.b = a, b

    def value(self, delta):
        return self.a.value(delta) + self.b.value(delta)

    def gradient(self, delta):
        return self.a.gradient(delta) + self.b.gradient(delta)

    def hessian(self, delta):
        return self.a.hessian(delta) + self.b.hessian(delta)


class Product(Kernel):
    def __init__(self, a, b):
        self.a, self.b = a, b

    def value(self, delta):
        return self.a.value(delta) * self.b.value(delta)

    def gradient(self, delta):
        a, b = self.a.value(delta)[..., None], self.b.value(delta)[..., None]
        return a * self.b.gradient(delta) + b * self.a.gradient(delta)

    def hessian(self, delta):
        a, b = self.a.value(delta)[..., None, None], self.b.value(delta)[..., None, None]
        cross = _outer(self.a.gradient(delta), self.b.gradient(delta))
        return a * self.b.hessian(delta) + b * self.a.hessian(delta) + cross + np.swapaxes(cross, -1, -2)


class Radial(Kernel):
    """variance * g(r), r = |delta / lengthscale|.

    A subclass gives g, g'/r and g'' as functions of r. In scaled coordinates z = delta / lengthscale, n = z / r, the
    gradient is (g'/r) z and the Hessian (g'/r) (I - n n') + g'' n n'; at r = 0, where g'/r -> g'', 0 and g'' I.
    """

    def __init__(self, variance=1.0, lengthscale=1.0):
        self.variance, self.lengthscale = float(variance), np.asarray(lengthscale, float)

    def _scaled(self, delta):
        z = np.asarray(delta, float) / self.lengthscale
        return z, np.sqrt(np.sum(z**2, axis=-1))

    def value(self, delta):
        return self.variance * self.profile(self._scaled(delta)[1])

    def gradient(self, delta):
        z, r = self._scaled(delta)
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.variance * self.slope_over_r(r)[..., None] * z / self.lengthscale

    def hessian(self, delta):
        z, r = self._scaled(delta)
        n = z / np.where(r > 0, r, 1.0)[..., None]
        along = _outer(n, n)
        with np.errstate(divide="ignore", invalid="ignore"):
            across = self.slope_over_r(r)[..., None, None] * (np.eye(z.shape[-1]) - along)
            hessian = across + self.curvature(r)[..., None, None] * along
        scale = np.broadcast_to(self.lengthscale, z.shape[-1:])
        return self.variance * hessian / np.outer(scale, scale)


class Matern12(Radial):
    def profile(self, r):
        return np.exp(-r)

    def slope_over_r(self, r):
        return np.where(r > 0, -np.exp(-r) / r, np.nan)

    def curvature(self, r):
        return np.exp(-r)


class Matern32(Radial):
    def profile(self, r):
        return (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)

    def slope_over_r(self, r):
        return -3 * np.exp(-np.sqrt(3) * r)

    def curvature(self, r):
        return -3 * (1 - np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)


class Matern52(Radial):
    def profile(self, r):
        return (1 + np.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-np.sqrt(5) * r)

    def slope_over_r(self, r):
        return -5 / 3 * (1 + np.sqrt(5) * r) * np.exp(-np.sqrt(5) * r)

    def curvature(self, r):
        return -5 / 3 * (1 + np.sqrt(5) * r - 5 * r**2) * np.exp(-np.sqrt(5) * r)


class SquaredExponential(Radial):
    def profile(self, r):
        return np.exp(-(r**2) / 2)

    def slope_over_r(self, r):
        return -np.exp(-(r**2) / 2)

    def curvature(self, r):
        return (r**2 - 1) * np.exp(-(r**2) / 2)


class RationalQuadratic(Radial):
    """(1 + r^2 / (2 alpha))^-alpha."""

    def __init__(self, variance=1.0, lengthscale=1.0, alpha=1.0):
        super().__init__(variance, lengthscale)
        self.alpha = float(alpha)

    def profile(self, r):
        return (1 + r**2 / (2 * self.alpha)) ** -self.alpha

    def slope_over_r(self, r):
        return -((1 + r**2 / (2 * self.alpha)) ** (-self.alpha - 1))

    def curvature(self, r):
        base = 1 + r**2 / (2 * self.alpha)
        return -(base ** (-self.alpha - 1)) + (1 + 1 / self.alpha) * r**2 * base ** (-self.alpha - 2)


class Gneiting(Radial):
    """h(r) c(r) for r < 1, else 0, with h = (1 + r^alpha)^-3 and c = (1 - r) cos(pi r) + sin(pi r) / pi.

    A covariance for D <= 3 and 0 < alpha <= 2.
    """

    def __init__(self, variance=1.0, lengthscale=1.0, alpha=1.0):
        super().__init__(variance, lengthscale)
        self.alpha = float(alpha)

    def _taper(self, r):  # c, c'/r, c''; np.sinc(r) = sin(pi r) / (pi r)
        value = (1 - r) * np.cos(np.pi * r) + np.sin(np.pi * r) / np.pi
        slope_over_r = -(np.pi**2) * (1 - r) * np.sinc(r)
        return value, slope_over_r, np.pi * np.sin(np.pi * r) - np.pi**2 * (1 - r) * np.cos(np.pi * r)

    def _decay(self, r):  # h, h'/r, h''; infinite or NaN at r = 0 for alpha < 2
        a, base = self.alpha, 1 + r**self.alpha
        power = r ** (a - 2)
        return (
            base**-3,
            -3 * a * power / base**4,
            -3 * a * (a - 1) * power / base**4 + 12 * a**2 * power * r**a / base**5,
        )

    def profile(self, r):
        return np.where(r < 1, (1 + r**self.alpha) ** -3 * self._taper(r)[0], 0.0)

    def slope_over_r(self, r):
        (c, c1, _), (h, h1, _) = self._taper(r), self._decay(r)
        return np.where(r < 1, h1 * c + h * c1, 0.0)

    def curvature(self, r):
        (c, c1, c2), (h, h1, h2) = self._taper(r), self._decay(r)
        return np.where(r < 1, h2 * c + 2 * r**2 * h1 * c1 + h * c2, 0.0)


class Periodic(Kernel):
    """variance * exp(-2 R^2 sin^2(d / (2 R)) / lengthscale^2) with d = delta[axis], on a circle of radius R = period / 2 pi.

    Half the squared chord is R^2 (1 - cos(d / R)), whose slope is R sin(d / R) and whose curvature is cos(d / R).
    """

    def __init__(self, variance=1.0, lengthscale=1.0, period=1.0, axis=0):
        self.variance, self.lengthscale, self.axis = float(variance), float(lengthscale), axis
        self.radius = float(period) / (2 * np.pi)

    def _angle(self, delta):
        return np.asarray(delta, float)[..., self.axis] / self.radius

    def value(self, delta):
        half_square = self.radius**2 * (1 - np.cos(self._angle(delta)))
        return self.variance * np.exp(-half_square / self.lengthscale**2)

    def gradient(self, delta):
        out = np.zeros(np.shape(delta))
        slope = self.radius * np.sin(self._angle(delta)) / self.lengthscale**2
        out[..., self.axis] = -self.value(delta) * slope
        return out

    def hessian(self, delta):
        out = np.zeros((*np.shape(delta), np.shape(delta)[-1]))
        angle = self._angle(delta)
        slope = self.radius * np.sin(angle) / self.lengthscale**2
        out[..., self.axis, self.axis] = self.value(delta) * (slope**2 - np.cos(angle) / self.lengthscale**2)
        return out


def _outer(a, b):
    return a[..., :, None] * b[..., None, :]
