"""Which engine: the exact one as long as it takes no longer than the batch engine takes to compile and to solve.

On two cores, compilation included, the batch engine takes 3 to 4 seconds of computing for some thousand observations,
nearly all of it for compiling. The exact one takes less up to 4,000 values at points. Its time goes into the Cholesky
factor, and into covariances between the quadrature nodes of lines and areas, of which there may be hundreds for each.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np

from hipgp.batch.engine import Batch
from hipgp.engines import Method
from hipgp.exact import MATRICES_AT_PEAK, Exact
from hipgp.model.data import Data
from hipgp.model.kernels import Kernel
from hipgp.runtime import memory
from hipgp.runtime.precision import float64_available
from hipgp.vecchia.group_covariances import coarse_nodes
from hipgp.weights import dense

MOST_OBSERVATIONS = 4_000
MOST_PAIRS = 1.5e9  # of nodes whose covariances are evaluated
OF_NOISE, LEAST_ACCURACY, MOST_ACCURACY = (
    0.01,
    1e-4,
    1e-6,
)  # of covariances, in noise variances and prior ones


class ChosenMethod(NamedTuple):
    """An engine, and why."""

    method: Method
    said: str


def method_for(kernel: Kernel, data: Data, noise: float | None, checkpoint: Any = None) -> ChosenMethod:
    """The exact engine where it is as fast as the batch engine and fits into memory."""
    count = len(data)
    if checkpoint is not None:
        return ChosenMethod(Batch(), "batch: a checkpoint is kept, which the exact engine has none of")
    if count > MOST_OBSERVATIONS:
        said = f"batch: {count:,} observations, and the exact engine is the slower one beyond {MOST_OBSERVATIONS:,}"
        return ChosenMethod(Batch(), said)
    needed = MATRICES_AT_PEAK * 8.0 * count**2
    if not memory.fits(needed):
        said = f"batch: the exact engine would need {memory.shown(needed)} for {count:,} observations"
        return ChosenMethod(Batch(), said)
    accuracy = _accuracy(kernel, data, noise)
    pairs = _nodes(kernel, data, accuracy) ** 2
    if pairs > MOST_PAIRS:
        said = (
            f"batch: the exact engine would need {pairs:.2g} covariances between quadrature nodes of "
            f"{count:,} observations, and is the slower one beyond {MOST_PAIRS:.2g}"
        )
        return ChosenMethod(Batch(), said)
    said = f"exact: {count:,} observations, for which no grid is needed and the exact engine is as fast"
    return ChosenMethod(Exact(accuracy), said)


def _accuracy(kernel: Kernel, data: Data, noise: float | None) -> float:
    """Of covariances, relative to prior variances: some hundredth of the noise's, if that can be reached."""
    std, shares, begin = np.asarray(data.noise_std(noise), float), [LEAST_ACCURACY], 0
    for block in data.blocks:
        end = begin + len(block.y)
        if not block.functional.single:
            nodes = coarse_nodes(block.functional.take(_longest(block.functional)), kernel)
            prior = float(dense.compiled_prior_variances(kernel, nodes)[0])
            shares.append(float(OF_NOISE * np.median(std[begin:end] ** 2) / prior))
        begin = end
    return float(np.clip(np.min(shares), MOST_ACCURACY, LEAST_ACCURACY))


@float64_available
def _nodes(kernel: Kernel, data: Data, accuracy: float) -> float:
    """How many quadrature nodes the exact engine would take, about: those of every block for its longest functional."""
    total = 0.0
    for block in data.blocks:
        if block.functional.single:
            total += len(block.y)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the engine itself will say what quadrature cannot do
            functional, spacing, _ = dense.refine_quadrature(kernel, block.functional, accuracy)
        total += len(block.y) * functional.nodes_each(_longest(functional), spacing)
    return total


def _longest(functional: Any) -> np.ndarray:
    places = np.asarray(functional.places(), float)
    return np.argmax(np.linalg.norm(np.ptp(places, axis=1), axis=1), keepdims=True)
