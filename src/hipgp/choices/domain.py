"""The box that a grid must cover, its margin, and the grids that bound lengthscales in learning and that show maps."""

import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float

from hipgp.engines import FittedPosterior
from hipgp.model.data import Data, check_differentiable, check_dimension
from hipgp.model.functional import Functional
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import repeats, shortest_lengthscale, spacing_in_step, typical_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.runtime.progress import Progress

# Margins as fractions of the data's extent on every side. One lengthscale from the data the posterior is close to the
# prior, so a wider margin shows nothing new.
LEAST_MARGIN, MOST_MARGIN = 0.05, 0.25
SHOWN = 2_500  # points of a map without a grid: the cost of a joint draw grows with their cube
LINEARISED = 0.7  # spacing of a grid with a link, in mean distances of observations
FEWEST, MOST_ACROSS = 8, 500  # points along an axis
MOST_POINTS = 2.0**19  # a solve of a hundred steps then takes about half a minute on two cores
LEARNED_ON = 20_000  # places whose distances to the nearest others are measured
INSTEAD = "predict values at Points there, which need no grid, or use method=Exact()"
MOST_LEARNED = 2**24  # points of the grid that bounds lengthscales in learning


def extent(data: Data) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
    """The lower and the upper corner of the data's places."""
    places = [corners(functional) for functional in data.functionals]
    return np.min([p.min(axis=0) for p in places], axis=0), np.max([p.max(axis=0) for p in places], axis=0)


def domain(kernel: Kernel, data: Data) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
    """The data's box with a margin of one lengthscale, limited to between a twentieth and a quarter of its extent.

    An axis along which all data have the same coordinate gets a margin of one lengthscale.
    """
    lower, upper = extent(data)
    size, length = upper - lower, typical_lengthscale(kernel, data.ndim)
    wide = np.clip(length, LEAST_MARGIN * size, MOST_MARGIN * size)
    flat = size <= 1e-9 * np.maximum(length, np.maximum(np.abs(lower), np.abs(upper)))
    wide = np.where(flat, np.maximum(length, 1e-6 * np.abs(lower)), wide)
    return lower - wide, upper + wide


def covering(
    lower: Float[np.ndarray, " D"],
    upper: Float[np.ndarray, " D"],
    step: Float[np.ndarray, " D"],
    most: float,
) -> Grid:
    """A grid over the box with spacing `step`, or a larger one to stay below `most` points, and at least FEWEST per axis."""
    size = upper - lower
    points = lambda factor: np.maximum(np.ceil(size / (factor * step) - 1e-9) + 1, FEWEST)
    factor = 1.0
    while np.prod(points(factor)) > most and np.any(points(factor) > FEWEST):
        factor *= 1.02 if np.prod(points(factor)) < 2 * most else 1.2
    shape = tuple(int(n) for n in points(factor))
    return Grid.cover(lower, upper, shape=shape)


def in_step(kernel: Kernel, grid: Grid) -> Grid:
    """The grid, if need be finer, so that a whole number of its cells makes each period of a kernel that repeats."""
    if not repeats(kernel):
        return grid
    lower, upper, spacing = (np.asarray(a) for a in (grid.lower, grid.upper, grid.spacing))
    step = spacing_in_step(kernel, spacing)
    cells = np.ceil((upper - lower) / step - 1e-9).astype(int)
    return Grid(lower - (cells * step - (upper - lower)) / 2, step, tuple(int(n) + 1 for n in cells))


def map_grid(kernel: Kernel, data: Data) -> Grid:
    """The grid on which a map is shown if the engine needs none, with the same spacing in lengthscales along each axis."""
    lower, upper = domain(kernel, data)
    step = shortest_lengthscale(kernel, data.ndim)
    finest = step * np.min((upper - lower) / step) / MOST_ACROSS
    return covering(lower, upper, finest, SHOWN)


