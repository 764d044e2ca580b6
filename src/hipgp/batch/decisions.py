"""The automatic choices of the batch engine: pure functions that return a choice and the reason for it.

A reason is a sentence with the numbers on which the choice rests. `post.diagnostics["decisions"]`, reports and `hipgp
info` show the reasons by name.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from hipgp.model.data import Data
from hipgp.model.functionals import Functional, LineIntegrals, Points
from hipgp.model.grid import Grid
from hipgp.model.problem import Problem
from hipgp.runtime import memory
from hipgp.weights.slabs import in_slabs
from hipgp.weights.stencil_geometry import STENCIL
from hipgp.weights.toeplitz import Toeplitz

if TYPE_CHECKING:
    from hipgp.batch.engine import Batch
    from hipgp.batch.low_rank import Trial
    from hipgp.batch.systems import System

Choice = TypeVar("Choice")

# observations per grid point above which grid space is faster
MANY_POINTS, MANY_OTHERS = 2, 10
STEPS_SAVED = 6  # grid space may take this many times more steps for each observation per grid point
# Range of mean residual variances, in noise variances, for joint residuals. Smaller ones do not matter; with larger ones
# the certificate, which divides the solve's residual by the noise variance alone, would be loose.
SHARED = 0.05, 100.0
FACTORED = 10_000  # most rows of a matrix that is formed and factored: 800 MB
# Largest mean variance, in noise variances, that a low-rank factor may leave of an observation.
MOST_LEFT = 0.3
# Points of a finer grid within a given one: a solve of a hundred steps then takes half a minute on two cores.
REFINED_TO = 2.0**19
CHEAP = 1e8  # points of the torus times products: some seconds on two cores


class Decision(NamedTuple, Generic[Choice]):
    """A choice, and its reason as a sentence."""

    choice: Choice
    reason: str


class Work(NamedTuple):
    """The cost of exact standard deviations: a factorisation of `rows` rows, or solves of `iterations` products each."""

    rows: int
    iterations: int
    torus_size: int


def work(system: "System", iterations: int) -> Work:
    """The cost of exact standard deviations, given the number of iterations of the mean's solve."""
    rows = system.grid_size if system.grid_is_smaller else len(system.noise)
    return Work(rows, iterations, system.toeplitz.torus.size)


def all_points(data: Data) -> bool:
    """Whether all observations are values at points."""
    return all(isinstance(functional, Points) for functional in data.functionals)


def weights(method: "Batch") -> Decision[str]:
    """The kind of the weights W, which the user sets."""
    if method.weights == "local":
        return Decision("local", "local weights: the default, from the grid points around each node")
    return Decision(
        method.weights, f'{method.weights} weights: Batch(weights="{method.weights}") asks for them'
    )


def stencil(method: "Batch", functionals: list[Functional], ndim: int) -> Decision[int]:
    """The width of stencils, in grid points per axis."""
    if method.stencil is not None:
        p = method.stencil
        return Decision(p, f"{p} grid points per axis and node: Batch(stencil={p}) asks for them")
    if ndim <= 2:
        return Decision(STENCIL, f"{STENCIL} grid points per axis and node: the default in {ndim} dimensions")
    if all(functional.single for functional in functionals):
        return Decision(
            STENCIL, f"{STENCIL} grid points per axis and node: all observations have a single node"
        )
    reason = (
        f"2 grid points per axis and node: in {ndim} dimensions sums over many nodes make up for fewer points"
    )
    return Decision(2, reason)


def product(method: "Batch", toeplitz: Toeplitz, space: str) -> Decision[str]:
    """How products with the covariance of the grid are computed, given the space of the solve."""
    if method.mesh is not None:
        count = method.mesh.devices.size
        return Decision("mesh", f"over {count} devices, each with a slab of the grid: a mesh is given")
    if space == "grid":
        return Decision("whole", "the whole torus at once: grid space has its unknowns there")
    by_slabs, reason = in_slabs(toeplitz.shape, toeplitz.torus.shape)
    return Decision("slabs" if by_slabs else "whole", reason)


