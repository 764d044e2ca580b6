"""The automatic choice of engine: the exact one if it is no slower than the batch engine, compilation included.

On two cores the batch engine takes 3 to 4 seconds for some thousand observations, nearly all of it for compilation. The
exact engine takes less up to 4,000 values at points. Its time goes into the Cholesky factor, and into covariances between
the quadrature nodes of lines and areas, of which each may have hundreds.
"""

from typing import Any

import numpy as np

from hipgp.batch.decisions import Decision
from hipgp.engines import Method
from hipgp.exact import MATRICES_AT_PEAK, Exact, longest, quadrature_nodes
from hipgp.model.problem import OpenProblem
from hipgp.runtime import memory
from hipgp.vecchia.group_covariances import coarse_nodes
from hipgp.weights import dense

MOST_OBSERVATIONS = 4_000
MOST_PAIRS = 1.5e9  # pairs of nodes whose covariances are evaluated
OF_NOISE, LEAST_ACCURACY, MOST_ACCURACY = (
    0.01,
    1e-4,
    1e-6,
)  # accuracy of covariances: relative to noise variances, and limits relative to prior variances


def method_for(batch: Method, problem: OpenProblem, checkpoint: Any = None) -> Decision[Method]:
    """Choose the exact engine if it is as fast as the `batch` engine and fits into memory."""
    kernel, data, count = problem.kernel, problem.data, len(problem.data)
    if checkpoint is not None:
        return Decision(batch, "batch: a checkpoint is kept, and the exact engine writes none")
    if count > MOST_OBSERVATIONS:
        reason = f"batch: {count:,} observations, and the exact engine is slower beyond {MOST_OBSERVATIONS:,}"
        return Decision(batch, reason)
    needed = memory.dense_bytes(count, MATRICES_AT_PEAK)
    if not memory.fits(needed):
        reason = f"batch: the exact engine would need {memory.shown(needed)} for {count:,} observations"
        return Decision(batch, reason)
    accuracy = _accuracy(problem)
    pairs = quadrature_nodes(kernel, data, accuracy) ** 2
    if pairs > MOST_PAIRS:
        reason = (
            f"batch: the exact engine would need {pairs:.2g} covariances between quadrature nodes of "
            f"{count:,} observations, and is slower beyond {MOST_PAIRS:.2g}"
        )
        return Decision(batch, reason)
    reason = f"exact: {count:,} observations, for which no grid is needed and the exact engine is as fast"
    return Decision(Exact(accuracy), reason)


def _accuracy(problem: OpenProblem) -> float:
    """The accuracy of covariances relative to prior variances: a hundredth of the noise variance, within limits."""
    kernel, data = problem.kernel, problem.data
    std, shares, begin = np.asarray(data.noise_std(problem.noise), float), [LEAST_ACCURACY], 0
    for block in data.blocks:
        end = begin + len(block.y)
        if not block.functional.single:
            nodes = coarse_nodes(block.functional.take(longest(block.functional)), kernel)
            prior = float(dense.compiled_prior_variances(kernel, nodes)[0])
            shares.append(float(OF_NOISE * np.median(std[begin:end] ** 2) / prior))
        begin = end
    return float(np.clip(np.min(shares), MOST_ACCURACY, LEAST_ACCURACY))
