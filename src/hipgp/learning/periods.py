"""Where to begin the search for the period of a kernel that repeats.

The likelihood has a maximum at every few periods, so a climb finds only the one that it starts near. Starts are peaks of
the least-squares periodogram of the data, through whatever functionals they were observed, and multiples of the highest:
a cycle that is no sine wave may have more in its second harmonic than in its first.
"""

import equinox as eqx
import numpy as np
from jaxtyping import Float

from hipgp.model.data import Data
from hipgp.model.kernels import Kernel, Stationary
from hipgp.model.nodes import Nodes
from hipgp.model.periodic import Periodic

OBSERVATIONS = 2_048  # at most, at random
STEPS = 8  # frequencies to one of resolution, 1 / extent
MOST_FREQUENCIES = 2**15
AT_ONCE = 2**21  # sines computed together
PEAKS, MULTIPLES = 3, (2.0, 3.0)
SHARES = (0.08, 0.3)  # lengthscales tried, in periods: cycles with sharp features, and near sine waves
FINE_SHARES = (0.03, 0.06, 0.12, 0.25, 0.5)  # the same where the period is given


def periods_to_try(kernel: Kernel, data: Data, columns: Float[np.ndarray, "N p"]) -> list[list[float]]:
    """For each part of the kernel the periods to begin with, the best first; none for parts that do not repeat."""
    return [
        []
        if not isinstance(part, Periodic)
        else [float(part.period)]
        if part.between is None
        else candidates(data, columns, part.axis or 0, part.between)
        for part in kernel.parts
    ]


def with_first_period(part: Stationary, periods: list[float]) -> Stationary:
    """The part with the first of its periods, where it has none yet."""
    if not isinstance(part, Periodic) or not np.isnan(part.period):
        return part
    return eqx.tree_at(lambda p: p.period, part, np.asarray(periods[0]))


def rungs(periods: list[float]) -> list[tuple[float, float]]:
    """Lengthscales and periods to start from."""
    shares = SHARES if len(periods) > 1 else FINE_SHARES
    return [(share * period, period) for period in periods for share in shares]


def candidates(
    data: Data, columns: Float[np.ndarray, "N p"], axis: int, between: tuple[float, float]
) -> list[float]:
    """The highest peaks of the periodogram along an axis, and multiples of the highest, within a range of periods."""
    power, frequency = _periodogram(data, columns, axis, between)
    inner = np.concatenate([[-np.inf], power, [-np.inf]])
    peaks = np.flatnonzero((power >= inner[:-2]) & (power >= inner[2:]))
    best = 1 / frequency[peaks[np.argsort(-power[peaks], kind="stable")][:PEAKS]]
    more = [best[0] * k for k in MULTIPLES if best[0] * k <= between[1]]
    return [float(p) for p in (*best, *more)]


def _periodogram(
    data: Data, columns: Float[np.ndarray, "N p"], axis: int, between: tuple[float, float]
) -> tuple[Float[np.ndarray, " F"], Float[np.ndarray, " F"]]:
    """The share of the data's variance about the trend that a sine wave of each frequency explains, and the frequencies."""
    rows = np.sort(np.random.default_rng(0).permutation(len(data))[:OBSERVATIONS])
    low, high = between
    nodes = [block.functional.nodes(low / 8) for block in data.blocks]  # some nodes to the shortest period
    every = Nodes.concatenate(nodes)[rows].with_derivative_fields()
    x, slope = np.asarray(every.x[..., axis], float), np.asarray(every.direction, float)[:, axis, None]
    value, weights = np.asarray(every.value, float)[:, None], np.asarray(every.weights, float)
    extent = max(float(np.ptp(x)), low)
    count = int(np.clip(np.ceil(STEPS * extent * (1 / low - 1 / high)), 16, MOST_FREQUENCIES))
    frequency = np.linspace(1 / high, 1 / low, count)
    trend = np.linalg.qr(np.column_stack([columns[rows], np.ones(len(rows))]))[0]
    without = lambda a: a - (a @ trend) @ trend.T
    y = without(np.asarray(data.y, float)[rows])
    power, size = np.empty(count), max(1, AT_ONCE // x.size)
    for begin in range(0, count, size):
        omega = 2 * np.pi * frequency[begin : begin + size, None, None]
        phase = omega * (x - x.mean())
        sine, cosine = np.sin(phase), np.cos(phase)
        waves = [value * cosine - slope * omega * sine, value * sine + slope * omega * cosine]
        a, b = (without(np.sum(weights * wave, axis=2)) for wave in waves)
        power[begin : begin + size] = _explained(a, b, y)
    return power / max(float(y @ y), np.finfo(float).tiny), frequency


def _explained(
    a: Float[np.ndarray, "F N"], b: Float[np.ndarray, "F N"], y: Float[np.ndarray, " N"]
) -> Float[np.ndarray, " F"]:
    """The squared length of y's projection on the span of a and b, for each frequency."""
    b = b - a * (np.sum(a * b, axis=1) / np.maximum(np.sum(a * a, axis=1), np.finfo(float).tiny))[:, None]
    along = lambda c: (c @ y) ** 2 / np.maximum(np.sum(c * c, axis=1), np.finfo(float).tiny)
    return along(a) + along(b)
