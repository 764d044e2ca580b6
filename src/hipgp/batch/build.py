"""Construction of the linear system from a problem and settings, by the decisions of `batch/decisions.py`."""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hipgp.batch import decisions, exact_variances, interpolation
from hipgp.batch.decisions import Decision, all_points
from hipgp.batch.grid_space import grid_system, largest_unresolved_gain
from hipgp.batch.interpolation import Rows
from hipgp.batch.low_rank import Trial, crossing, low_rank
from hipgp.batch.systems import DataSystem, System
from hipgp.linalg.preconditioner import Preconditioner, Scaling
from hipgp.mesh.covariance import MeshToeplitz
from hipgp.mesh.devices import replicated
from hipgp.mesh.preconditioner import cut_by_rows
from hipgp.model.problem import Problem
from hipgp.runtime.arrays import on_device
from hipgp.runtime.lazy import Lazy
from hipgp.runtime.precision import float64_available
from hipgp.runtime.threads import run_both
from hipgp.vecchia import factor as vecchia
from hipgp.vecchia.factor import ConditioningSets
from hipgp.vecchia.grid_error import GridModel
from hipgp.weights.joint_residuals import CellBlocks
from hipgp.weights.stencil_geometry import wide_stencil
from hipgp.weights.stencils import WeightRows
from hipgp.weights.toeplitz import Toeplitz, embed
from hipgp.weights.torus import WRAPPED

if TYPE_CHECKING:
    from hipgp.batch.engine import Batch


class Built(NamedTuple):
    """The system of a problem, and the diagnostics of its construction."""

    system: System
    cells: CellBlocks | None  # the data by grid cell, if their residuals are joint
    diagnostics: dict[str, Any]
    grid_model: GridModel  # the grid's approximation of the data


def build(problem: Problem, method: "Batch", operators: "_GridOperators | None" = None) -> Built:
    """The linear system of a problem, its data in the order given; from K and W where these are given."""
    kernel, grid, data, _, _ = problem
    kernel.check_dimension(grid.ndim)
    rows, description, conditioning_sets, toeplitz = _weights_and_covariance(
        problem, method, operators or _operators(problem, method)
    )
    variance = problem.noise_std**2
    residual = np.asarray(rows.residual, float)
    ratio = float(np.mean(residual / variance))
    lazy_cells = Lazy(lambda: interpolation.cells(method, problem, rows))
    of_residual = decisions.residual(method, data, ratio, lambda: lazy_cells.get() is not None)
    cells = lazy_cells.get() if of_residual.choice == "joint" else None
    total = variance + residual if of_residual.choice == "noise" else variance
    gain = lambda: largest_unresolved_gain(toeplitz, total)
    where = decisions.space(method, data, grid.size, of_residual.choice == "joint", gain)
    trial = None
    if where.choice == "grid":
        assert isinstance(rows, WeightRows)
        system: System = grid_system(toeplitz, rows, total, points=all_points(data))
    else:
        system, trial = _data_system(problem, method, toeplitz, rows, total, cells, conditioning_sets)
    choices: dict[str, Decision[Any]] = {
        "weights": decisions.weights(method),
        "residual": of_residual,
        "space": where,
        "product": decisions.product(method, toeplitz, where.choice),
        "preconditioner": decisions.preconditioner(method, where.choice, system.preconditioner_size, trial),
    }
    if method.weights != "exact":
        choices["stencil"] = decisions.stencil(method, data.functionals, data.ndim)
    info = _size_diagnostics(problem, toeplitz) | {"weights": description, "residual_to_noise": ratio}
    info |= {name: choices[name].choice for name in ("residual", "space", "product", "preconditioner")}
    info["decisions"] = {name: decision.reason for name, decision in choices.items()}
    return Built(system, cells, info, _grid_model(problem, method, rows, residual, cells))


def _size_diagnostics(problem: Problem, toeplitz: Toeplitz) -> dict[str, Any]:
    """The diagnostics that describe the problem."""
    grid, data = problem.grid, problem.data
    return {
        "engine": "batch",
        "observations": len(data),
        "grid": grid.shape,
        "grid_points": grid.size,
        "torus": toeplitz.torus.shape,
        "clipped_mass": float(toeplitz.clipped_mass),
        "dtype": str(data.dtype),
    }


class _GridOperators(NamedTuple):
    """K on the torus, and the rows of W with a description, of which either is computed once, when it is asked for."""

    toeplitz: Lazy[Toeplitz]
    rows: Lazy[tuple[Rows, str]]


def _operators(problem: Problem, method: "Batch") -> _GridOperators:
    kernel, grid, data, _, _ = problem
    place = None if method.mesh is None else functools.partial(MeshToeplitz.on, method.mesh)
    toeplitz = Lazy(functools.partial(embed, kernel, grid, data.dtype, WRAPPED, place))
    return _GridOperators(toeplitz, Lazy(functools.partial(_rows, problem, method, toeplitz)))


@float64_available
def _rows(problem: Problem, method: "Batch", toeplitz: Lazy[Toeplitz]) -> tuple[Rows, str]:
    kernel, grid, data, _, _ = problem
    return interpolation.rows_of(method, kernel, grid, data.functionals, data.dtype, toeplitz.get)


