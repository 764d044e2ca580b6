"""Problems with a known truth: fields of several kinds, and what an instrument would measure of them.

    >>> sky = dust(stars=50, seed=1)
    >>> sky.extinction.shape, bool(sky.density.min() > 0)
    ((50,), True)

All generators are seeded and need NumPy and SciPy only; none of them uses the library's own model, so that what is
recovered is not what was put in.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.ndimage import map_coordinates

Array = np.ndarray


class Dust(NamedTuple):
    """Interstellar dust in a box around the Sun at (0, 0, 0), and stars whose light it dims. Lengths in kpc."""

    axes: tuple[Array, ...]
    density: Float[Array, "a b c"]  # mag / kpc
    stars: Float[Array, "N 3"]
    extinction: Float[Array, " N"]  # mag, without noise
    measured: Float[Array, " N"]
    noise: Float[Array, " N"]


class Scene(NamedTuple):
    """Measured values at places, and the true field as a function of place."""

    places: Float[Array, "N D"]
    measured: Float[Array, " N"]
    truth: Callable[[Array], Array]


class Beams(NamedTuple):
    """Line integrals through a plane."""

    start: Float[Array, "N 2"]
    end: Float[Array, "N 2"]
    measured: Float[Array, " N"]
    truth: Callable[[Array], Array]


class Areas(NamedTuple):
    """Averages over square cells, and values at points."""

    lower: Float[Array, "N 2"]
    upper: Float[Array, "N 2"]
    averages: Float[Array, " N"]
    places: Float[Array, "P 2"]
    values: Float[Array, " P"]
    truth: Callable[[Array], Array]


class Slopes(NamedTuple):
    """Values and derivatives of a smooth function of one variable."""

    x: Float[Array, " N"]
    values: Float[Array, " N"]
    slope_x: Float[Array, " S"]
    slopes: Float[Array, " S"]
    truth: Callable[[Array], Array]
    derivative: Callable[[Array], Array]


def power_law_field(
    shape: Sequence[int], slope: float, rng: np.random.Generator, largest: float = 0.5, smallest: float = 0.0
) -> Array:
    """A Gaussian field with power spectrum (1 + (k/k0)^2)^(-slope/2), mean 0, variance 1, not periodic.

    Scales are fractions of the longest axis: above `largest` the spectrum is flat, below `smallest` it is cut off.
    """
    double = [2 * n for n in shape]
    frequencies = np.meshgrid(*[np.fft.fftfreq(n) for n in double], indexing="ij", sparse=True)
    k = np.sqrt(sum(f**2 for f in frequencies)) * max(shape)
    amplitude = (1 + (k * largest) ** 2) ** (-slope / 4) * np.exp(-((k * smallest) ** 2))
    noise = np.fft.fftn(rng.standard_normal(double))
    field = np.fft.ifftn(noise * amplitude).real / np.sqrt(np.mean(amplitude**2))
    return field[tuple(slice(0, n) for n in shape)]


def interpolate(axes: Sequence[Array], values: Array, places: Float[Array, "... D"]) -> Float[Array, "..."]:
    """Multilinear interpolation on a regular grid, constant beyond its edge."""
    index = [(places[..., d] - a[0]) / (a[1] - a[0]) for d, a in enumerate(axes)]
    return map_coordinates(values, index, order=1, mode="nearest")


def line_integral(
    truth: Callable[[Array], Array], start: Float[Array, "N D"], end: Float[Array, "N D"], steps: int = 120
) -> Float[Array, " N"]:
    """The midpoint rule with many steps: simple, and not the library's quadrature."""
    total = np.zeros(len(end))
    for t in (np.arange(steps) + 0.5) / steps:
        total += truth(start + t * (end - start))
    return total / steps * np.linalg.norm(end - start, axis=-1)


