"""How far the correlations of a kernel reach: its lengthscales, and the coordinates in which distances are its own."""

import numpy as np
from jaxtyping import Float

from hipgp.model.kernels import Kernel


def typical_lengthscale(kernel: Kernel, ndim: int) -> Float[np.ndarray, " D"]:
    """Return the geometric mean of the parts' lengthscales, per axis: the unit in which distances are compared.

    Of parts that repeat only where there are no others; infinite along an axis that no part varies along.
    """
    parts = [part for part in kernel.parts if not part.repeats] or kernel.parts
    return np.exp(np.mean(np.log([part.scales(ndim) for part in parts]), axis=0))


def shortest_lengthscale(kernel: Kernel, ndim: int) -> Float[np.ndarray, " D"]:
    """Return the shortest lengthscale among the kernel's parts, per axis."""
    return np.min([part.scales(ndim) for part in kernel.parts], axis=0)


def metric_coordinates(kernel: Kernel, x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N F"]:
    """Return places in coordinates whose distances say how loosely the kernel ties them.

    These are lengthscales and, for parts that repeat, places on the circle of a period: a whole period apart is near.
    """
    circles = [part.circle(x) for part in kernel.parts if part.repeats]  # type: ignore[attr-defined]
    if circles and len(circles) == len(kernel.parts):
        return np.concatenate(circles, axis=1)
    return np.concatenate([x / typical_lengthscale(kernel, x.shape[1]), *circles], axis=1)


def repeats(kernel: Kernel) -> bool:
    """Tell whether a part of the kernel repeats, so that places far apart may be tied as closely as near ones."""
    return any(part.repeats for part in kernel.parts)
