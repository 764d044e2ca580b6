"""The automatic choice of engine: the exact one if it is no slower than the batch engine, compilation included.

On two cores the batch engine takes 3 to 4 seconds for some thousand observations, nearly all of it for compilation. The
exact engine takes less up to 4,000 values at points. Its time goes into the Cholesky factor, and into covariances between
the quadrature nodes of lines and areas, of which each may have hundreds.
"""

from typing import Any

import numpy as np

from hipgp.batch.decisions import Decision
from hipgp.engines import Method
from hipgp.exact import MATRICES_AT_PEAK, Exact
from hipgp.model.problem import FEW, OpenProblem
from hipgp.runtime import memory
from hipgp.vecchia.group_covariances import coarse_nodes
from hipgp.weights import dense

MOST_OBSERVATIONS = FEW
# Accuracies of covariances relative to noise variances, best first, and the most pairs of nodes whose covariances may be
# evaluated for each. An error of covariances is about the variance of what quadrature misses of a line or an area, which is
# to be small beside the noise even where many of them miss alike.
ACCURACIES = ((1e-4, 2e8), (1e-3, 2e8), (1e-2, 1.5e9))
LEAST_ACCURACY, MOST_ACCURACY = 1e-4, 1e-8  # limits relative to prior variances


def method_for(batch: Method, problem: OpenProblem, checkpoint: Any = None) -> Decision[Method]:
    """Choose the exact engine if it is as fast as the `batch` engine and fits into memory."""
    count = len(problem.data)
    if checkpoint is not None:
        return Decision(batch, "batch: a checkpoint is kept, and the exact engine writes none")
    if count > MOST_OBSERVATIONS:
        reason = f"batch: {count:,} observations, and the exact engine is slower beyond {MOST_OBSERVATIONS:,}"
        return Decision(batch, reason)
    needed = memory.dense_bytes(count, MATRICES_AT_PEAK)
    if not memory.fits(needed):
        reason = f"batch: the exact engine would need {memory.shown(needed)} for {count:,} observations"
        return Decision(batch, reason)
    accuracy, pairs, most = _affordable_accuracy(problem)
    if pairs > most:
        reason = (
            f"batch: the exact engine would need {pairs:.2g} covariances between quadrature nodes of "
            f"{count:,} observations, and is slower beyond {most:.2g}"
        )
        return Decision(batch, reason)
    reason = f"exact: {count:,} observations, for which no grid is needed and the exact engine is as fast"
    return Decision(Exact(accuracy), reason)


def _affordable_accuracy(problem: OpenProblem) -> tuple[float, float, float]:
    """The best of ACCURACIES relative to prior variances, the pairs of nodes that it takes, and the most that it may."""
    noise, most = _noise_to_prior(problem), [most for _, most in ACCURACIES]
    accuracies = [float(np.clip(share * noise, MOST_ACCURACY, LEAST_ACCURACY)) for share, _ in ACCURACIES]
    nodes, errors = np.transpose(dense.quadrature_sizes(problem.kernel, problem.data, accuracies))
    good = (nodes**2 <= most) & (errors <= accuracies)
    chosen = int(np.argmax(good)) if np.any(good) else -1
    return accuracies[chosen], float(nodes[chosen] ** 2), most[chosen]


def _noise_to_prior(problem: OpenProblem) -> float:
    """The least ratio of noise variance to prior variance among the blocks of lines and areas, of one for points."""
    kernel, data = problem.kernel, problem.data
    std, ratios, begin = np.asarray(data.noise_std(problem.noise), float), [1.0], 0
    for block in data.blocks:
        end = begin + len(block.y)
        if not block.functional.single:
            nodes = coarse_nodes(block.functional.take(dense.number_of_longest(block.functional)), kernel)
            prior = float(dense.compiled_prior_variances(kernel, nodes)[0])
            ratios.append(float(np.median(std[begin:end] ** 2) / prior))
        begin = end
    return float(np.min(ratios))
