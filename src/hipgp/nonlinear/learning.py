"""Learning with links and likelihoods, in alternation with the linearisation.

The kernel is learned on the linear stand-in as on any Gaussian data. The likelihood's parameters, and the scale of additive
noise if it is unknown, maximise the expected log-likelihood under q. Both change the linearisation, so the two steps
alternate until no parameter changes by more than a few percent.
"""

import dataclasses
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used

from hipgp.learning.learned import Learned, LearnOptions, in_unit, scaled_task
from hipgp.learning.parameters import Layout
from hipgp.learning.search import learn
from hipgp.model.data import Data, Observations
from hipgp.model.functionals import Functionals
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.likelihoods import Gaussian
from hipgp.model.problem import Problem
from hipgp.nonlinear.blocks import Block, Nodal, StandIn, State
from hipgp.nonlinear.expectations import likelihood_terms
from hipgp.nonlinear.resuming import RoundsCheckpoint, packed, unpacked
from hipgp.runtime.checkpoints import fingerprint
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Progress

if TYPE_CHECKING:
    from hipgp.nonlinear.engine import Linearised
    from hipgp.nonlinear.preparing import Prepared

TURNS = 10
ROUNDS, NATS = 12, 0.5  # of the linearisation in one turn: it is not the last
CHANGE = 0.02  # of a parameter's logarithm, under which learning is done
OF_ERROR = 0.3  # of its standard error, under which a change does not matter
FARTHEST = 1.0  # of a kernel parameter's logarithm in one turn with a link, whose linearisation holds nearby
AT_ONCE = 4  # turns with a link after which the kernel is the mean of what further ones find
RANGE = 8.0  # of a parameter's logarithm about its start
NEEDED = ("number", "kernel", "noise", "parameters")  # of a checkpoint
NOISE_SHARE = 0.3  # of the spread of y, that an unknown noise starts from


class KnownField:
    """The states of the blocks at the end of learning, from which conditioning on the same data starts."""

    def __init__(self, method: "Linearised", problem: Problem, states: list[State]):
        self.of, self.states = _of_data(method, problem), states

    def known(self, method: "Linearised", problem: Problem) -> list[State] | None:
        """The states to start from; None for other data."""
        return self.states if _of_data(method, problem) == self.of else None


def _of_data(method: "Linearised", problem: Problem) -> str:
    return fingerprint(method.link, problem.grid, problem.data, problem.trend)


class LearnedModel(NamedTuple):
    """The learned kernel and noise, the likelihoods' parameters by name, and the states that conditioning starts from."""

    learned: Learned
    parameters: dict[str, float]
    known_field: KnownField | None


class Turn(NamedTuple):
    """The state of learning after a turn: kernel, noise, parameters of likelihoods, and states of the blocks."""

    number: int
    kernel: Kernel
    noise: float | None
    parameters: dict[str, float]
    states: list[State] | None
    start: Literal["data", "kernel"]

    def logs(self) -> np.ndarray:
        """The logarithms of all parameters."""
        of_kernel = np.asarray(Layout.of(self.kernel, False).pack(self.kernel, None))
        others = [self.noise or 1.0, *self.parameters.values()]
        return np.concatenate([of_kernel.ravel(), np.log(np.asarray(others, float))])


@float64_available
def learn_linearised(method: "Linearised", problem: Problem, how: LearnOptions) -> LearnedModel:
    """The learned kernel and noise, and the likelihoods' parameters by name."""
    began = time.perf_counter()
    free_noise = any(_takes_noise(block) and block.noise is None for block in problem.data.blocks)
    turn = _first(method, problem, how, free_noise)
    digest = fingerprint(method, problem, how._replace(checkpoint=None, progress=False))
    kept = None if how.checkpoint is None else RoundsCheckpoint(how.checkpoint, digest)
    if kept is not None:
        turn = _resumed(kept, method, problem, turn)
    with Progress("learning", how.progress) as bar:
        while True:
            before = turn.logs()
            turn, learned = _turned(turn, method, problem, how, free_noise, bar)
            enough = np.full(len(before), CHANGE)
            enough[: len(learned.values)] = np.maximum(CHANGE, OF_ERROR * learned.log_std)
            enough *= _share(turn.number)
            settled = turn.number > 1 and np.all(np.abs(turn.logs() - before) < enough)
            if settled or turn.number == TURNS:
                break
            if kept is not None:
                _keep(kept, turn)
    learned = learned._replace(noise=turn.noise, seconds=time.perf_counter() - began)
    assert turn.states is not None
    return LearnedModel(learned, turn.parameters, KnownField(method, problem, turn.states))


