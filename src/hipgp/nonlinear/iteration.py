"""Iterated posterior linearisation: each round makes a linear stand-in, solves it, and searches along the step.

With standard deviations held fixed, a round is a Newton step on F(m) = sum_n E log p(y_n | eta_n) - m'K^-1 m / 2, the part
of the variational bound that depends on the mean m. No K^-1 is needed: m = K W'alpha of some linear stand-in, so that the
scalar product of two means is <m_a, m_b> = m_a' K^-1 m_b = alpha_b . (W_b m_a). The size of a step is measured in nats:
half its squared length in the metric of q's precision.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hipgp.engines import FittedPosterior, Method
from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend
from hipgp.nonlinear.blocks import Block, SolvedBlock, StandIn, State
from hipgp.runtime.callers import warn_caller

if TYPE_CHECKING:
    from hipgp.nonlinear.nodes import NodeReader

STEPS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.125, 0.06, 0.03, 0.01)  # step lengths of the search
CALM = 1.0  # nats: below this size of a step the true curvature is used, and steps are not searched along
SETTLING = 10.0  # nats: below this size of a step new standard deviations are used
SOLVE = 0.02  # tolerance of each Gaussian solve, relative to that of the rounds
# Near the fixed point a full update changes what it found by -1 to 0 times the change before: larger standard deviations make
# for steeper slopes, and so for smaller ones in the next round. Two thirds of a step leave at most a third of an error.
SHARE, LEAST_STEP, LEAST_SHARE = 2 / 3, 1 / 3, 1 / 4
GROWING = 0.5  # ratio of the sizes of two steps from which on shares are halved; a third of a step leaves 0.44 of it at most


class Round(NamedTuple):
    """The record of one round."""

    nats: float  # size of the full step
    step: float  # step length taken
    bound: float  # F at the new mean
    iterations: int  # of the Gaussian solve
    fresh: bool  # whether the standard deviations were updated in the round before


class Result(NamedTuple):
    """The last Gaussian posterior, the states and stand-ins of the blocks, and the record of the rounds.

    `change` is the size in nats of a whole last step: of one after all of the change of standard deviations, where a round
    takes only a share of it.
    """

    post: FittedPosterior
    states: list[State]
    stand_ins: list[StandIn]
    rounds: list[Round]
    change: float
    converged: bool


class Settings(NamedTuple):
    method: Method
    tolerance: float
    most: int


class RoundsState(NamedTuple):
    """The state of the iteration between two rounds, which a checkpoint holds."""

    states: list[State]
    energy: float = 0.0
    rounds: tuple[Round, ...] = ()
    fresh: bool = False
    shrink: float = SHARE  # of small steps
    share: float = SHARE  # of new standard deviations, in a mixture with old ones


class RoundsProblem(NamedTuple):
    """The problem that is linearised, and the settings of its Gaussian solves."""

    blocks: list[Block]
    kernel: Kernel
    grid: Grid
    trend: Trend
    reader: "NodeReader | None"
    settings: Settings


def iterate(
    linearised: RoundsProblem,
    now: RoundsState,
    report: Callable[[int, float], None],
    keep: Callable[[RoundsState], None],
    constant: bool,
) -> Result:
    """Iterate until q would move by less than the tolerance, with standard deviations updated in the round before.

    A round takes a share of the change of standard deviations, and the step that follows shrinks with that share's square.

    `constant` tells that the first states are those of a constant field, whose energy m'K^-1 m is known to be zero. `keep`
    is called after each round but the last.
    """
    settings = linearised.settings
    while True:
        post, stand_ins, moved = _one_round(linearised, now, constant)
        last, number = moved.rounds[-1], len(moved.rounds)
        change = last.nats / moved.share**2
        report(number, change)
        converged = change < settings.tolerance and last.fresh
        if converged or number >= settings.most:
            return Result(post, moved.states, stand_ins, list(moved.rounds), change, converged)
        now = _refreshed(linearised, post, moved)
        keep(now)


def _one_round(
    linearised: RoundsProblem, now: RoundsState, constant: bool
) -> tuple[FittedPosterior, list[StandIn], RoundsState]:
    """A linear stand-in, its Gaussian solve, and a step."""
    blocks, settings = linearised.blocks, linearised.settings
    states, energy, rounds, fresh, shrink, _ = now
    late = bool(rounds) and rounds[-1].nats < CALM
    stand_ins = [b.stand_in(s, late) for b, s in zip(blocks, states, strict=True)]
    data = Data(tuple(s.observations for s in stand_ins))
    problem = Problem(linearised.kernel, linearised.grid, data, None, linearised.trend)
    post = settings.method.refit(problem, SOLVE * settings.tolerance)
    alphas, means = _multipliers(post, stand_ins)
    found = [SolvedBlock(post, m, a, linearised.reader) for m, a in zip(means, alphas, strict=True)]
    moves = [
        b.moved(state, stand_in, f)
        for b, state, stand_in, f in zip(blocks, states, stand_ins, found, strict=True)
    ]
    values = [value for _, value in moves]
    energies = _energies(energy, alphas, stand_ins, values)
    nats = _distance(energies, stand_ins, values)
    step = _Step(blocks, states, [mean for mean, _ in moves], energies)
    # without rounds before, the energy of these states under this kernel is not known; that of the engine's mean is
    length = step.best_length(nats, shrink) if rounds or constant else 1.0
    iterations = int(post.diagnostics.get("iterations", 0))
    done = Round(nats, length, step.bound_at(length), iterations, fresh)
    states, energy = step.states_at(length), step.energy_at(length)
    return post, stand_ins, now._replace(states=states, energy=energy, rounds=(*rounds, done))


def _refreshed(linearised: RoundsProblem, post: FittedPosterior, moved: RoundsState) -> RoundsState:
    """The state for the next round; standard deviations are updated if steps are small, and every fourth round."""
    rounds, share = list(moved.rounds), moved.share
    last = rounds[-1]
    shrink = _shrunk(moved.shrink, rounds)
    fresh = last.nats * last.step**2 < SETTLING or len(rounds) % 4 == 0
    states = moved.states
    if fresh:
        share = _share(share, rounds)
        new = [
            b.refreshed(s, post, linearised.reader) for b, s in zip(linearised.blocks, states, strict=True)
        ]
        states = [_mixed_spreads(s, r, share) for s, r in zip(states, new, strict=True)]
    return moved._replace(states=states, fresh=fresh, shrink=shrink, share=share)


def _multipliers(
    post: FittedPosterior, stand_ins: list[StandIn]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """alpha = A^-1 (y - X beta) of each block, and the posterior means of its functionals, residuals included."""
    left = post.residuals()
    assert left is not None
    alpha = left[0] / left[1] ** 2
    cuts = np.cumsum([len(s.present) for s in stand_ins])[:-1]
    alphas = np.split(alpha, cuts)
    means = [s.y - s.noise**2 * a for s, a in zip(stand_ins, alphas, strict=True)]
    return alphas, means


def _energies(
    energy: float, alphas: list[np.ndarray], stand_ins: list[StandIn], values: list[np.ndarray]
) -> tuple[float, float, float]:
    """<m_a, m_a>, <m_a, m_b> and <m_b, m_b> of the current mean a and the engine's mean b."""
    across = sum(float(a @ s.present) for a, s in zip(alphas, stand_ins, strict=True))
    after = sum(float(a @ v) for a, v in zip(alphas, values, strict=True))
    return energy, across, after


