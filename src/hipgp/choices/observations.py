"""A posterior with observations added, or without some of them."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int

from hipgp.choices.domain import MOST_POINTS, corners, grown
from hipgp.engines import FittedPosterior
from hipgp.model.arguments import as_float
from hipgp.model.data import Data
from hipgp.model.frames import Frame
from hipgp.model.problem import Problem
from hipgp.model.scaling import scaled_data
from hipgp.model.trend import Trend


def with_more(
    engine: FittedPosterior, more: Any, frame: Frame, unit: int, columns: Any, progress: bool
) -> FittedPosterior:
    """Return the posterior of an engine's data and, after them, `more`, which are converted to its frame and unit.

    `columns` are the user's own trend columns of these. A grid that was chosen grows where they reach beyond it.
    """
    if not isinstance(more, Data):
        raise ValueError(f"more: expected something made by observe(...), got {type(more).__name__}")
    if not more.gaussian:
        raise ValueError("more: expected observations with Gaussian noise, like the others, got a likelihood")
    problem = _problem(engine, "update")
    more = scaled_data(more.in_frame(frame).plain(), -unit)
    grid = problem.grid
    if "grid_chosen" in engine.diagnostics and engine.method.on_grid:
        for block in more.blocks:
            grid = grown(grid, corners(block.functional), 4 * max(MOST_POINTS, grid.size))
    for block in more.blocks:
        engine.method.check(problem.kernel, grid, block.functional)
    trend = _with_columns(problem.trend, len(more), columns)
    larger = problem._replace(data=problem.data + more, trend=trend, grid=grid)
    return _again(engine, larger, np.arange(len(problem.data)), progress)


def _with_columns(trend: Trend, count: int, columns: Any) -> Trend:
    """Return the trend of the observations of before and of so many more."""
    if trend.columns is not None:
        if columns is None:
            raise ValueError(
                "columns: expected the trend's columns of the new observations, (N, p), got None"
            )
        of_new = as_float("columns", columns, ndim=(2,)).astype(float)
        if of_new.shape != (count, trend.columns.shape[1]):
            raise ValueError(f"columns: expected shape {(count, trend.columns.shape[1])}, got {of_new.shape}")
        return Trend(np.concatenate([trend.columns, of_new]))
    if columns is not None:
        raise ValueError("columns: expected None unless the trend was given as columns, got some")
    return trend


def without(engine: FittedPosterior, index: Any, progress: bool) -> FittedPosterior:
    """Return the posterior without the observations that the user numbers `index`."""
    problem = _problem(engine, "without")
    count = len(problem.data)
    left_out = _marked(index, count)[engine.user_numbers()]
    kept = np.flatnonzero(~left_out)
    smaller = problem._replace(data=problem.data.kept(~left_out), trend=problem.trend.in_order(kept))
    return _again(engine, smaller, kept, progress)


def _again(
    engine: FittedPosterior, problem: Problem, kept: Int[np.ndarray, " n"], progress: bool
) -> FittedPosterior:
    chosen = {k: v for k, v in engine.diagnostics.items() if k in ("grid_chosen", "engine_chosen")}
    found = engine.updated(problem, kept, progress)
    return dataclasses.replace(found, diagnostics=found.diagnostics | chosen)


def _problem(engine: FittedPosterior, what: str) -> Problem:
    problem = engine.conditioned_on()
    if problem is None:
        raise ValueError(
            f"{what}: expected a posterior that keeps its data, got one of {type(engine.method).__name__}; condition anew, "
            "or use method=Batch() or Exact()"
        )
    return problem


def _marked(index: Any, count: int) -> np.ndarray:
    """Return a mask of the observations `index`: their numbers, or a mask."""
    array = np.asarray(index)
    if array.dtype == bool:
        if array.shape != (count,):
            raise ValueError(f"index: expected a mask of {count:,} observations, got shape {array.shape}")
        mask = array
    else:
        if array.ndim > 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
            raise ValueError(f"index: expected numbers of observations or a mask, got {index!r}")
        if array.size and not (0 <= np.min(array) and np.max(array) < count):
            raise ValueError(
                f"index: expected numbers from 0 to {count - 1:,}, got {np.min(array)} to {np.max(array)}"
            )
        mask = np.zeros(count, bool)
        mask[array.astype(int)] = True
    if not np.any(mask) or np.all(mask):
        raise ValueError(
            f"index: expected some of {count:,} observations, but not all, got {int(np.sum(mask)):,} of them"
        )
    return mask