def _first(method: "Linearised", problem: Problem, how: LearnOptions, free_noise: bool) -> Turn:
    """The state in which learning begins."""
    kernel, grid, data, noise, _ = problem
    parameters = dict(method.parameters)
    for block in data.blocks:
        if block.likelihood is not None:
            for name in block.likelihood.unknown():
                full = f"{type(block.likelihood).__name__}.{name}"
                parameters.setdefault(full, block.likelihood.learnable[name])
    if free_noise and noise is None:
        noise = NOISE_SHARE * float(np.std(data.y)) or 1.0
    start: Literal["data", "kernel"] = "data" if how.start == "data" else "kernel"
    if (
        start == "data" and not method.link.identity
    ):  # from a constant field there would be no variance to learn
        kernel, start = _wavy(kernel, grid), "kernel"
    return Turn(0, kernel, noise, parameters, None, start)


def _turned(
    turn: Turn, method: "Linearised", problem: Problem, how: LearnOptions, free_noise: bool, bar: Progress
) -> tuple[Turn, Learned]:
    """One turn: linearise with the present kernel, then fit the likelihoods' parameters, then learn the kernel."""
    kernel, noise, parameters = turn.kernel, turn.noise, turn.parameters
    current = dataclasses.replace(method, parameters=parameters, tolerance=NATS, max_rounds=ROUNDS)
    present = problem._replace(kernel=kernel, noise=noise)
    result, prepared = current.rounds(present, bar, turn.states)
    data, states = problem.data, result.states
    noise, parameters = _fitted(data, prepared, states, noise if free_noise else None, noise, parameters)
    bar.update(f"turn {turn.number + 1}, kernel")
    parts = zip(prepared.data.blocks, prepared.blocks, result.stand_ins, strict=True)
    stand_in = Data(tuple(_to_learn_from(*part, noise if free_noise else None) for part in parts))
    together = not np.all(stand_in.noise_known)
    quick = how._replace(start=turn.start, polish=False, progress=False, checkpoint=None)
    on = Problem(kernel, problem.grid, stand_in, noise if together else None, prepared.trend)
    task = scaled_task(on, quick)
    learned = in_unit(learn(task.problem, method.inner, task.how), task.unit)
    if not method.link.identity:
        learned = _near(learned, kernel, noise if together else None, _share(turn.number + 1))
    noise = learned.noise if together else noise
    return Turn(turn.number + 1, learned.kernel, noise, parameters, states, "kernel"), learned


def _to_learn_from(
    observations: Observations, block: Block, stand_in: StandIn, noise: float | None
) -> Observations:
    """The stand-in of a block; of integrals with the unknown noise `noise` in their own unit, so that it is learned with the kernel.

    Learned in turns with the kernel instead, from the misfit at the present one, it would take tens of turns to settle.
    """
    gaussian = observations.likelihood is None or isinstance(observations.likelihood, Gaussian)
    if noise is None or observations.noise is not None or not gaussian or type(block) is not Nodal:
        return stand_in.observations
    shorter, functional = noise / stand_in.noise, stand_in.functional
    assert isinstance(functional, Functionals)
    in_unit_of_noise = Functionals(functional.positions, functional.weights * shorter[:, None])
    return Observations(in_unit_of_noise, stand_in.y * shorter, None)


def _share(number: int) -> float:
    """The share of its change that a turn makes: from the first AT_ONCE turns on, their results are averaged.

    Turns may go round in a circle, since each kernel is learned at the field that the one before it gave.
    """
    return 1 / max(1, number - AT_ONCE)


def _near(learned: Learned, kernel: Kernel, noise: float | None, share: float) -> Learned:
    """A share of the step to the learned kernel, at most FARTHEST from the kernel that the linearisation was made with."""
    layout = Layout.of(kernel, noise is not None)
    before = np.asarray(layout.pack(kernel, noise), float)
    change = np.asarray(layout.pack(learned.kernel, learned.noise), float) - before
    if share == 1 and np.all(np.abs(change) <= FARTHEST):
        return learned
    vector = before + share * np.clip(change, -FARTHEST, FARTHEST)
    kernel, found = layout.unpack(vector)
    return learned._replace(
        kernel=kernel, values=np.exp(vector), noise=None if found is None else float(found)
    )