def _distance(
    energies: tuple[float, float, float], stand_ins: list[StandIn], values: list[np.ndarray]
) -> float:
    """The KL divergence in nats of two normal distributions with these means and the covariance of the new one."""
    aa, ab, bb = energies
    squares = sum(
        float(np.sum(((v - s.present) / s.noise) ** 2)) for s, v in zip(stand_ins, values, strict=True)
    )
    return 0.5 * (max(aa - 2 * ab + bb, 0.0) + squares)


class _Step(NamedTuple):
    """The step of a round, from the present means to those of the engine; a length of 1 is the whole step."""

    blocks: list[Block]
    states: list[State]
    means: list[np.ndarray]
    energies: tuple[float, float, float]  # of both means, see `_energies`

    def states_at(self, length: float) -> list[State]:
        """The states after a step of this length."""
        pairs = zip(self.states, self.means, strict=True)
        return [state._replace(mean=state.mean + length * (mean - state.mean)) for state, mean in pairs]

    def energy_at(self, length: float) -> float:
        """m'K^-1 m after a step of this length."""
        aa, ab, bb = self.energies
        return (1 - length) ** 2 * aa + 2 * length * (1 - length) * ab + length**2 * bb

    def bound_at(self, length: float) -> float:
        """F after a step of this length."""
        pairs = zip(self.blocks, self.states_at(length), strict=True)
        return sum(block.expected(state) for block, state in pairs) - 0.5 * self.energy_at(length)

    def best_length(self, nats: float, shrink: float) -> float:
        """The length with the highest bound; lengths are tried in decreasing order until the bound falls.

        Small steps, which are not searched along since the bound is not known so well, have the length `shrink`.
        """
        if nats < CALM:
            return shrink
        highest, best = -np.inf, 0.0
        before = self.bound_at(0.0)
        for length in STEPS:
            here = self.bound_at(length)
            if here > highest:
                highest, best = here, length
            elif highest > before:
                break
        if highest > before or not np.isfinite(before):
            return best
        # no length raises the bound, which is not known well enough to search along a short step
        return shrink if nats < SETTLING else STEPS[-1]


