"""Whether the grid is fine enough for the data, which spacing would be, and the words for it.

`vecchia/grid_error.py` says how far the posterior is from that of the same model without a grid. Here an engine asks it, and
where the answer is too far, asks again on finer grids until one will do.
"""

import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int

from hipgp.model.data import Data
from hipgp.model.functionals import Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.runtime.precision import float64_available
from hipgp.runtime.threads import one_blas_thread
from hipgp.vecchia.grid_error import GridApproximation, GridError, grid_error, stencil_approximation
from hipgp.vecchia.group_covariances import typical_lengthscale
from hipgp.vecchia.local_problems import LocalProblems, local_problems
from hipgp.weights.stencils import WeightRows

# what is worth a word: errors of the mean in posterior standard deviations, and relative errors of these
MEAN, STD = 0.12, 0.5
HALVINGS = 3  # of the spacing that are tried, as long as PAIRS kernel evaluations suffice; further ones are estimated
PAIRS = 4e7
MARGIN = 0.5  # of that, what a finer grid may leave: its worst places may be others
USUAL, SLOWEST, FASTEST = 2.0, 0.5, 6.0  # orders in the spacing at which errors are taken to fall


class GridTooCoarse(UserWarning):
    """The grid misses so much of the field's variation that the posterior is noticeably off."""


class GridModel(NamedTuple):
    """What an engine's grid sees of the data.

    `rows` is W where the engine has it as a sparse matrix; otherwise stencils of `stencil` points an axis stand for it.
    `residual`: the residual variances, where they are known for all data. `counted`: they count as noise. `vecchia`:
    standard deviations come from the nearest observations, past the grid. Observations with the same `block` have their
    residuals held jointly.
    """

    rows: WeightRows | None
    residual: Float[np.ndarray, " N"] | None
    stencil: int
    residual_as_noise: bool
    vecchia_std: bool
    block: Int[np.ndarray, " N"] | None = None


def wide_stencil(grid: Grid) -> int:
    """Points per axis with which local weights are all but the exact ones."""
    return 8 if grid.ndim <= 2 else 4


@one_blas_thread
@float64_available
def grid_diagnostics(
    kernel: Kernel, grid: Grid, data: Data, std: Float[np.ndarray, " N"], seen: GridModel
) -> dict[str, Any]:
    """Diagnostics: how far the grid puts the posterior off and, where that is too far, what would do."""
    noise = np.maximum(np.asarray(std, float) ** 2, 1e-290)
    entries = None if seen.rows is None else int(np.mean(seen.rows.csr.row_lengths))
    problems = local_problems(kernel, grid, data, noise, seen.residual, seen.stencil, entries, seen.block)
    if seen.rows is not None:
        view = GridApproximation.from_rows(seen.rows, problems, seen.residual_as_noise)
    else:
        view = stencil_approximation(kernel, grid, problems, seen.stencil, seen.residual_as_noise)
    found = grid_error(kernel, grid, problems, view, seen.vecchia_std)
    facts = {"grid_mean_error": found.mean, "grid_std_error": found.std, "grid_error_places": found.places}
    if _excess(found) <= 1:
        return facts
    needed = _fine_enough(kernel, grid, problems, seen, found)
    shape = None if needed is None else needed.shape
    return facts | {
        "grid_needed": shape,
        "grid_merging_helps": _merging_helps(kernel, grid, problems, view, seen),
    }


def _merging_helps(
    kernel: Kernel, grid: Grid, problems: LocalProblems, view: GridApproximation, seen: GridModel
) -> bool:
    """Whether points would do on this grid if repeated ones were one observation each: their residuals are held jointly."""
    if not seen.vecchia_std or seen.block is not None or np.max(problems.count) == 1:
        return False
    merged = problems._replace(count=np.ones_like(problems.count), shares=_by_cell(view))
    return _excess(grid_error(kernel, grid, merged, view, vecchia=True)) <= 1


def _excess(found: GridError) -> float:
    return max(found.mean / MEAN, found.std / STD)