def dust(stars: int = 3000, seed: int = 0, cells: tuple[int, int, int] = (100, 100, 40)) -> Dust:
    """Turbulent dust in a disc: a log-normal density with a Kolmogorov spectrum, thinner away from the plane.

    Extinctions come with a Gaussian error of 0.02 mag plus 3 per cent.
    """
    rng = np.random.default_rng(seed)
    half = np.array([1.0, 1.0, 0.4])
    axes = tuple(np.linspace(-h, h, n) for h, n in zip(half, cells, strict=True))
    height = axes[2][None, None, :]
    turbulence, folds = (power_law_field(cells, 11 / 3, rng, 0.6, 0.12) for _ in range(2))
    sheets = np.exp(-((folds / 0.6) ** 2))  # where `folds` is zero
    density = (0.1 + 1.5 * sheets) * np.exp(0.5 * turbulence) / np.cosh(height / 0.35) ** 2
    density += 0.02
    place = rng.uniform(-1, 1, (20 * stars, 3)) * half
    near = np.linalg.norm(place, axis=1)
    place = place[near > 0.08][:stars]
    extinction = line_integral(lambda x: interpolate(axes, density, x), np.zeros_like(place), place)
    noise = 0.02 + 0.03 * extinction
    return Dust(axes, density, place, extinction, extinction + noise * rng.standard_normal(stars), noise)


def prices(count: int = 8000, seed: int = 0) -> Scene:
    """Log prices of houses, crowded into towns; each sold for its neighbourhood's price times a factor of its own."""
    rng = np.random.default_rng(seed)
    towns = rng.uniform(0.06, 0.94, (25, 2))
    size = rng.pareto(1.3, len(towns)) + 0.4
    which = rng.choice(len(towns), count, p=size / size.sum())
    spread = 0.018 * np.sqrt(size[which])[:, None]
    places = towns[which] + spread * rng.standard_t(3, (count, 2))
    countryside = rng.uniform(size=count) < 0.12
    places = np.where(countryside[:, None], rng.uniform(0, 1, (count, 2)), places)
    places = np.clip(places, 0.0, 1.0)
    axes = (np.linspace(0, 1, 200),) * 2
    regional = 0.45 * power_law_field((200, 200), 4.5, rng, 0.7) + 0.2 * power_law_field(
        (200, 200), 3.0, rng, 0.08
    )

    def truth(x: Array) -> Array:
        pull = sum(
            0.12 * np.log1p(s) * np.exp(-np.linalg.norm(x - t, axis=-1) / 0.06)
            for s, t in zip(size, towns, strict=True)
        )
        return 12.2 + interpolate(axes, regional, x) + pull

    return Scene(places, truth(places) + 0.25 * rng.standard_normal(count), truth)


