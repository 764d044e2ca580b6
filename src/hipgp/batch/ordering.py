"""An order of the observations in which neighbours in memory are neighbours in space.

Products with W gather grid values for each observation. In the order of a space-filling curve (Morton's) most of these are
in the cache.

>>> import numpy as np
>>> _along_curve(np.array([[0.0, 0.0], [9.0, 9.0], [1.0, 0.0], [9.0, 8.0]])).tolist()
[0, 2, 3, 1]
"""

import numpy as np
from jaxtyping import Float, Int

from hipgp.model.data import Data, Observations

BITS = 21  # bits of a place on the curve, over all axes


def _along_curve(places: Float[np.ndarray, "N D"]) -> Int[np.ndarray, " N"]:
    """The order of places along Morton's curve, by the interleaved bits of their coordinates."""
    n, ndim = places.shape
    bits = BITS // ndim
    axes = [np.ascontiguousarray(axis) for axis in places.T]
    lower = [np.min(axis, initial=np.inf) for axis in axes]
    width = max(np.max(axis, initial=-np.inf) - low for axis, low in zip(axes, lower, strict=True))
    if not width > 0:
        return np.arange(n)
    spread = np.zeros(1, np.uint32)  # every number below 2^bits, with gaps for the other axes' bits
    for bit in range(bits):
        spread = np.concatenate([spread, spread | np.uint32(1 << (bit * ndim))])
    code = np.zeros(n, np.uint32)
    for number, (axis, low) in enumerate(zip(axes, lower, strict=True)):
        cell = np.minimum((axis - low) * (2**bits / width), 2**bits - 1).astype(np.int32)
        code |= spread[cell] << np.uint32(ndim - 1 - number)
    return by_number(code)


def by_number(numbers: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """The stable order of numbers below 2^32, in two passes of 16 bits, which NumPy sorts in a third of the time."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    return order[np.argsort((numbers >> 16).astype(np.uint16)[order], kind="stable")]


def in_order(data: Data) -> tuple[Data, Int[np.ndarray, " N"]]:
    """The observations, in each block sorted along a curve, and the number that each had before."""

    def order_of(block: Observations) -> Int[np.ndarray, " n"]:
        places = np.asarray(block.functional.places(), float)
        return _along_curve(places[:, 0] if places.shape[1] == 1 else places.mean(axis=1))

    return data.reordered(order_of)
