"""How far the correlations of a kernel reach: its lengthscales, and coordinates in units of them."""

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from hipgp.model.kernels import Kernel

OUT_OF_STEP = 1e-9  # of a period: what whole numbers of cells may miss it by
MOST_CELLS = 2**16
MANY_CELLS = 4  # in the shortest period, at least


def typical_lengthscale(kernel: "Kernel", ndim: int) -> Float[np.ndarray, " D"]:
    """Return the geometric mean of the parts' lengthscales, per axis: the unit in which distances are compared.

    Of parts that repeat only where there are no others; infinite along an axis that no part varies along.
    """
    parts = [part for part in kernel.parts if not part.repeats] or kernel.parts
    return np.exp(np.mean(np.log([part.scales(ndim) for part in parts]), axis=0))


def shortest_lengthscale(kernel: "Kernel", ndim: int) -> Float[np.ndarray, " D"]:
    """Return the shortest lengthscale among the kernel's parts, per axis."""
    return np.min([part.scales(ndim) for part in kernel.parts], axis=0)


def metric_coordinates(kernel: "Kernel", x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N F"]:
    """Return places in coordinates whose distances say how loosely the kernel ties them.

    These are lengthscales and, for parts that repeat, places on the circle of a period: a whole period apart is near.
    """
    circles = [part.circle(x) for part in kernel.parts if part.repeats]  # type: ignore[attr-defined]
    if circles and len(circles) == len(kernel.parts):
        return np.concatenate(circles, axis=1)
    return np.concatenate([x / typical_lengthscale(kernel, x.shape[1]), *circles], axis=1)


def repeats(kernel: "Kernel") -> bool:
    """Tell whether a part of the kernel repeats, so that places far apart may be tied as closely as near ones."""
    return any(part.repeats for part in kernel.parts)


def cells_of_periods(kernel: "Kernel", spacing: Float[np.ndarray, " D"]) -> tuple[int | None, ...]:
    """The number of grid cells along each axis after which every periodic part of the kernel has repeated.

    It is 1 where nothing repeats along the axis, and None where no number of cells makes whole periods.
    """
    cells: list[int | None] = [1] * len(spacing)
    repeating: list[Any] = [part for part in kernel.parts if part.repeats]
    for part in repeating:
        axis = part.along(len(spacing))
        ratio = float(spacing[axis]) / float(part.period)
        found = Fraction(ratio).limit_denominator(MOST_CELLS)
        count, whole = found.denominator, found.numerator
        fits = whole > 0 and abs(count * ratio - whole) < OUT_OF_STEP
        before = cells[axis]
        cells[axis] = math.lcm(before, count) if fits and before is not None else None
    return tuple(cells)


def spacing_in_step(kernel: "Kernel", spacing: Float[np.ndarray, " D"]) -> Float[np.ndarray, " D"]:
    """The largest spacing, at most the given one, that divides each period of the kernel."""
    out = np.array(spacing, float)
    repeating: list[Any] = [part for part in kernel.parts if part.repeats]
    for axis in range(len(out)):
        periods = [p.period for p in repeating if p.along(len(out)) == axis]
        if not periods:
            continue
        shortest = float(min(periods))
        least = max(MANY_CELLS, int(np.ceil(shortest / out[axis] - 1e-9)))
        tried = shortest / np.arange(least, 4 * least)
        whole = np.asarray(periods, float)[:, None] / tried
        fits = np.all(np.abs(whole - np.rint(whole)) < OUT_OF_STEP, axis=0)
        out[axis] = tried[np.argmax(fits)]  # the first, which the shortest alone fits, if none fits all
    return out