def sinusoidal_network(values: int = 100, slopes: int = 20, seed: int = 0) -> Slopes:
    """The paper's derivative problem (section 5.3): softplus of a random sum of sines, seen by values and slopes."""
    rng = np.random.default_rng(seed)
    frequency, phase = rng.normal(0, 2.5, 20), rng.uniform(0, 2 * np.pi, 20)
    weight = rng.normal(0, 1.0, 20) / np.sqrt(20) * 2

    def inner(x: Array) -> Array:
        return np.sin(np.multiply.outer(x, frequency) + phase) @ weight

    truth = lambda x: np.logaddexp(0, inner(x))
    derivative = lambda x: (
        np.cos(np.multiply.outer(x, frequency) + phase) @ (weight * frequency) / (1 + np.exp(-inner(x)))
    )
    x = np.sort(
        np.concatenate([rng.uniform(-3, -0.6, values // 2), rng.uniform(0.9, 3, values - values // 2)])
    )
    at = np.linspace(-0.6, 0.9, slopes)  # slopes alone tell what happens in the gap between the values
    noisy = truth(x) + 0.05 * rng.standard_normal(values)
    return Slopes(x, noisy, at, derivative(at) + 0.1 * rng.standard_normal(slopes), truth, derivative)


def phantom(angles: int = 48, detectors: int = 56, noise: float = 0.01, seed: int = 0) -> Beams:
    """A slice through soft ellipses, and parallel beams through it from all sides."""
    rng = np.random.default_rng(seed)
    middle = np.concatenate([[[0, 0], [0, 0]], rng.uniform(-0.4, 0.4, (8, 2))])
    radius = np.concatenate([[[0.85, 0.68], [0.78, 0.61]], rng.uniform(0.07, 0.22, (8, 2))])
    turn = np.concatenate([[0.3, 0.3], rng.uniform(0, np.pi, 8)])
    level = np.concatenate([[1.0, -0.6], rng.choice([-0.25, 0.3, 0.5], 8)])

    def truth(x: Array) -> Array:
        total = np.zeros(x.shape[:-1])
        for c, r, a, v in zip(middle, radius, turn, level, strict=True):
            d = x - c
            u = np.stack(
                [np.cos(a) * d[..., 0] + np.sin(a) * d[..., 1], np.cos(a) * d[..., 1] - np.sin(a) * d[..., 0]]
            )
            inside = 1 - np.sqrt((u[0] / r[0]) ** 2 + (u[1] / r[1]) ** 2)
            total += v / (1 + np.exp(-inside * r.min() / 0.012))
        return total

    theta = np.repeat((np.arange(angles) + 0.5) * np.pi / angles, detectors)
    offset = np.tile(np.linspace(-0.92, 0.92, detectors), angles)
    along, across = (
        np.stack([f(theta), g(theta)], -1) for f, g in ((np.cos, np.sin), (lambda t: -np.sin(t), np.cos))
    )
    reach = np.sqrt(1 - offset**2)[:, None]
    start, end = offset[:, None] * across - reach * along, offset[:, None] * across + reach * along
    exact = line_integral(truth, start, end, 600)
    return Beams(start, end, exact + noise * rng.standard_normal(len(exact)), truth)


def areas(cells: int = 12, points: int = 60, seed: int = 0) -> Areas:
    """Averages over the cells of a coarse map with little noise, and a few stations that see single points."""
    rng = np.random.default_rng(seed)
    axes = (np.linspace(0, 1, 240),) * 2
    field = 4 + power_law_field((240, 240), 4.0, rng, 0.3, 0.01)
    truth = lambda x: interpolate(axes, field, x)
    corner = np.stack(np.meshgrid(*[np.arange(cells)] * 2, indexing="ij"), -1).reshape(-1, 2) / cells
    inside = (np.stack(np.meshgrid(*[np.arange(20) + 0.5] * 2, indexing="ij"), -1).reshape(-1, 2)) / (
        20 * cells
    )
    average = truth(corner[:, None, :] + inside).mean(1) + 0.02 * rng.standard_normal(len(corner))
    places = rng.uniform(0, 1, (points, 2))
    values = truth(places) + 0.1 * rng.standard_normal(points)
    return Areas(corner, corner + 1 / cells, average, places, values, truth)


def timeseries(count: int = 20_000, seed: int = 0, span: float = 1000.0) -> Scene:
    """An irregularly sampled signal over `span` days: slow wandering, fast jitter, and weeks without any data."""
    rng = np.random.default_rng(seed)
    knots = np.linspace(0, span, 2**16)
    slow = power_law_field((len(knots),), 2.2, rng, 0.05)
    fast = power_law_field((len(knots),), 3.5, rng, 0.003)
    signal = slow + 0.35 * fast
    truth = lambda x: np.interp(np.asarray(x)[..., 0], knots, signal)
    gaps = np.sort(rng.uniform(0, span, 12))
    half_width = rng.uniform(2, 9, len(gaps))
    t = rng.uniform(0, span, 2 * count)
    t = np.sort(t[np.all(np.abs(t[:, None] - gaps) > half_width, axis=1)][:count])
    places = t[:, None]
    return Scene(places, truth(places) + 0.1 * rng.standard_normal(len(t)), truth)


def nearest_cell(areas: Areas, places: Float[Array, "N 2"]) -> Float[Array, " N"]:
    """The average of the cell each place lies in: the map one has before any inference."""
    cells = round(len(areas.averages) ** 0.5)
    index = np.clip((places * cells).astype(int), 0, cells - 1)
    return areas.averages.reshape(cells, cells)[index[:, 0], index[:, 1]]