def residual(
    method: "Batch", data: Data, residual_to_noise: float, share_a_cell: Callable[[], bool]
) -> Decision[str]:
    """The treatment of the residual variance of each observation.

    `share_a_cell` tells whether some points share a cell of the grid; it is called only where nothing else decides.
    """
    low, high = SHARED
    ratio = f"the mean residual variance is {residual_to_noise:.2g} noise variances"
    if method.residual == "bound":
        return Decision("bound", 'residuals only in the bound: Batch(residual="bound") asks for it')
    if method.residual == "noise":
        return Decision("noise", 'residuals as independent noise: Batch(residual="noise") asks for it')
    if not all_points(data):
        return Decision("noise", "residuals as independent noise: not all observations are values at points")
    if method.space == "grid" or method.weights != "local":
        return Decision(
            "noise", "residuals as independent noise: only data space with local weights holds them jointly"
        )
    if residual_to_noise <= low:
        return Decision(
            "noise", f"residuals as independent noise: {ratio}, too few to matter (at most {low:g})"
        )
    if residual_to_noise >= high:
        return Decision(
            "noise", f"residuals as independent noise: {ratio}, too many to certify (at least {high:g})"
        )
    if not share_a_cell():
        return Decision("noise", "residuals as independent noise: no two points share a cell of the grid")
    return Decision("joint", f"residuals joint within each cell: {ratio}, between {low:g} and {high:g}")


def space(
    method: "Batch", data: Data, grid_points: int, joint: bool, largest_unresolved_gain: Callable[[], float]
) -> Decision[str]:
    """Whether the system is solved in data space or in grid space.

    `largest_unresolved_gain` is called only for many points. It is the information of the data on the largest mode that
    the preconditioner leaves to the iteration; the number of steps grows with its square root.
    """
    if method.space != "auto":
        if method.space == "grid" and method.weights != "local":
            raise ValueError(
                f'space: expected "data" or "auto" unless weights="local", got "grid" and "{method.weights}"'
            )
        return Decision(method.space, f'{method.space} space: Batch(space="{method.space}") asks for it')
    if method.mesh is not None:
        return Decision("data", "data space: a mesh is given, and grid space has its unknowns on one device")
    for name, is_set in (
        ("neighbours", method.neighbours is not None),
        ("preconditioner", method.preconditioner != "auto"),
    ):
        if is_set:
            return Decision("data", f"data space: Batch({name}=...) is given, which grid space does not have")
    if method.weights != "local":
        return Decision("data", f"data space: grid space needs local weights, not {method.weights} ones")
    many, points = len(data) / grid_points, all_points(data)
    kind = "points" if points else "observations"
    counts = f"{len(data):,} {kind} are {many:.2g} for each of the {grid_points:,} grid points"
    enough = MANY_POINTS if points else 1 if data.ndim <= 2 else MANY_OTHERS
    if many <= enough:
        return Decision("data", f"data space: {counts}, and grid space pays beyond {enough}")
    if not points:
        return Decision("grid", f"grid space: {counts}, more than {enough}")
    if joint:
        return Decision("data", f"data space: {counts}, but residuals are joint, which needs data space")
    gain, most = largest_unresolved_gain(), (STEPS_SAVED * many) ** 2
    mode = f"the largest mode left to the iteration has gain {gain:.2g}"
    if gain < most:
        return Decision("grid", f"grid space: {counts}, and {mode}, below {most:.2g}")
    return Decision("data", f"data space: {counts}, but {mode}, not below {most:.2g}")


def surely_in_data_space(method: "Batch", data: Data, grid_points: int) -> bool:
    """Whether the solve is in data space, whatever W and K turn out to be."""
    return space(method, data, grid_points, joint=False, largest_unresolved_gain=lambda: 0.0).choice == "data"


def refined(method: "Batch", problem: Problem, facts: dict[str, Any]) -> Decision[Grid] | None:
    """The finer grid with the same corners on which to compute, where the problem's own is too coarse and that one fits.

    `facts` are the errors due to the problem's grid, and the points of one that would do (`vecchia/grid_check.py`).
    """
    shape, old = facts.get("grid_needed"), problem.grid
    if shape is None or np.prod(shape, dtype=float) > REFINED_TO:
        return None
    cells = np.asarray(shape) - 1
    spacing = (np.asarray(old.shape) - 1) * np.asarray(old.spacing) / cells
    finer = Grid(old.origin, spacing, shape)
    try:
        method.check_memory(problem._replace(grid=finer))
    except memory.DoesNotFit:
        return None
    shown = lambda points: " x ".join(map(str, points))
    return Decision(
        finer,
        f"computed on {shown(shape)} points within the grid of {shown(old.shape)}, on which the mean would be off by "
        f"{facts['grid_mean_error']:.2g} posterior standard deviations, and those by {facts['grid_std_error']:.0%}",
    )


