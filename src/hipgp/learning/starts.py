"""Where the search for kernel and noise begins: lengthscales from a few cells to the extent, variances from the data."""

import itertools
from typing import Any

import equinox as eqx
import numpy as np

from hipgp.learning.parameters import Layout
from hipgp.learning.periods import rungs as repeating_rungs
from hipgp.model.data import Data
from hipgp.model.kernels import Kernel
from hipgp.model.periodic import Periodic

LADDER = 8  # lengthscales tried


def neutral(kernel: Kernel, extent: np.ndarray) -> Kernel:
    """The kernel with lengthscales of a tenth of the extent, which define neighbours before anything is learned."""
    whole = lambda part: part.period if isinstance(part, Periodic) else np.max(extent)
    tenth = lambda part: 0.1 * extent if np.ndim(part.lengthscale) else np.asarray(0.1 * whole(part))
    parts = [eqx.tree_at(lambda p: p.lengthscale, part, tenth(part)) for part in kernel.parts]
    return rebuilt(kernel, iter(parts))


def std_about_trend(data: Data, columns: np.ndarray) -> float:
    """The standard deviation of the data about the trend."""
    y = np.asarray(data.y, float)
    design = np.concatenate([columns, np.ones((len(y), 1 if columns.shape[1] == 0 else 0))], axis=1)
    rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return float(np.std(rest)) or 1.0


def field_std(data: Data, data_std: float) -> float:
    """The field's standard deviation from that of the data: the integral along a ray of length L has about L times it."""
    sizes = [np.mean(np.abs(np.sum(b.functional.nodes(1e9).weights, axis=1))) for b in data.blocks]
    return data_std / float(np.median(sizes))


def starting_values(
    layout: Layout,
    spacing: np.ndarray,
    extent: np.ndarray,
    periods: list[list[float]],
    field_scale: float,
    data_std: float,
    seed: int,
) -> list[np.ndarray]:
    """Starting values: lengthscales from a few cells to the extent in every combination, variances from the data."""
    parts = layout.template.parts
    ladder = np.geomspace(2 * float(np.exp(np.mean(np.log(spacing)))), 0.5 * float(np.max(extent)), LADDER)
    per_axis = np.geomspace(
        2 * spacing, 0.5 * extent, LADDER
    )  # relative to each axis, which may have another unit
    rungs = list(zip(ladder, per_axis, strict=True))
    if any(
        np.ndim(part.lengthscale) for part in parts
    ):  # and equal on all axes: the field of a thin box may be isotropic
        rungs += [(one, np.full(len(spacing), one)) for one in ladder]
    every = [
        repeating_rungs(tried) if isinstance(part, Periodic) else rungs
        for part, tried in zip(parts, periods, strict=True)
    ]
    # Combinations that differ by exchanging parts of one kind, which do not repeat, are tried once.
    kinds = [(type(p).__name__, np.ndim(p.lengthscale), i * p.repeats) for i, p in enumerate(parts)]
    numbers = itertools.product(*(range(len(of_part)) for of_part in every))
    kept = {tuple(sorted(zip(kinds, mixture, strict=True))): mixture for mixture in numbers}
    mixtures = [[of_part[i] for of_part, i in zip(every, mixture, strict=True)] for mixture in kept.values()]
    if len(mixtures) > LADDER**2:
        mixtures = [mixtures[i] for i in np.random.default_rng(seed).permutation(len(mixtures))[: LADDER**2]]
    out = []
    for lengths, factor in itertools.product(mixtures, (0.1, 1.0, 10.0) if len(parts) == 1 else (1.0,)):
        variance = factor * field_scale**2 / len(parts)
        sized = [_sized(part, variance, *length) for part, length in zip(parts, lengths, strict=True)]
        out.append(layout.pack(rebuilt(layout.template, iter(sized)), 0.3 * data_std))
    return out


def _sized(part: Any, variance: float, one: float, other: Any) -> Any:
    """The part with a variance and a lengthscale: `one`, or `other`, which has one per axis or is a period."""
    length = other if np.ndim(part.lengthscale) else np.asarray(one)
    part = eqx.tree_at(lambda p: (p.variance, p.lengthscale), part, (np.asarray(variance), length))
    return eqx.tree_at(lambda p: p.period, part, np.asarray(other)) if isinstance(part, Periodic) else part


def rebuilt(kernel: Kernel, parts: Any) -> Kernel:
    """The composite with its elementary kernels replaced, in order."""
    if hasattr(kernel, "left"):
        left = rebuilt(kernel.left, parts)  # type: ignore[attr-defined]
        return type(kernel)(left, rebuilt(kernel.right, parts))  # type: ignore[attr-defined,call-arg]
    return next(parts)