def learning_grid(data: Data) -> Grid:
    """The grid whose extent and spacing bound the lengthscale during learning; nothing is computed on it.

    Its spacing is the median distance between nearest neighbours, or half the spacing of equally many observations on a
    lattice, whichever is less, since data do not determine much shorter lengthscales. Distances are in units of the extent
    along each axis, so that axes may be in different units.
    """
    lower, upper = extent(data)
    size, count = upper - lower, len(data)
    scale = np.maximum(np.abs(lower), np.abs(upper))
    flat = size <= 1e-12 * scale
    whole = float(np.max(size)) if np.any(~flat) else 1.0
    size = np.where(flat, whole, size)
    lower = np.where(flat, lower - whole / 2, lower)
    spacing = min(0.5 / count ** (1 / data.ndim), _apart(data, lower, size))
    return covering(lower, lower + size, spacing * size, MOST_LEARNED)


def linearised_grid(kernel: Kernel, data: Data, learned: bool) -> Grid:
    """The grid of a field with a link or a likelihood where none is given.

    Its spacing is a fraction of that of equally many observations on a lattice, and of the lengthscale where that is known,
    but never so fine that rounds take minutes.
    """
    lower, upper = domain(kernel, data, margin=None if learned else 2 * LEAST_MARGIN)
    step = LINEARISED * (upper - lower) / len(data) ** (1 / data.ndim)
    if learned:
        step = np.minimum(step, np.broadcast_to(shortest_lengthscale(kernel, data.ndim) / 2, step.shape))
    return in_step(kernel, covering(lower, upper, step, max(SHOWN, 4.0 * len(data))))


def _apart(data: Data, lower: np.ndarray, size: np.ndarray) -> float:
    """The median distance of a place to the nearest other one, in units of the extent; infinite for a single place."""
    x = np.concatenate([corners(b.functional) for b in data.blocks])
    x = np.unique((x - lower) / size, axis=0)
    if len(x) < 2:
        return float("inf")
    some = np.random.default_rng(0).permutation(len(x))[:LEARNED_ON]
    return float(np.median(scipy.spatial.KDTree(x).query(x[some], k=2)[0][:, 1]))


def corners(functional: Functional) -> Float[np.ndarray, "n D"]:
    """Places that bound all of the functionals' support."""
    return np.asarray(functional.places(), float).reshape(-1, functional.ndim)


def grown(
    grid: Grid,
    places: Float[np.ndarray, "n D"],
    most: float,
    name: str = "functional",
    instead: str = INSTEAD,
) -> Grid:
    """The grid with cells added on every side until it covers these places; its points stay grid points.

    Where it would need more than `most` points, an error names the argument `name` and what to do `instead`.
    """
    spacing = np.asarray(grid.spacing)
    below = np.maximum(np.ceil((np.asarray(grid.lower) - places.min(axis=0)) / spacing), 0)
    above = np.maximum(np.ceil((places.max(axis=0) - np.asarray(grid.upper)) / spacing), 0)
    shape = np.asarray(grid.shape) + below + above
    if np.prod(shape) > most:
        raise ValueError(
            f"{name}: expected places near the data, got some so far out that a grid of {np.prod(shape):.2g} points "
            f"would be needed where {most:.2g} are the most; {instead}"
        )
    return Grid(np.asarray(grid.lower) - below * spacing, spacing, tuple(int(n) for n in shape))


def beyond(engine: FittedPosterior, functional: Functional) -> bool:
    """Whether the functional reaches beyond the grid on which the engine computes."""
    check_dimension(functional, engine.grid)
    return engine.method.on_grid and bool(np.any(engine.grid.outside(functional.places()) > 0))


def reaching(engine: FittedPosterior, functional: Functional, progress: bool) -> FittedPosterior:
    """The engine's posterior, computed again on a wider grid if `functional` reaches beyond its own."""
    if beyond(engine, functional):
        problem = engine.conditioned_on()
        if problem is None:  # it predicts there by itself, or raises the error
            check_differentiable(engine.kernel.differentiable, functional)
            return engine
        wider = grown(engine.grid, corners(functional), 4 * max(MOST_POINTS, engine.grid.size))
        with Progress(f"again on a grid of {' x '.join(map(str, wider.shape))}", progress):
            engine = engine.method.condition(problem._replace(grid=wider), progress=False)
    engine.method.check(engine.kernel, engine.grid, functional)
    return engine