def tries_low_rank(method: "Batch", crossing: Callable[[], bool]) -> bool:
    """Whether a low-rank preconditioner is tried in data space; `crossing` tells whether long functionals cross."""
    if method.preconditioner != "auto":
        return method.preconditioner == "low-rank"
    return method.neighbours is None and method.weights != "exact" and crossing()


def preconditioner(
    method: "Batch", space: str, description: str | None, trial: "Trial | None" = None
) -> Decision[str]:
    """The name of the preconditioner; `description` is its size in words, or None without a preconditioner.

    `trial` is the outcome of trying a low-rank one, if it was tried.
    """
    if space == "grid":
        name = f"{description} and a circulant"
        reason = (
            "the solve is in grid space, where few modes are hard and the others see an even density of data"
        )
        return Decision(name, f"{name}: {reason}")
    if description is None:
        return Decision("none", "no preconditioner: Batch(neighbours=0) asks for none")
    low_rank = trial is not None and trial.preconditioner is not None
    name = f"{'low-rank' if low_rank else 'Vecchia'}, {description}"
    if method.neighbours is not None:
        return Decision(
            name, f"{name}: the solve is in data space, and Batch(neighbours={method.neighbours}) is given"
        )
    if trial is None:
        why = "the default in data space for observations of this kind"
        if method.preconditioner != "auto":
            why = f'Batch(preconditioner="{method.preconditioner}") asks for it'
        return Decision(name, f"{name}: {why}")
    leave = f"{trial.columns:,} columns leave {trial.left:.2g} noise variances of an observation"
    if low_rank:
        setting = ' and Batch(preconditioner="low-rank") asks for them' * (
            method.preconditioner == "low-rank"
        )
        return Decision(name, f"{name}: the observations are long and cross, {leave}{setting}")
    limit = f"more than the {MOST_LEFT:g} up to which a low-rank factor pays"
    return Decision(name, f"{name}: the observations are long and cross, but {leave}, {limit}")


def exact_by_factor(work: Work, targets: int, solves: int) -> bool:
    """Whether to factor: if that takes fewer products for `targets` functionals than `solves` solves do, or few."""
    products = work.rows + targets
    shorter = products <= solves * max(1, work.iterations)
    return work.rows <= FACTORED and (shorter or products * work.torus_size <= CHEAP)


def _exact_by_solves(work: Work, targets: int, samples: int) -> bool:
    """Whether to solve for each target: if there are no more targets than samples, or the solves take few products."""
    return targets <= samples or targets * max(1, work.iterations) * work.torus_size <= CHEAP


def standard_deviations(
    data: Data,
    target: Functional,
    count: int,
    samples: int,
    work: Callable[[], Work],
    from_one_place: Callable[[list[Functional]], bool],
    nearest_suffice: bool = True,
) -> Decision[str]:
    """The fastest accurate algorithm for standard deviations of `count` targets of one kind.

    For points given points, and for lines given lines from the same place, the nearest observations determine the standard
    deviation to a few percent. They do not for a line given lines that cross it, for values given slopes, for one kind
    given another, and where a kernel repeats (`nearest_suffice` is False). Only then `work` is called.
    """
    functionals = [*data.functionals, target]
    kinds = {type(functional) for functional in functionals}
    if nearest_suffice and kinds == {Points}:
        return Decision("vecchia", "from the nearest observations: points given points")
    if nearest_suffice and kinds == {LineIntegrals} and from_one_place(functionals):
        return Decision("vecchia", "from the nearest observations: lines given lines from the same place")
    least = "the nearest observations carry too little information on one kind of functional given others"
    if kinds == {LineIntegrals}:
        least = (
            "the nearest observations carry too little information on lines that do not start from one place"
        )
    if not nearest_suffice:
        least = "the nearest observations carry too little information where a kernel repeats"
    needed = work()
    rows = f"the factor of a matrix of {needed.rows:,} rows"
    if exact_by_factor(needed, count, samples):
        return Decision("exact", f"exact: {least}, and {rows} is within reach")
    if _exact_by_solves(needed, count, samples):
        solves = f"{count:,} solves of about {needed.iterations} steps each"
        return Decision("exact", f"exact: {least}, and {solves} are no more than samples take, or seconds")
    limit = f"at most {FACTORED:,}" if needed.rows > FACTORED else "it takes more products than the samples"
    return Decision("samples", f"from {samples} samples: {least}, and {rows} is out of reach ({limit})")
