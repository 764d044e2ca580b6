"""Leave-one-out and leave-group-out predictions with links and likelihoods, from the stand-ins of the fit.

The Gaussian engine predicts the functional of a stand-in from all other stand-ins, which shifts the mean of zeta by as much;
the likelihood adds the scatter of y. The other stand-ins are not made again without the observation that is left out, since
it has little influence on them.
"""

import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float, Int

from hipgp.nonlinear.blocks import Block, Nodal, StandIn, State
from hipgp.nonlinear.observed import Observed
from hipgp.predictions import Prediction
from hipgp.scores import LeaveOut

LEAST = 1e-12  # of a probability, so that it has a normal score


class _LeaveOutObserved(LeaveOut):
    """Leave-out predictions that are not normal, with scores of their predictive distributions."""

    parts: list[tuple[Int[np.ndarray, " n"], Observed]]

    @property
    def pull(self) -> Float[np.ndarray, " N"]:
        """Normal scores of the probability integral transform: standard normal where the model is right."""
        return scipy.special.ndtri(np.clip(self.pit(), LEAST, 1 - LEAST))

    def pit(self) -> Float[np.ndarray, " N"]:
        """The probability integral transform of each observation; of counts a draw between those of two counts."""
        return self._each(lambda found, y: found.pit(y))

    def log_density(self) -> Float[np.ndarray, " N"]:
        """The logarithm of the predictive density, of counts the probability, of each observation; larger is better."""
        return self._each(lambda found, y: found.log_density(y))

    def crps(self) -> Float[np.ndarray, " N"]:
        """The continuous ranked probability score of each observation, in units of y; smaller is better."""
        return self._each(lambda found, y: found.crps(y))

    def coverage(self, level: float = 0.95) -> float:
        """The share of observations within their central prediction interval of probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level: expected a probability between 0 and 1, got {level!r}")

        def inside(found: Observed, y: np.ndarray) -> np.ndarray:
            lower, upper = found.interval(level)
            return (y >= lower) & (y <= upper)

        return float(np.mean(self._each(inside)))

    def _each(self, of: object) -> Float[np.ndarray, " N"]:
        out = np.empty(len(self.observed))
        for rows, found in self.parts:
            out[rows] = of(found, self.observed[rows])  # type: ignore[operator]
        return out


def left_out(
    found: LeaveOut, blocks: list[Block], states: list[State], stand_ins: list[StandIn], order: np.ndarray
) -> LeaveOut:
    """Predictions of the observations, in the user's order, from those of the stand-ins by the Gaussian engine."""
    count = len(order)
    observed, mean, std = np.empty(count), np.empty(count), np.empty(count)
    parts, begin = [], 0
    for block, state, stand_in in zip(blocks, states, stand_ins, strict=True):
        here = slice(begin, begin + len(block.y))
        rows, begin = order[here], here.stop
        variance = found.std[here] ** 2 - stand_in.noise**2
        spread = np.sqrt(np.maximum(variance, state.spread**2))  # the others know no more than all do
        zeta = block.zeta(state)[0] + found.mean[here] - _value(block, state, stand_in)
        of_field = Prediction(zeta, spread)
        transform = {"link": block.outer, "scale": block.scale, "zeta_mean": zeta, "zeta_std": spread}
        vars(of_field).update(transform)
        one = Observed.of(of_field, block.likelihood, block.noise)
        observed[rows], mean[rows], std[rows] = block.y, one.mean, one.std
        parts.append((rows, one))
    groups = np.empty(count, int)
    groups[order] = found.groups
    made = _LeaveOutObserved(observed, mean, std, groups, found.std_error)
    made.parts = parts
    return made


def _value(block: Block, state: State, stand_in: StandIn) -> np.ndarray:
    """The value of the stand-in's functional at the present mean."""
    if isinstance(block, Nodal):
        return np.sum(stand_in.functional.weights * state.mean, axis=1)  # type: ignore[attr-defined]
    return state.mean