def _share(share: float, rounds: list[Round]) -> float:
    """The weight of new standard deviations, halved if the steps after an update do not shrink."""
    return max(_halved(share, [number for number, r in enumerate(rounds) if r.fresh], rounds), LEAST_SHARE)


def _shrunk(shrink: float, rounds: list[Round]) -> float:
    """The length of small steps, halved if they do not shrink."""
    return max(
        _halved(shrink, [number for number, late in enumerate(_late(rounds)) if late], rounds), LEAST_STEP
    )


def _halved(share: float, compared: list[int], rounds: list[Round]) -> float:
    """The share, halved if the last round is one of those compared, and its step not shorter than that of the one before.

    The change to the true curvature is a step of its own, so that rounds on either side of it are not compared.
    """
    if len(compared) < 2 or compared[-1] + 1 < len(rounds):
        return share
    before, last = compared[-2:]
    late = _late(rounds)
    grown = rounds[last].nats > GROWING * rounds[before].nats and late[last] == late[before]
    return 0.5 * share if grown else share


def _late(rounds: list[Round]) -> list[bool]:
    """Whether each round used the true curvature: the step before it was small."""
    return [False, *(before.nats < CALM for before in rounds[:-1])]


def _mixed_spreads(old: State, new: State, share: float) -> State:
    """Mix old and new standard deviations on a logarithmic scale; zero ones are replaced by the new ones."""
    between = lambda a, b: np.where(a > 0, np.where(a > 0, a, 1.0) ** (1 - share) * b**share, b)
    place = (1 - share) * old.place + share * new.place
    return State(new.mean, between(old.std, new.std), between(old.spread, new.spread), place)


def warn_if_unsettled(result: Result, settings: Settings) -> None:
    """Warn if the rounds ended before they converged."""
    if not result.converged:
        warn_caller(
            f"the posterior still moved by {result.change:.3g} nats in round {len(result.rounds)}, the last one allowed "
            f"(tolerance {settings.tolerance:g}): give more rounds with Linearised(max_rounds=...), or look at the data and "
            "the kernel; the answer is of the last round",
        )
