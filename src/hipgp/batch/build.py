"""Construction of the linear system from a problem and settings, by the decisions of `batch/decisions.py`."""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from hipgp.batch import decisions, interpolation
from hipgp.batch.decisions import Decision, all_points
from hipgp.batch.grid_space import grid_system, largest_unresolved_gain
from hipgp.batch.interpolation import Rows
from hipgp.batch.low_rank import Trial, crossing, low_rank
from hipgp.batch.systems import DataSystem, System
from hipgp.engines import Problem
from hipgp.runtime.arrays import on_device
from hipgp.runtime.threads import run_both
from hipgp.vecchia import factor as vecchia
from hipgp.vecchia.factor import ConditioningSets, Vecchia
from hipgp.vecchia.grid_error import GridModel
from hipgp.weights.joint_residuals import CellBlocks
from hipgp.weights.stencil_geometry import wide_stencil
from hipgp.weights.stencils import LocalWeights, WeightRows
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


def build(problem: Problem, method: "Batch") -> Built:
    """The linear system of a problem, its data in the order given."""
    kernel, grid, data, noise, _ = problem
    kernel.check_dimension(grid.ndim)
    rows, description, near, toeplitz = _rows_beside(problem, method)
    variance = np.asarray(data.noise_std(noise), float) ** 2
    residual = np.asarray(rows.residual, float)
    ratio = float(np.mean(residual / variance))
    of_residual = decisions.residual(method, data, ratio, in_one_cell=True)
    total = variance if of_residual.choice == "bound" else variance + residual
    gain = lambda: largest_unresolved_gain(toeplitz, total)
    where = decisions.space(method, data, grid.size, of_residual.choice == "joint", gain)
    cells = interpolation.cells(method, problem, rows) if of_residual.choice == "joint" else None
    trial = None
    if cells is None:
        of_residual = decisions.residual(method, data, ratio, in_one_cell=False)
    else:
        total = variance
    if where.choice == "grid":
        assert isinstance(rows, WeightRows)
        system: System = grid_system(toeplitz, rows, total, points=all_points(data))
    else:
        system, trial = _data_system(problem, method, toeplitz, rows, total, cells, near)
    taken: dict[str, Decision[Any]] = {
        "weights": decisions.weights(method),
        "residual": of_residual,
        "space": where,
        "product": decisions.product(toeplitz, where.choice),
        "preconditioner": decisions.preconditioner(method, where.choice, system.preconditioner_size, trial),
    }
    if method.weights != "exact":
        functionals = [block.functional for block in data.blocks]
        taken["stencil"] = decisions.stencil(method, functionals, data.ndim)
    info = _sizes(problem, toeplitz) | {"weights": description, "residual_to_noise": ratio}
    info |= {name: taken[name].choice for name in ("residual", "space", "product", "preconditioner")}
    info["decisions"] = {name: decision.reason for name, decision in taken.items()}
    return Built(system, cells, info, _grid_model(problem, method, rows, residual, cells))


def _sizes(problem: Problem, toeplitz: Toeplitz) -> dict[str, Any]:
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


def system_later(problem: Problem, method: "Batch") -> System:
    """The system of a posterior from a file, built as in a fit."""
    with jax.enable_x64(True):
        return build(problem, method).system


def cells_later(problem: Problem, method: "Batch") -> CellBlocks | None:
    """The data by grid cell, for a posterior from a file with joint residuals; W is computed without building a system."""
    embedded = lambda: embed(problem.kernel, problem.grid, problem.data.dtype, WRAPPED)
    with jax.enable_x64(True):
        rows, _ = interpolation.rows_of(method, problem.kernel, problem.grid, problem.data, embedded)
        return interpolation.cells(method, problem, rows)


def _rows_beside(problem: Problem, method: "Batch") -> tuple[Rows, str, ConditioningSets | None, Toeplitz]:
    """W, its description, conditioning sets and K, computed in parallel.

    The conditioning sets are None for points, whose sets depend on the noise and residual variances, and if a low-rank
    preconditioner is tried first.
    """
    kernel, grid, data, _, _ = problem
    beside = method.neighbours != 0 and method.weights == "local" and not all_points(data)
    beside = beside and not decisions.tries_low_rank(method, lambda: crossing(data, kernel))
    beside = beside and decisions.surely_in_data_space(method, data, grid.size)
    near_whom = lambda: vecchia.choose_conditioning_sets(kernel, data, method.neighbours) if beside else None
    embedded = functools.cache(lambda: embed(kernel, grid, data.dtype, WRAPPED))
    if method.weights == "exact":
        embedded()  # W needs it
    with_w = lambda: interpolation.rows_of(method, kernel, grid, data, embedded)
    ((rows, description), near), toeplitz = run_both(lambda: run_both(with_w, near_whom), embedded)
    return rows, description, near, toeplitz


def _data_system(
    problem: Problem,
    method: "Batch",
    toeplitz: Toeplitz,
    rows: Rows,
    variance: Float[np.ndarray, " N"],
    cells: CellBlocks | None,
    near: ConditioningSets | None,
) -> tuple[DataSystem, Trial | None]:
    """The system in data space, and the outcome of trying a low-rank preconditioner (None if it was not tried).

    The preconditioner and the layout of W are computed in parallel.
    """
    kernel, grid, data, _, _ = problem
    trial: Trial | None = None
    if near is None and decisions.tries_low_rank(method, lambda: crossing(data, kernel)):
        enough = np.inf if method.preconditioner == "low-rank" else decisions.MOST_LEFT
        local = rows if isinstance(rows, WeightRows) else None
        trial = low_rank(kernel, grid, data, variance, local, toeplitz, enough)
    given = None if trial is None else trial.preconditioner
    factor, weights = run_both(
        lambda: _vecchia(problem, method, variance, near) if given is None else given,
        lambda: LocalWeights.from_rows(rows, data.dtype) if isinstance(rows, WeightRows) else rows,
    )
    shared = None if cells is None else cells.covariance(data.dtype)
    noise = on_device(variance, data.dtype)
    system = DataSystem(
        toeplitz=toeplitz, weights=weights, noise=noise, preconditioner=factor, residuals=shared
    )
    return system, trial


def _vecchia(
    problem: Problem, method: "Batch", variance: Float[np.ndarray, " N"], near: ConditioningSets | None
) -> Vecchia | None:
    kernel, data = problem.kernel, problem.data
    if method.neighbours == 0:
        return None
    if near is None:
        near = vecchia.choose_conditioning_sets(kernel, data, method.neighbours)
    return vecchia.vecchia_factor(kernel, near, variance, data.dtype)


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
