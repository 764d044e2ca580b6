"""Observations in an order in which neighbours in memory are neighbours in space.

Products with W gather what each observation sees of the field; one after the other along a curve that fills space
(Morton's), they find most of it in the cache.

>>> import numpy as np
>>> along_curve(np.array([[0.0, 0.0], [9.0, 9.0], [1.0, 0.0], [9.0, 8.0]])).tolist()
[0, 2, 3, 1]
"""

import numpy as np
from jaxtyping import Float, Int

from hipgp.data import Data, Observations

BITS = 21  # of a place on the curve, over all axes


def along_curve(places: Float[np.ndarray, "N D"]) -> Int[np.ndarray, " N"]:
    """The order of places along Morton's curve: by the bits of their coordinates, all axes taken in turn."""
    n, ndim = places.shape
    bits = BITS // ndim
    lower = places.min(axis=0, initial=np.inf)
    width = np.max(places.max(axis=0, initial=-np.inf) - lower, initial=0.0)
    cell = np.zeros((n, ndim), np.int64)
    if width > 0:
        cell = np.minimum((places - lower) * (2**bits / width), 2**bits - 1).astype(np.int64)
    code = np.zeros(n, np.int64)
    for bit in range(bits):
        for axis in range(ndim):
            code |= (cell[:, axis] >> bit & 1) << (bit * ndim + ndim - 1 - axis)
    return np.argsort(code, kind="stable")


def in_order(data: Data) -> tuple[Data, Int[np.ndarray, " N"]]:
    """The same observations, those of each block along a curve, and which of the given ones each is."""
    blocks, orders, begin = [], [], 0
    for block in data.blocks:
        order = along_curve(np.asarray(block.functional.places(), float).mean(axis=1))
        taken = block.functional[order]
        if type(taken) is type(block.functional):  # a user's own kind may not know how to reorder itself
            noise = None if block.noise is None else block.noise[order]
            block = Observations(taken, block.y[order], noise)
        else:
            order = np.arange(len(order))
        blocks.append(block)
        orders.append(order + begin)
        begin += len(order)
    return Data(tuple(blocks)), np.concatenate(orders)
