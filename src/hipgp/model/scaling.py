"""Rescaling of problems whose numbers are too large or too small to be squared.

If y, the noise and the root of the kernel's variance are multiplied by c, so are the posterior mean and standard
deviation. A problem with extreme numbers is therefore solved in another unit, a power of two, because multiplication by
a power of two does not round.
"""

from typing import Any

import equinox as eqx
import numpy as np

from hipgp.model.data import Data, Observations, count_repeated
from hipgp.model.dates import origin
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel, Product, Stationary, Sum
from hipgp.model.trend import Trend
from hipgp.model.undecided import Undecided
from hipgp.runtime.callers import warn_caller

# Powers of two. Within SAFE, the product of two squares is in the range of the type; beyond LARGEST a square is not, so
# that the ratio of a value or standard deviation to a noise std must stay below LARGEST.
SAFE = {np.dtype(np.float32): 30, np.dtype(np.float64): 250}
LARGEST = {np.dtype(np.float32): 62, np.dtype(np.float64): 510}
LOWEST_DEVIATION, HIGHEST_DEVIATION = (
    1e-150,
    1e150,
)  # standard deviations with squares in the range of float64
FAR = 100.0  # distance of the data from zero, in standard deviations, that causes a warning without a trend
REPEATED = 0.1  # the share of observations that may repeat others without a warning


def prior_variance(kernel: Kernel) -> float | None:
    """The kernel at distance zero; None for a user-defined kernel."""
    if isinstance(kernel, Stationary):
        return float(kernel.variance)
    if not isinstance(kernel, Sum | Product):
        return None
    left, right = prior_variance(kernel.left), prior_variance(kernel.right)
    if left is None or right is None:
        return None
    return left + right if isinstance(kernel, Sum) else left * right


def exponent(kernel: Kernel | None, data: Data, noise: float | None) -> int:
    """The exponent of the power of two to compute in units of; 0 if the squares of all numbers are in range.

    `kernel` is None if it is to be learned.
    """
    stds = [np.asarray(b.noise, float) for b in data.blocks if b.noise is not None]
    if noise is not None:
        stds.append(np.array([noise]))
    variance = 1.0 if kernel is None else prior_variance(kernel)
    if variance is None:
        return 0
    noises = [float(f(s)) for s in stds for f in (np.min, np.max)]
    found = [float(np.max(np.abs(data.y)))] + ([] if kernel is None else [float(np.sqrt(variance))]) + noises
    powers = np.log2([size for size in found if size > 0] or [1.0])
    if np.max(np.abs(powers)) <= SAFE[data.dtype]:
        return 0
    middle = round((np.min(powers) + np.max(powers)) / 2)
    ratio = np.max(powers) - np.log2(min(noises)) if noises else 0.0
    if max(ratio, np.max(np.abs(powers - middle))) > LARGEST[data.dtype]:
        raise ValueError(
            f"y, noise, variance: expected values, noise and root of the variance whose squares all fit into "
            f"{data.dtype}, got sizes from {min(s for s in found if s > 0):.3g} to {max(found):.3g}; give "
            "float64 data, or look for a wrong unit"
        )
    return int(middle)


def scaled(kernel: Any, data: Data, noise: float | None, power: int) -> tuple[Any, Data, float | None]:
    """Kernel, data and noise of the field times 2^power; the kernel may be None."""
    if power == 0:
        return kernel, data, noise
    larger = None if kernel is None else scaled_kernel(kernel, power)
    return larger, scaled_data(data, power), scaled_noise(noise, power)


def scaled_kernel(kernel: Kernel, power: int) -> Kernel:
    """The kernel of the field times 2^power; in a product the first factor is scaled."""
    if isinstance(kernel, Sum):
        return Sum(scaled_kernel(kernel.left, power), scaled_kernel(kernel.right, power))
    if isinstance(kernel, Product):
        return Product(scaled_kernel(kernel.left, power), kernel.right)
    assert isinstance(kernel, Stationary)
    variance = np.ldexp(np.asarray(kernel.variance, float), 2 * power)
    return eqx.tree_at(lambda k: k.variance, kernel, variance)