def _fine_enough(
    kernel: Kernel, grid: Grid, problems: LocalProblems, seen: GridModel, found: GridError
) -> Grid | None:
    """A grid on which the error would be small enough, or None if there is none of a size that can be."""
    now, order = _excess(found) / MARGIN, USUAL
    try:
        for _ in range(HALVINGS):
            finer = _halved(kernel, grid)
            if problems.pairs(finer) > PAIRS:
                break
            grid, before = finer, now
            view = stencil_approximation(kernel, grid, problems, seen.stencil, seen.residual_as_noise)
            shared = problems if seen.block is None else problems._replace(shares=_by_cell(view))
            now = _excess(grid_error(kernel, grid, shared, view, seen.vecchia_std)) / MARGIN
            if now <= 1:
                return grid
            order = np.clip(np.log2(before / now), SLOWEST, FASTEST)
        for _ in range(int(np.ceil(np.log2(now) / order))):
            grid = _halved(kernel, grid)
    except ValueError:  # more points than a grid can have
        return None
    return grid


def _halved(kernel: Kernel, grid: Grid) -> Grid:
    """Half the spacing along the axes on which it is coarsest, in lengthscales; old points stay."""
    coarse = np.asarray(grid.spacing) / typical_lengthscale(kernel, grid.ndim)
    parts = np.where(coarse > np.max(coarse) / 2, 2, 1)
    shape = (np.asarray(grid.shape) - 1) * parts + 1
    return Grid(grid.origin, np.asarray(grid.spacing) / parts, tuple(int(n) for n in shape))


def _by_cell(view: GridApproximation) -> Any:
    """Observations by the cell they are in, as blocks with joint residuals."""
    cell = np.unique(view.columns[:, 0], return_inverse=True)[1]
    entries = np.ones(len(cell)), (np.arange(len(cell)), cell)
    return scipy.sparse.csr_array(entries, shape=(len(cell), int(np.max(cell)) + 1))


def warn_if_coarse(facts: dict[str, Any], grid: Grid, data: Data, residual: str, stencil: int) -> None:
    """Say so where the grid is too coarse, at the line outside this package that asked for the fit."""
    if "grid_needed" not in facts:
        return
    told = describe_error(facts, grid)
    if facts["grid_merging_helps"]:
        told += "; or merge observations of nearly the same place into their weighted means"
    if grid.ndim > 2 and stencil == 2:
        told += "; or try Batch(stencil=4)"
    if residual != "joint" and all(isinstance(block.functional, Points) for block in data.blocks):
        told += '; or try Batch(residual="joint")'
    warnings.warn(told, GridTooCoarse, stacklevel=_outside())


def describe_error(facts: dict[str, Any], grid: Grid) -> str:
    """How far off the posterior is, and which grid would do."""
    said = (
        f"the grid is too coarse for these data: at the worst of {facts['grid_error_places']} places tried, the "
        f"posterior mean is off by {facts['grid_mean_error']:.2g} posterior standard deviations"
    )
    if facts["grid_std_error"] > 0.01:
        said += f", and its standard deviation by a factor of {1 + facts['grid_std_error']:.3g}"
    shape = facts["grid_needed"]
    if shape is None:
        return f"{said}; no grid of a size that fits would do"
    spacing = np.asarray(grid.spacing) * (np.asarray(grid.shape) - 1) / (np.asarray(shape) - 1)
    size = float(np.prod(shape, dtype=float))
    return (
        f"{said}; a spacing of ({', '.join(f'{h:.3g}' for h in spacing)}) would do: "
        f"{' x '.join(map(str, shape))} = {size:,.0f} grid points, {_bytes(8 * size * 2**grid.ndim)} for one float64 "
        "array on their torus"
    )


def _bytes(size: float) -> str:
    power = min(int(np.log2(max(size, 1)) // 10), 4)
    return f"{size / 2 ** (10 * power):.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _outside() -> int:
    """The stack level, for the caller's `warnings.warn`, of the first frame that is not of this package."""
    level, frame = 1, sys._getframe(1)
    own = __name__.split(".")[0], "equinox"  # which stands between a method and its caller
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in own:
        level, frame = level + 1, frame.f_back
    return level
