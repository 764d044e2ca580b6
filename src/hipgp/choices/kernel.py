"""The automatic choice of kernel: the one of highest log evidence, less a penalty for each of its parameters.

Kernels of three roughnesses are learned with one lengthscale, and in several dimensions with one for each axis; then the
sums of two, of the kind that did better. For many observations the evidence is that of some thousand of them, each given
its nearest neighbours among all.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hipgp.learning.learned import Learned, LearnOptions
from hipgp.model.data import Data
from hipgp.model.kernel_words import kernel_name
from hipgp.model.kernels import Kernel
from hipgp.model.undecided import single_kernels, sums_of_two
from hipgp.runtime.progress import Progress

COMPARED = 4_096  # observations whose evidence is compared, at most
BOUNDED = "variance", "lengthscale", "noise"  # parameters that every kernel has


class Judge(NamedTuple):
    """Functions that learn a kernel from `count` observations and compute the likelihoods of learned kernels on these."""

    learn: Callable[[Kernel, LearnOptions], Learned]
    log_likelihoods: Callable[[list[Learned]], Float[np.ndarray, " K"]]
    count: int

    def criterion(self, found: list[Learned]) -> Float[np.ndarray, " K"]:
        """The penalised log evidence of each."""
        parameters = np.array([len(one.names) for one in found])
        return penalised(self.log_likelihoods(found), parameters, self.count)


class ChosenKernel(NamedTuple):
    """The learned kernel, and by how much it is ahead of the others."""

    learned: Learned
    reason: str


def penalised(
    log_evidence: Float[np.ndarray, " K"], parameters: Float[np.ndarray, " K"], count: int
) -> Float[np.ndarray, " K"]:
    """The Bayesian information criterion in nats: half the logarithm of the number of observations off for each parameter."""
    return np.asarray(log_evidence) - 0.5 * np.asarray(parameters) * np.log(count)


def choose_kernel(judge: Judge, data: Data, how: LearnOptions) -> ChosenKernel:
    """Learn the candidates, and return the best."""
    _check_options(how)
    quick = how._replace(polish=False, progress=False, checkpoint=None, most=COMPARED)
    with Progress("choosing a kernel", how.progress) as bar:
        found: list[Learned] = []
        for kernel in _candidates(data, judge, found):
            bar.update(f"{kernel_name(kernel)}, number {len(found) + 1}")
            found.append(judge.learn(kernel, quick))
        criterion = judge.criterion(found)
    best, second = np.argsort(-criterion, kind="stable")[:2]
    names = [kernel_name(one.kernel) for one in found]
    reason = (
        f"{names[best]}: {criterion[best] - criterion[second]:.1f} nats of log evidence, penalised for parameters, ahead of "
        f"{names[second]}; {len(found)} kernels compared on {judge.count:,} of {len(data):,} observations"
    )
    return ChosenKernel(found[best], reason)


def _candidates(data: Data, judge: Judge, found: list[Learned]) -> Iterator[Kernel]:
    """The kernels in turn; those that were `found` so far say which sums are worth a try."""
    derivatives = int(data.derivative)
    for per_axis in (False, True) if data.ndim > 1 else (False,):
        yield from single_kernels(data.ndim, derivatives, per_axis)
    best = found[int(np.argmax(judge.criterion(found)))].kernel
    yield from sums_of_two(data.ndim, derivatives, bool(np.ndim(best.parts[0].lengthscale)))


def _check_options(how: LearnOptions) -> None:
    if how.start != "data":
        raise ValueError(
            f'start: expected "data" with GP("auto"), which has no values to start from, got {how.start!r}'
        )
    if unknown := set(how.bounds or {}) - set(BOUNDED):
        raise ValueError(
            f'bounds: expected names among {", ".join(BOUNDED)} with GP("auto"), which tries several kernels, got '
            f"{sorted(unknown)}"
        )
