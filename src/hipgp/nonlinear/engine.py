"""The engine for links and likelihoods, which iterates a Gaussian engine.

`GP.condition` uses it if the GP has a link or the data a likelihood. The method given, `Batch()` by default, solves the
Gaussian problem of each round.
"""

import dataclasses
import time
from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from hipgp.engines import FittedPosterior, Method
from hipgp.linalg.rates import Rates
from hipgp.model.data import Data, Observations, check_inside
from hipgp.model.functionals import Functional, Functionals
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.links import Link, as_link
from hipgp.model.packing import check_shapes, unpack_data
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend
from hipgp.nonlinear.blocks import Block, Nodal, StandIn, State
from hipgp.nonlinear.importance import pareto_facts
from hipgp.nonlinear.iteration import (
    SOLVE,
    Result,
    RoundsProblem,
    RoundsState,
    Settings,
    iterate,
    warn_if_unsettled,
)
from hipgp.nonlinear.posterior import LinearisedPosterior
from hipgp.nonlinear.preparing import Prepared, prepare
from hipgp.nonlinear.resuming import RoundsCheckpoint
from hipgp.planning import Part
from hipgp.runtime.checkpoints import fingerprint
from hipgp.runtime.plain import Arrays, Json
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Progress

FEWEST_CORRECTED = 16  # draws, from which a standard deviation is known to a fifth
ROUNDS = 8  # that a fit is expected to take
INNER = ("batch", "exact")  # engines of Gaussian problems that give residuals, and values at points