class LazyParts(NamedTuple):
    """Objects that follow from a problem and settings. A map from a file computes each of them when it is first needed."""

    system: Lazy[System]
    cells: Lazy[CellBlocks | None]  # the data by grid cell, where their residuals are joint
    factor: Lazy[Any]  # of exact standard deviations


def lazy_parts(problem: Problem, method: "Batch", *built: Built) -> LazyParts:
    """System, cells and factor of a problem; system and cells are there from the start where they are `built`.

    Otherwise W is computed once for both. The cells alone, which the mean takes, need no system.
    """
    operators = _operators(problem, method)
    both = Lazy(
        functools.partial(_system_and_cells, problem, method, operators),
        *((b.system, b.cells) for b in built),
    )
    system = Lazy(functools.partial(_system_of, both))
    cells = Lazy(functools.partial(_cells, problem, method, operators, both))
    return LazyParts(system, cells, Lazy(functools.partial(exact_variances.factor_of, system)))


SystemAndCells = tuple[System, CellBlocks | None]


@float64_available
def _system_and_cells(problem: Problem, method: "Batch", operators: _GridOperators) -> SystemAndCells:
    built = build(problem, method, operators)
    operators.rows.forget()  # the system has W in the layout of the device
    return built.system, built.cells


def _system_of(both: Lazy[SystemAndCells]) -> System:
    return both.get()[0]


@float64_available
def _cells(
    problem: Problem, method: "Batch", operators: _GridOperators, both: Lazy[SystemAndCells]
) -> CellBlocks | None:
    if both.is_made:
        return both.get()[1]
    return interpolation.cells(method, problem, operators.rows.get()[0])


def _weights_and_covariance(
    problem: Problem, method: "Batch", operators: _GridOperators
) -> tuple[Rows, str, ConditioningSets | None, Toeplitz]:
    """W, its description, conditioning sets and K, computed in parallel.

    The conditioning sets are None for points, whose sets depend on the noise and residual variances, and if a low-rank
    preconditioner is tried first.
    """
    kernel, grid, data, _, _ = problem
    early = method.neighbours != 0 and method.weights == "local" and not all_points(data)
    early = early and not decisions.tries_low_rank(method, lambda: crossing(data, kernel))
    early = early and decisions.surely_in_data_space(method, data, grid.size)
    conditioning_sets = lambda: (
        vecchia.choose_conditioning_sets(kernel, data, method.neighbours) if early else None
    )
    embedded, weights = operators.toeplitz.get, operators.rows.get
    if method.weights == "exact":
        embedded()  # W needs it
    ((rows, description), near), toeplitz = run_both(lambda: run_both(weights, conditioning_sets), embedded)
    return rows, description, near, toeplitz


def _data_system(
    problem: Problem,
    method: "Batch",
    toeplitz: Toeplitz,
    rows: Rows,
    variance: Float[np.ndarray, " N"],
    cells: CellBlocks | None,
    conditioning_sets: ConditioningSets | None,
) -> tuple[DataSystem, Trial | None]:
    """The system in data space, and the outcome of trying a low-rank preconditioner (None if it was not tried).

    The preconditioner and the layout of W are computed in parallel.
    """
    kernel, data = problem.kernel, problem.data
    trial: Trial | None = None
    if conditioning_sets is None and decisions.tries_low_rank(method, lambda: crossing(data, kernel)):
        enough = np.inf if method.preconditioner == "low-rank" else decisions.MOST_LEFT
        local = rows if isinstance(rows, WeightRows) and method.mesh is None else None
        trial = low_rank(problem, variance, local, toeplitz, enough)
    noise = on_device(variance, data.dtype)

    def root() -> Preconditioner:
        if trial is not None and trial.preconditioner is not None:
            return trial.preconditioner
        if method.neighbours == 0:
            return Scaling.by(noise)
        sets = conditioning_sets or vecchia.choose_conditioning_sets(kernel, data, method.neighbours)
        return vecchia.vecchia_factor(kernel, sets, variance, data.dtype)

    layout = lambda: interpolation.laid_out(method, problem.grid, rows, data.dtype)
    preconditioner, weights = run_both(root, layout)
    shared = None if cells is None else cells.covariance(data.dtype)
    if method.mesh is not None:
        preconditioner = cut_by_rows(method.mesh, preconditioner)
        noise, shared = replicated(method.mesh, (noise, shared))
    system = DataSystem(
        toeplitz=toeplitz, weights=weights, noise=noise, preconditioner=preconditioner, residuals=shared
    )
    return system, trial


def _grid_model(
    problem: Problem,
    method: "Batch",
    rows: Rows,
    residual: Float[np.ndarray, " N"],
    cells: CellBlocks | None,
) -> GridModel:
    stencil = interpolation.points_per_axis(method, problem.data)
    return GridModel(
        rows if isinstance(rows, WeightRows) else None,
        residual,
        stencil if method.weights != "exact" else wide_stencil(problem.grid),
        residual_as_noise=method.residual != "bound",
        vecchia_std=all_points(problem.data),
        block=None if cells is None else cells.block,
    )
