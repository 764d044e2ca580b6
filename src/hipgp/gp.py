"""The model: `GP`, a kernel on a grid with noise and trend, which learns from data and conditions on them.

>>> import numpy as np, hipgp as hg
>>> x = np.linspace(0.0, 1.0, 50)
>>> gp = hg.GP(hg.Matern52(lengthscale=0.3))
>>> post = gp.condition(hg.observe(hg.Points(x), np.sin(6 * x), noise=0.05))
>>> bool(np.abs(post.predict(hg.Points([0.5])).mean[0] - np.sin(3.0)) < 0.05)
True
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import equinox as eqx
import numpy as np

from hipgp.averaging import Averaged
from hipgp.batch.engine import Batch
from hipgp.batch.streamed import condition_on_stream
from hipgp.choices.domain import learning_grid, linearised_grid
from hipgp.choices.learn import learned_from, warn_if_undetermined
from hipgp.choices.problem import AUTO, settled_grid, settled_method
from hipgp.engines import Method
from hipgp.learning.integration import weighted_kernels
from hipgp.learning.learned import Learned, LearnOptions, in_unit
from hipgp.linalg.rates import measured_rates
from hipgp.model import scaling
from hipgp.model.arguments import as_float
from hipgp.model.covariates import Design, Formula
from hipgp.model.data import Data
from hipgp.model.frames import Frame
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.labels import Labels
from hipgp.model.links import Link, as_link
from hipgp.model.periodic import check_periods
from hipgp.model.problem import OpenProblem, Problem
from hipgp.model.stream import Stream
from hipgp.model.sublattice import Sublattice
from hipgp.model.trend import Trend
from hipgp.model.undecided import Undecided
from hipgp.nonlinear.engine import Linearised, suited
from hipgp.nonlinear.learning import KnownField, LearnedModel, learn_linearised
from hipgp.planning import Plan
from hipgp.posterior import Posterior
from hipgp.runtime import memory
from hipgp.runtime.shown import Shown


class _Settled(NamedTuple):
    """The engine and the problem that `condition` gives to it, in the unit 2^unit, with the reasons for what was chosen."""

    engine: Method
    problem: Problem
    why: dict[str, str]
    unit: int
    frame: Frame
    begin: Any = None  # states in which rounds of linearisation begin
    design: Design | None = None  # of a trend in named columns


class GP(Shown, eqx.Module):
    """A Gaussian-process prior, which learns from data and is conditioned on them.

        gp = hg.GP(hg.Matern32(), trend="constant").learn(data)  # kernel and noise, with their errors in gp.learned
        post = gp.condition(data)

    `kernel` holds variance and lengthscale; "auto" is chosen by log evidence when data are learned from: a Matern kernel or a
    sum of two, with one lengthscale or one for each axis. `grid` carries the inducing points; without one, `condition` chooses
    one that suits data, kernel and noise, or an engine that needs none. `noise` is the standard deviation for observations
    that were given none. `trend` is None, "constant", "linear", columns by name as in "~ height + C(type)" or ["height"], or
    an array of columns, (N, p). With a `link` g ("exp", "softplus", "logistic" or Link(g)) the field is g(f), where f has this
    prior and trend. `parameters` holds those of likelihoods that the data leave open, by name.
    """

    kernel: Kernel
    grid: Grid | None
    noise: float | None
    trend: Trend
    link: Link
    parameters: dict[str, float]
    learned: Learned | None
    formula: Formula | None = eqx.field(static=True)
    # where learning with a link or a likelihood ended
    known_field: KnownField | None = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel | Literal["auto"],
        grid: Grid | None = None,
        noise: float | None = None,
        trend: Any = None,
        link: Any = None,
        parameters: dict[str, float] | None = None,
    ):
        if isinstance(kernel, str) and kernel == AUTO:
            kernel = Undecided()
        if not isinstance(kernel, Kernel):
            shown = repr(kernel) if isinstance(kernel, str) else type(kernel).__name__
            raise ValueError(f'kernel: expected a kernel such as Matern32(), or "auto", got {shown}')
        if grid is not None:
            if not isinstance(grid, Grid):
                raise ValueError(f"grid: expected a Grid, or None to choose one, got {type(grid).__name__}")
            kernel.check_dimension(grid.ndim)
        if noise is not None:
            noise = float(as_float("noise", noise, ndim=(0,)))
            if noise <= 0:
                raise ValueError(f"noise: expected a positive standard deviation, got {noise}")
        self.kernel, self.grid, self.noise = kernel, grid, noise
        named = isinstance(trend, str) and "~" in trend
        named |= isinstance(trend, list | tuple) and all(isinstance(name, str) for name in trend)
        self.formula = Formula(trend) if named else None
        self.trend = trend if isinstance(trend, Trend) else Trend(None if named else trend)
        self.link, self.parameters = as_link(link), dict(parameters or {})
        self.learned = self.known_field = None

    def _shown(self) -> tuple[str, dict[str, str]]:
        noise = "as given with the data, or to be learned" if self.noise is None else f"{self.noise:.4g}"
        rows = {
            "kernel": repr(self.kernel),
            "noise": noise,
            "trend": str(self.formula or self.trend.kind or "none"),
        }
        rows |= {"grid": "chosen when conditioned" if self.grid is None else repr(self.grid)}
        rows |= {} if self.link.identity else {"link": self.link.name}
        rows |= {name: f"{value:.4g}" for name, value in self.parameters.items()}
        rows |= {} if self.learned is None else self.learned.labelled_rows
        rows |= {"chosen": self.learned.choice} if self.learned is not None and self.learned.choice else {}
        return "GP", rows

    def condition(
        self,
        data: Data | Stream,
        method: Method | Literal["auto"] | None = None,
        *,
        hyperparameters: Literal["best", "average"] = "best",
        progress: bool = True,
        checkpoint: Any = None,
        mesh: Any = None,
    ) -> Posterior:
        """The posterior given `data`; the kernel "auto" is learned from them first.

        `method` is an engine: Batch(...), Exact(...) or Variational(...), which computes on the grid that was given. "auto"
        takes the exact engine up to a few thousand observations, where it is as fast, and the batch engine beyond. The default
        is "auto" without a grid, and the batch engine with one. Both compute on a finer grid, within which the given one is
        every so many points, where that one would put the posterior off by more than a tenth of a standard deviation. The
        diagnostics give the reasons under "engine_chosen", "grid_chosen" and "grid_refined".

        `hyperparameters="average"` integrates over the uncertainty of the learned kernel and noise: the posterior is a mixture
        over several of them. `checkpoint` names a file in which a long batch solve saves its state, and from which it resumes.
        `mesh`, a jax.sharding.Mesh or a number of devices, cuts the fit over several devices: the grid by slabs of its first
        axis, the data's weights with it. The answer does not depend on it.
        """
        if isinstance(data, Stream):
            _check_hyperparameters(hyperparameters, checkpoint)
            if isinstance(self.kernel, Undecided) or mesh is not None:
                raise ValueError(
                    'data: expected observe(...) with the kernel "auto" or a mesh, got observe_from(...)'
                )
            problem = OpenProblem(self.kernel, self.grid, data, self.noise, self.trend)  # type: ignore[arg-type]
            return Posterior(condition_on_stream(problem, self.link, method, progress), self.learned)  # type: ignore[arg-type]
        if isinstance(self.kernel, Undecided):
            _check_hyperparameters(hyperparameters, checkpoint)  # before the work
            how = {"hyperparameters": hyperparameters, "checkpoint": checkpoint, "mesh": mesh}
            return self.learn(data, progress=progress).condition(data, method, progress=progress, **how)  # type: ignore[arg-type]
        if mesh is not None and method in (None, "auto"):
            method = Batch()  # the engine that a mesh is for
        settled = self._settled(data, method, hyperparameters, checkpoint, progress)
        if mesh is not None:
            settled = settled._replace(engine=settled.engine.on_mesh(mesh, settled.problem.grid))
        begin = () if settled.begin is None else (settled.begin,)  # only rounds of linearisation have one
        # without an engine or a mesh, the grid that was given is the one to show, and may be refined within
        may_refine = mesh is None and method in (None, "auto")
        engine = settled.engine.condition_finely if may_refine else settled.engine.condition
        found = engine(settled.problem, progress, checkpoint, *begin)
        found = dataclasses.replace(found, diagnostics=found.diagnostics | settled.why)
        learned, unit, frame = self.learned, settled.unit, settled.frame
        named = Labels.of_data(data.ndim, frame, data.axes, data.name) if data.axes or data.name else None
        shown = Sublattice.between(settled.problem.grid, found.grid)
        return Posterior(found, learned, named, unit, frame=frame, design=settled.design, shown=shown)

    def plan(
        self,
        data: Data,
        method: Method | Literal["auto"] | None = None,
        *,
        hyperparameters: Literal["best", "average"] = "best",
        progress: bool = True,
    ) -> Plan:
        """What `condition` will take on this device, before anything large is computed: memory and expected seconds.

        The arguments are those of `condition`. The plan names the engine and the grid that would be taken, lists every part
        of the fit and what may follow it, says whether it fits into memory, and has the words of a refusal. Seconds come
        from counted work and from rates that are measured once in a process, in about a second. Whether a grid that was given
        is too coarse shows in the fit alone: a finer one, of at most 2^19 points, is not in the plan.
        """
        if isinstance(self.kernel, Undecided):
            raise ValueError(
                'kernel: expected a kernel to plan a fit with, got "auto"; call gp = gp.learn(data) first'
            )
        settled = self._settled(data, method, hyperparameters, None, progress)
        engine, problem = settled.engine, settled.problem
        refusal = None
        try:
            engine.check_memory(problem)
        except memory.DoesNotFit as error:
            refusal = str(error)
        parts = tuple(engine.parts(problem, measured_rates(problem.data.dtype)))
        return Plan(engine.name, problem.grid.shape, parts, refusal, settled.why, memory.bytes_available())

    def _settled(
        self, data: Any, method: Any, hyperparameters: str, checkpoint: Any, progress: bool
    ) -> "_Settled":
        """The engine, the problem that it would condition, and what was chosen for it."""
        _check_hyperparameters(hyperparameters, checkpoint)
        if self.formula is not None:
            design, plain = self._with_columns(data)
            how = hyperparameters, checkpoint, progress
            return plain._settled(data, method, *how)._replace(design=design)
        average = hyperparameters == "average"
        data = self._in_frame(data).without_covariates()
        check_periods(self.kernel)
        frame, data = data.frame, data.plain()
        if isinstance(method, Method) and not method.linear:
            method = suited(method, Batch(), self.link, self.parameters)
        if not (self.link.identity and data.gaussian):
            return self._linearised(data, method, frame, average)
        open_problem = OpenProblem(self.kernel, self.grid, data, self.noise, self.trend)
        engine, why = settled_method(method, Batch(), open_problem, checkpoint)
        self._check(data, engine)
        unit = scaling.exponent(self.kernel, data, self.noise)
        kernel, scaled, noise = scaling.scaled(self.kernel, data, self.noise, -unit)
        open_problem = open_problem._replace(kernel=kernel, data=scaled, noise=noise)
        if average:
            bounding = learning_grid(scaled) if self.grid is None else self.grid
            learned = None if self.learned is None else in_unit(self.learned, -unit)
            engine = _averaged(engine, learned, open_problem.on(bounding))
            # the kernel that needs the finest grid
            open_problem = open_problem._replace(kernel=engine.shortest(data.ndim))
        grid, why_grid = settled_grid(engine, open_problem, progress)
        scaling.warn_if_far_from_zero(data, grid, self.trend, self.kernel)
        if self.learned is not None and self.learned.choice:
            why |= {"kernel_chosen": self.learned.choice}
        problem = Problem(kernel, grid, scaled, noise, self.trend)
        return _Settled(engine, problem, why | why_grid, unit, frame)

    def learn(
        self,
        data: Data,
        *,
        start: Literal["data", "kernel"] = "data",
        bounds: dict[str, tuple[float, float]] | None = None,
        key: int = 0,
        polish: bool | None = None,
        progress: bool = True,
        checkpoint: Any = None,
    ) -> "GP":
        """A new GP with kernel and (if unknown) noise learned from `data`; `.learned` describes the optimisation.

        Starting values come from the data unless `start="kernel"`. `bounds` limits parameters by name, e.g.
        {"lengthscale": (0.1, 10), "Matern32.variance": (1e-3, 1)}. With `polish` the last steps maximise the exact
        bound, which needs solves; the default is to do so if observations and grid points are at most 100,000 in all.
        `checkpoint` names a file from which interrupted learning resumes; it stays when learning is done.
        """
        _check_data(data)
        if self.formula is not None:
            how = {"start": start, "bounds": bounds, "key": key, "polish": polish, "progress": progress}
            found = self._with_columns(data)[1].learn(data, checkpoint=checkpoint, **how)  # type: ignore[arg-type]
            return found._changed(trend=self.trend, formula=self.formula)
        data = data.without_covariates()
        scaling.warn_if_units_mix(self.kernel, data)
        frame, data = data.frame, data.plain()
        self.kernel.check_dimension(data.ndim)
        self._check(data, Batch())
        if start not in ("data", "kernel"):
            raise ValueError(f'start: expected "data" or "kernel", got {start!r}')
        found = self._learned(data, LearnOptions(start, bounds, key, polish, progress, checkpoint))
        learned = found.learned
        gp = GP(learned.kernel, self.grid, learned.noise, self.trend, self.link, found.parameters)
        return gp._changed(learned=learned._replace(frame=frame), known_field=found.known_field)

    def _learned(self, data: Data, how: LearnOptions) -> LearnedModel:
        """The kernel, noise and parameters of likelihoods learned from data in plain numbers."""
        if self.link.identity and data.gaussian:
            scaling.warn_if_repeated(data)
            problem = OpenProblem(self.kernel, self.grid, data, self.noise, self.trend)
            return LearnedModel(learned_from(problem, Batch(), how), {}, None)
        _check_decided(self.kernel)
        check_periods(self.kernel)
        method = Linearised(Batch(), self.link, self.parameters)
        found = learn_linearised(method, self._problem_on_grid(data, how.start == "kernel"), how)
        warn_if_undetermined(found.learned.undetermined)
        return found

    def _with_columns(self, data: Data) -> tuple[Design, "GP"]:
        """The columns of a trend in named columns, and the same model with these as a matrix."""
        assert self.formula is not None
        _check_data(data)
        table = data.covariates()
        design = self.formula.of(table)
        return design, self._changed(trend=Trend(design.matrix(table)), formula=None)

    def _changed(self, **values: Any) -> "GP":
        """The same model with other values in some fields."""
        out = object.__new__(GP)
        for field in dataclasses.fields(self):
            object.__setattr__(out, field.name, values.get(field.name, getattr(self, field.name)))
        return out

    def plot(self) -> Any:
        """Draw the prior with matplotlib's pyplot: covariance against distance, and draws. Returns the two axes."""
        from hipgp.plots.priors import draw_prior
        from hipgp.plots.style import shown

        lengthscales = [len(np.atleast_1d(part.lengthscale)) for part in self.kernel.parts]
        ndim = max(lengthscales) if self.grid is None else self.grid.ndim
        units = () if self.learned is None else self.learned.frame.axes
        return draw_prior(self.kernel, self.noise, units, max(ndim, len(units)), shown())

    def _in_frame(self, data: Any) -> Data:
        """The data in the units in which the kernel was learned, if it was."""
        _check_data(data)
        units = None if self.learned is None else self.learned.frame
        return data if units in (None, Frame()) else data.in_frame(units)

    def _linearised(self, data: Data, method: Any, frame: Frame, average: bool) -> "_Settled":
        """The engine and the problem with a link or a likelihood; `method` solves the linearised Gaussian problems."""
        inner = Batch() if method in (None, "auto") else method
        if not isinstance(inner, Method):
            raise ValueError(f"method: expected Batch(...) or Exact(...), got {type(inner).__name__}")
        engine = suited(inner, Batch(), self.link, self.parameters)
        problem = self._problem_on_grid(data)
        self._check(data, engine)
        if average:
            return _Settled(_averaged(engine, self.learned, problem), problem, {}, 0, frame)
        begin = None if self.known_field is None else self.known_field.known(engine, problem)
        return _Settled(engine, problem, {}, 0, frame, begin)

    def _problem_on_grid(self, data: Data, learned: bool = True) -> Problem:
        """The problem on the grid, or on one that suits the data and, where it is known, the kernel."""
        grid = linearised_grid(self.kernel, data, learned) if self.grid is None else self.grid
        return Problem(self.kernel, grid, data, self.noise, self.trend)

    def _check(self, data: Data, method: Method) -> None:
        if self.grid is not None:
            for block in data.blocks:
                method.check(self.kernel, self.grid, block.functional)