class Linearised(Method):
    """Settings of the iterated linearisation of link and likelihoods.

    - `method`: the engine that solves each round's Gaussian problem, `Batch(...)` or `Exact(...)`; None for `Batch()`.
    - `tolerance`: nats; the rounds end when q moves by less.
    - `max_rounds`: largest number of rounds; a warning follows if they have not converged by then.
    - `draws`: number of posterior draws that give standard deviations at many nodes of lines and boxes.
    - `importance`: number of draws for importance weights of the true posterior over the Gaussian one; the Pareto shape of
      the weights is `diagnostics["pareto_k"]`, with a warning above 0.7. The default 0 computes none.
    - `corrected`: number of draws of the true posterior, by Hamiltonian steps that start from the Gaussian one; map, predictions
      and samples are then of these, and `diagnostics["acceptance"]` says how many steps were accepted. The default 0 stays with the
      Gaussian posterior of f.
    """

    name: ClassVar[str] = "linearised"
    linear: ClassVar[bool] = False
    method: Method | None = None
    link: Link = eqx.field(default_factory=lambda: as_link(None))
    parameters: dict[str, float] = eqx.field(default_factory=dict, static=False)
    tolerance: float = eqx.field(static=True, default=0.01)
    max_rounds: int = eqx.field(static=True, default=60)
    draws: int = eqx.field(static=True, default=64)
    importance: int = eqx.field(static=True, default=0)
    corrected: int = eqx.field(static=True, default=0)

    def __check_init__(self) -> None:
        if self.method is not None and getattr(self.method, "name", None) not in INNER:
            raise ValueError(
                f"method: expected Batch(...) or Exact(...) with a link or a likelihood, got {type(self.method).__name__}, "
                "which takes Gaussian noise and no link"
            )
        if not self.tolerance > 0:
            raise ValueError(f"tolerance: expected a positive number of nats, got {self.tolerance!r}")
        for name, least in (("max_rounds", 1), ("draws", 2), ("importance", 0), ("corrected", 0)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise ValueError(
                    f"{name}: expected a whole number of at least {least}, got {getattr(self, name)!r}"
                )
        if self.corrected and getattr(self.method, "name", "batch") != "batch":
            raise ValueError(
                f"method: expected Batch(...) with corrected draws, got {type(self.method).__name__}"
            )
        if self.corrected and self.corrected < FEWEST_CORRECTED:
            raise ValueError(
                f"corrected: expected 0, or at least {FEWEST_CORRECTED} draws, got {self.corrected}"
            )

    @property
    def inner(self) -> Method:
        """The engine that solves each round's Gaussian problem."""
        assert self.method is not None, "`suited` gives the one that is used where nothing is said"
        return self.method

    def check(self, kernel: Kernel, grid: Grid, functional: Functional) -> None:
        self.inner.check(kernel, grid, functional)
        if functional.uncertain:
            check_inside(functional, grid)
        if not self.link.identity and functional.derivative:
            raise ValueError(
                f'functional: expected no derivatives of a field with link="{self.link.name}", got '
                f"{type(functional).__name__}; observe or predict differences, Functionals(nodes, weights), or use no link"
            )

    def check_memory(self, problem: Problem) -> None:
        self.inner.check_memory(_linear(problem))

    def parts(self, problem: Problem, rates: Rates) -> list[Part]:
        """The parts of one round, and all further rounds as one part."""
        found = self.inner.parts(_linear(problem), rates)
        fit = [part for part in found if not part.optional]
        rest = [part for part in found if part.optional]
        again = sum(part.seconds for part in fit if part.name != "compilation")
        stds = rest[0].seconds * len(problem.data) / problem.grid.size
        rounds = Part(
            "rounds", max(part.bytes for part in fit), 0.0, (ROUNDS - 1) * again + ROUNDS * stds,
            f"about {ROUNDS - 1} more rounds, and standard deviations at the data in each",
        )  # fmt: skip
        return [*fit, rounds, *rest]

    @float64_available
    def condition(
        self,
        problem: Problem,
        progress: bool = True,
        checkpoint: Any = None,
        begin: list[State] | None = None,
    ) -> LinearisedPosterior:
        """The posterior of a problem; the rounds start from the states `begin`, or from a constant field."""
        self.check_memory(problem)
        began = time.perf_counter()
        kept = None if checkpoint is None else RoundsCheckpoint(checkpoint, fingerprint(self, problem))
        with Progress("linearising", progress) as bar:
            result, prepared = self.rounds(problem, bar, begin, kept)
        warn_if_unsettled(result, Settings(self.inner, self.tolerance, self.max_rounds))
        info = {
            "engine": self.name,
            "link": self.link.name,
            "observations": len(problem.data),
            "grid": problem.grid.shape,
            "dtype": str(problem.data.dtype),
            "rounds": len(result.rounds),
            "change_nats": result.change,
            "tolerance_nats": self.tolerance,
            "converged": result.converged,
            "trace": [r._asdict() for r in result.rounds],
            "gaussian": dict(result.post.diagnostics),
        }
        if self.importance:
            info |= pareto_facts(result.post, prepared.blocks, result.stand_ins, self.importance)
        info["seconds"] = time.perf_counter() - began
        if kept is not None:
            kept.remove()
        found = self._posterior(problem, prepared, result.post, result.states, result.stand_ins, info)
        if not self.corrected:
            return found
        from hipgp.nonlinear.corrected import corrected

        with Progress("draws of the true posterior", progress) as bar:
            return corrected(found, 0, bar.done)

    def rounds(
        self,
        problem: Problem,
        bar: Progress,
        begin: list[State] | None = None,
        kept: RoundsCheckpoint | None = None,
    ) -> tuple[Result, Prepared]:
        """Iterate to the fixed point from the states `begin`, from a checkpoint, or from a constant field."""
        prepared = self.prepare(problem)
        settings = Settings(self.inner, self.tolerance, self.max_rounds)

        def report(number: int, nats: float) -> None:
            bar.update(
                f"round {number}, the posterior moved by {nats:.2g} nats, to come below {self.tolerance:g}"
            )

        now = None if kept is None else kept.rounds_state(prepared.blocks)
        if now is None:
            now = RoundsState(prepared.start() if begin is None else begin)
        kernel, grid = problem.kernel, problem.grid
        linearised = RoundsProblem(prepared.blocks, kernel, grid, prepared.trend, prepared.reader, settings)
        keep = (lambda _: None) if kept is None else kept.save_rounds
        return iterate(linearised, now, report, keep, constant=begin is None), prepared

    def prepare(self, problem: Problem) -> Prepared:
        """The problem's blocks, in the order into which the engines would sort them."""
        return prepare(problem, self.link, self.parameters, self.draws)

    def _posterior(
        self,
        problem: Problem,
        prepared: Prepared,
        post: FittedPosterior,
        states: list[State],
        stand_ins: list[StandIn],
        info: dict[str, Any],
    ) -> LinearisedPosterior:
        kernel, grid, data, noise, _ = problem
        model = kernel, grid, noise, self, info, data.dtype
        fitted = prepared.data, prepared.blocks, states, stand_ins, prepared.trend, prepared.order
        return LinearisedPosterior(*model, post, *fitted, prepared.reader)

    def settings(self) -> Json:
        if self.link.name == "own":
            raise ValueError(
                'link: expected "exp", "softplus" or "logistic" in a map to be saved, got Link(g), a function'
            )
        plain = {
            name: getattr(self, name)
            for name in ("tolerance", "max_rounds", "draws", "importance", "corrected", "parameters")
        }
        return plain | {
            "link": self.link.name,
            "method": {"name": self.inner.name, "settings": self.inner.settings()},
        }

    @classmethod
    def of_settings(cls, settings: Json) -> "Linearised":
        return cls(**{**settings, "link": as_link(settings["link"])})

    @float64_available
    def unpack(
        self, kernel: Kernel, grid: Grid, noise: float | None, arrays: Arrays, model: Json
    ) -> LinearisedPosterior:
        data = unpack_data(model["data"], arrays)
        trend = Trend(arrays["trend_columns"] if model["trend"] == "columns" else model["trend"])
        problem = Problem(kernel, grid, data, noise, trend)
        prepared = self.prepare(problem)
        check_shapes(arrays, {"order": (len(data),)})
        order = np.asarray(arrays["order"]).astype(int)
        if not np.array_equal(np.sort(order), np.arange(len(data))):
            raise ValueError("order: expected a permutation of the observations, got another array")
        prepared = dataclasses.replace(prepared, order=order[prepared.order])
        for block in data.blocks:
            self.check(kernel, grid, block.functional)
        states, stand_ins = [], []
        for number, block in enumerate(prepared.blocks):
            like = block.start(0.0)
            check_shapes(arrays, {f"state{number}_{n}": np.shape(a) for n, a in like._asdict().items()})
            states.append(State(*(np.asarray(arrays[f"state{number}_{n}"], float) for n in State._fields)))
            stand_ins.append(_stand_in_of(block, block.stand_in(like, False), arrays, f"stand_in{number}"))
        inner = Problem(kernel, grid, Data(tuple(s.observations for s in stand_ins)), None, prepared.trend)
        post = self.inner.refit(inner, SOLVE * self.tolerance)
        found = self._posterior(problem, prepared, post, states, stand_ins, model["diagnostics"])
        if not self.corrected:
            return found
        from hipgp.nonlinear.corrected import with_draws

        check_shapes(arrays, {"drawn": (self.corrected, grid.size)})
        return with_draws(found, np.asarray(arrays["drawn"], float), model["diagnostics"])


def _linear(problem: Problem) -> Problem:
    """A Gaussian problem of the size of those that the rounds solve."""
    blocks = (Observations(b.functional, b.y, np.ones(len(b.y))) for b in problem.data.blocks)
    return problem._replace(data=Data(tuple(blocks)), noise=1.0)


def suited(method: Method, usual: Method, link: Link, parameters: dict[str, float]) -> Linearised:
    """The iteration around a method, or with its settings; `usual` is the engine inside where these say none."""
    if isinstance(method, Linearised):
        inner = usual if method.method is None else method.method
        return dataclasses.replace(method, method=inner, link=link, parameters=parameters)
    return Linearised(method, link, parameters)


def _stand_in_of(block: Block, like: StandIn, arrays: Arrays, name: str) -> StandIn:
    """A block's stand-in that was saved."""
    count = (len(block.y),)
    check_shapes(arrays, {f"{name}_y": count, f"{name}_noise": count})
    functional = like.functional
    if isinstance(block, Nodal):
        check_shapes(arrays, {f"{name}_weights": block.weights.shape})
        functional = Functionals(block.places, arrays[f"{name}_weights"])
    noise = np.asarray(arrays[f"{name}_noise"], float)
    if not np.all(noise > 0):
        raise ValueError(f"{name}_noise: expected positive numbers, got some that are not")
    return StandIn(functional, np.asarray(arrays[f"{name}_y"], float), noise, like.present)