def _keep(kept: RoundsCheckpoint, turn: Turn) -> None:
    of_kernel = Layout.of(turn.kernel, False).pack(turn.kernel, None)
    assert turn.states is not None
    kept.save(
        number=turn.number,
        kernel=of_kernel,
        noise=np.nan if turn.noise is None else turn.noise,
        parameters=np.array(list(turn.parameters.values()), float),
        **packed(turn.states),
    )


def _resumed(kept: RoundsCheckpoint, method: "Linearised", problem: Problem, first: Turn) -> Turn:
    """The turn that a checkpoint holds, or the first one."""
    at_start = dataclasses.replace(method, parameters=first.parameters)
    saved = kept.load(at_start.prepare(problem._replace(noise=first.noise)).blocks, *NEEDED)
    if saved is None:
        return first
    kernel = Layout.of(first.kernel, False).unpack(saved["kernel"])[0]
    noise = None if np.isnan(saved["noise"]) else float(saved["noise"])
    parameters = dict(zip(first.parameters, saved["parameters"].tolist(), strict=True))
    states = unpacked(saved, len(problem.data.blocks))
    return Turn(int(saved["number"]), kernel, noise, parameters, states, "kernel")


def _wavy(kernel: Kernel, grid: Grid) -> Kernel:
    """The kernel to start from under a link: lengthscales of a tenth of the grid, and a total variance of one."""
    layout = Layout.of(kernel, False)
    names, vector = layout.names(), np.array(layout.pack(kernel, None), float)
    tenth = 0.1 * float(np.max(np.asarray(grid.upper) - np.asarray(grid.lower)))
    parts = sum("variance" in name for name in names)
    for number, name in enumerate(names):
        if "variance" in name:
            vector[number] = -np.log(parts)
        elif "lengthscale" in name:
            vector[number] = np.log(tenth)
    return layout.unpack(vector)[0]


def _takes_noise(block: object) -> bool:
    likelihood = getattr(block, "likelihood", None)
    return likelihood is None or likelihood.additive


def _fitted(
    data: Data,
    prepared: "Prepared",
    states: list[State],
    free_noise: float | None,
    noise: float | None,
    parameters: dict[str, float],
) -> tuple[float | None, dict[str, float]]:
    """Noise and parameters of highest expected likelihood under q; known ones are not changed."""
    unknown = sorted({full for block in data.blocks for full in _unknown(block)})
    if free_noise is None and not unknown:
        return noise, parameters
    begin = ({} if free_noise is None else {"noise": free_noise}) | {
        name: parameters[name] for name in unknown
    }
    names, at = list(begin), np.log(list(begin.values()))

    def loss(logs: np.ndarray) -> float:
        values = dict(zip(names, np.exp(logs), strict=True))
        total = 0.0
        for observations, block, state in zip(prepared.data.blocks, prepared.blocks, states, strict=True):
            total += _expected(observations, block, state, values)
        return -total if np.isfinite(total) else 1e300

    found = scipy.optimize.minimize(
        loss, at, method="Nelder-Mead", bounds=[(a - RANGE, a + RANGE) for a in at],
        options={"xatol": 1e-3, "fatol": 1e-4, "maxiter": 200},
    )  # fmt: skip
    values = dict(zip(names, np.exp(found.x).tolist(), strict=True))
    return values.pop("noise", noise), parameters | values


def _unknown(observations: object) -> list[str]:
    likelihood = getattr(observations, "likelihood", None)
    return [] if likelihood is None else [f"{type(likelihood).__name__}.{n}" for n in likelihood.unknown()]


def _expected(observations: object, block: Block, state: State, values: dict[str, float]) -> float:
    """The block's expected log-likelihood with these parameters."""
    likelihood, noise = block.likelihood, block.noise
    if getattr(observations, "likelihood", None) is not None:
        learned = {n.split(".")[1]: values[n] for n in _unknown(observations)}
        likelihood = likelihood.replaced(learned) if learned else likelihood
    if "noise" in values and _takes_noise(observations) and getattr(observations, "noise", None) is None:
        noise = np.full(len(block.y), values["noise"])
    mean, _ = block.zeta(state)
    y, noise = block.measured(state, noise)
    terms = likelihood_terms(likelihood, block.outer, y, noise, block.scale, mean, state.spread)
    return float(jnp.sum(terms.value))