def _check_hyperparameters(hyperparameters: Any, checkpoint: Any) -> None:
    if hyperparameters not in ("best", "average"):
        raise ValueError(f'hyperparameters: expected "best" or "average", got {hyperparameters!r}')
    if hyperparameters == "average" and checkpoint is not None:
        raise ValueError('checkpoint: expected None with hyperparameters="average", got a path; leave it out')


def _check_decided(kernel: Kernel) -> None:
    if isinstance(kernel, Undecided):
        raise ValueError(
            'kernel: expected one by name with a link, a likelihood or uncertain places, got "auto", which compares the '
            "evidence of Gaussian data; give one such as Matern32(), and compare several by their leave_out().scores()"
        )


def _check_data(data: Any) -> None:
    if not isinstance(data, Data):
        raise ValueError(f"data: expected something made by observe(...), got {type(data).__name__}")


def _averaged(engine: Method, learned: Learned | None, problem: Problem) -> Averaged:
    """The engine with the kernels that the problem's data allow; its grid only bounds their lengthscales."""
    if learned is None:
        raise ValueError(
            'hyperparameters: expected "best" with a kernel that was given, got "average", which averages over the '
            "uncertainty of what was learned; call gp = gp.learn(data) first"
        )
    if engine.learns:
        raise ValueError(
            f'hyperparameters: expected "best" with {type(engine).__name__}(learn=True), which changes the kernel, got '
            '"average"; leave learn out'
        )
    return Averaged(engine, weighted_kernels(learned, problem))