def scaled_data(data: Data, power: int) -> Data:
    """The data with values and noise multiplied by 2^power."""
    times = lambda a: None if a is None else np.ldexp(a, power)
    return Data(tuple(Observations(b.functional, np.ldexp(b.y, power), times(b.noise)) for b in data.blocks))


def scaled_noise(noise: float | None, power: int) -> float | None:
    """The noise std times 2^power; None stays None."""
    return None if noise is None else float(np.ldexp(noise, power))


def scaled_bounds(bounds: dict[str, Any] | None, power: int) -> dict[str, Any] | None:
    """The user's bounds of parameters for the field times 2^power: bounds of variances and of the noise scale with it."""
    if not bounds or power == 0:
        return bounds
    factor = {"variance": 2, "noise": 1}
    return {
        name: tuple(np.ldexp(np.asarray(pair, float), power * factor.get(name.split(".")[-1], 0)))
        for name, pair in bounds.items()
    }


def check_learnable(data: Data) -> None:
    """Raise a ValueError if the variance to be learned is out of float64's range."""
    size = float(np.max(np.abs(data.y)))
    if size > 0 and not LOWEST_DEVIATION <= size <= HIGHEST_DEVIATION:
        raise ValueError(
            f"y: expected values between {LOWEST_DEVIATION:g} and {HIGHEST_DEVIATION:g} in size, whose variance can "
            f"be learned, got {size:.3g}; give y in another unit"
        )


def warn_if_repeated(data: Data) -> None:
    """Warn if a good part of the observations repeat others exactly, which learning takes for independent ones."""
    if (repeated := count_repeated(data)) > REPEATED * len(data):
        warn_caller(
            f"{repeated:,} of {len(data):,} observations repeat another one exactly, place and value: they count as "
            "independent measurements that happen to agree, so the noise is learned too small; leave them out if they are "
            "copies"
        )


def warn_if_units_mix(kernel: Kernel, data: Data) -> None:
    """Warn if one lengthscale stands for axes in different units, such as km and days."""
    units = sorted({"dates" if origin(u) else u or "plain numbers" for u in data.units})
    if len(units) < 2 or isinstance(kernel, Undecided):
        return
    alone = [p for p in kernel.parts if not p.repeats and np.ndim(p.lengthscale) == 0]
    if alone:
        one = type(alone[0]).__name__
        warn_caller(
            f"kernel: {one} has one lengthscale for axes in {', '.join(units)}, which takes a step of one along each of them as "
            f"the same distance; give it one for each axis, {one}(lengthscale=({', '.join(['1.0'] * data.ndim)}))"
        )


def warn_if_far_from_zero(data: Data, grid: Grid, trend: Trend, kernel: Kernel | None) -> None:
    """Warn if there is no trend and the data lie far from zero, the mean of the prior.

    The distance is measured in prior standard deviations or, if `kernel` is None because it is to be learned, in
    standard deviations of the data.
    """
    if trend.kind is not None:
        return
    y = np.asarray(scaled_data(data, power := -_power(data)).y, float)
    columns = Trend("constant").of_data(data, grid)[:, 0]
    level = float(columns @ y) / max(float(columns @ columns), np.finfo(float).tiny)
    variance = None if kernel is None else prior_variance(kernel)
    if variance is None:
        size, spread = np.sqrt(np.mean((level * columns) ** 2)), np.std(y - level * columns)
        size = 0.0 if spread < 1e-14 * size else size  # all values are the same
    else:
        size, spread = abs(level), np.ldexp(np.sqrt(variance), power)
    if size > FAR * spread:
        warn_caller(
            f"the data lie about {size / spread:.2g} standard deviations from zero, the mean of a field without a trend: "
            'the posterior will bend back to zero between them; give GP(..., trend="constant"), or subtract a constant '
            "from y",
        )


def _power(data: Data) -> int:
    """The power of two just above the largest value."""
    size = float(np.max(np.abs(data.y)))
    return int(np.frexp(size)[1]) if size > 0 else 0
