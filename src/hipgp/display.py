"""A posterior as a picture shows it: predicted on a grid much finer than the one it was computed on.

Series get some thousand vertices and maps at least 300 pixels a side. Where that many predictions take seconds they are
made; otherwise the map on the posterior's own grid is interpolated by a spline. Standard deviations that were estimated
from samples are smoothed first, over a fraction of a lengthscale: their Monte Carlo error is not part of the field.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float

from hipgp import plots
from hipgp.model.data import Data
from hipgp.model.functionals import Points
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import typical_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.model.scaling import scaled_data
from hipgp.model.sphere import radius_of, sphere
from hipgp.plots.maps import cuts
from hipgp.plots.style import shown

if TYPE_CHECKING:
    from hipgp.posterior import Posterior

SERIES, PIXELS = 2000, 300  # the fewest vertices of a series, and pixels along a side of a map
LONGEST_SERIES = 20_000
ROWS = 3  # planes of a volume
SMOOTHED = 0.1  # lengthscales, or one spacing of the grid: further, the bias outgrows the error of 64 samples


class _View(NamedTuple):
    """The field on a grid for display; in three dimensions only some planes across the last axis."""

    grid: Grid
    mean: Float[np.ndarray, "..."]
    std: Float[np.ndarray, "..."] | None
    draw: Float[np.ndarray, "..."] | None
    planes: np.ndarray | None = None  # where the planes lie


def view(post: "Posterior", std: bool = True, progress: bool = False) -> _View:
    """The posterior at the places of a fine grid; with a draw where the map was saved with draws."""
    if post.grid.ndim == 4:
        raise ValueError(
            "plot: expected a map in one to three dimensions, got four; take a slice with to_xarray()"
        )
    if post.grid.ndim == 3:
        return _planes(post, std, progress)
    fine = refined(post.grid)
    drawn = post.kept.get("samples")
    draw = None if drawn is None else interpolated(np.asarray(drawn[0], float), post.grid, fine, _order(post))
    mean, deviation = _on(fine, post, std, progress)
    return _View(fine, mean, deviation, draw)


def refined(grid: Grid) -> Grid:
    """A grid over the same box that is fine enough for a picture; it contains the points of `grid` where that is coarser."""
    if grid.ndim == 1:
        if grid.size > LONGEST_SERIES:
            return Grid.cover(grid.lower, grid.upper, shape=LONGEST_SERIES)
        least = SERIES
    else:
        least = PIXELS
    shape = tuple((n - 1) * max(1, -(-least // (n - 1))) + 1 for n in grid.shape)
    return Grid.cover(grid.lower, grid.upper, shape=shape)


def _on(fine: Grid, post: "Posterior", std: bool, progress: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Mean and standard deviation on the fine grid, predicted where that is quick, otherwise interpolated."""
    means, deviations = post.engine.quick_points()
    x = np.clip(fine.coordinates(), post.grid.lower, post.grid.upper)
    both = std and fine.size <= deviations
    scaled = lambda a: np.ldexp(np.asarray(a, float), post.unit).reshape(fine.shape)
    mean = deviation = None
    if both or fine.size <= means:
        mean, found = post.engine.at_points(x, both)
        mean, deviation = scaled(mean), None if found is None else scaled(found)
    else:
        mean = interpolated(np.asarray(post.mean, float), post.grid, fine, _order(post))
    if std and deviation is None:
        deviation = interpolated(_std_on_grid(post, progress), post.grid, fine, _order(post))
    return mean, deviation


def _std_on_grid(post: "Posterior", progress: bool) -> Float[np.ndarray, "..."]:
    """Standard deviations on the posterior's grid: those that it was saved with, or new ones; smooth ones in either case."""
    kept = post.kept.get("std")
    if kept is not None:
        sampled = "samples" in str(
            post.diagnostics.get("decisions", {}).get("standard deviations on the grid", "")
        )
        return smoothed(kept, post.kernel, post.grid) if sampled else np.asarray(kept, float)
    std, error = post.std(progress=progress, return_error=True)
    return np.asarray(std, float) if error is None else smoothed(std, post.kernel, post.grid)


def smoothed(std: Float[np.ndarray, "..."], kernel: Kernel, grid: Grid) -> Float[np.ndarray, "..."]:
    """Standard deviations that were estimated from samples, their squares averaged over a fraction of a lengthscale."""
    length = np.broadcast_to(typical_lengthscale(kernel, grid.ndim), (grid.ndim,))
    width = np.clip(
        SMOOTHED * length / np.asarray(grid.spacing), 1.0, np.maximum(1.0, np.asarray(grid.shape) / 10)
    )
    return np.sqrt(scipy.ndimage.gaussian_filter(np.asarray(std, float) ** 2, width, mode="nearest"))


def interpolated(
    values: Float[np.ndarray, "..."], grid: Grid, fine: Grid, order: int
) -> Float[np.ndarray, "..."]:
    """Values on `grid` at the points of a finer one, by a spline that stays within the range of the values."""
    if fine.shape == grid.shape:
        return values
    at = [np.linspace(0, n - 1, m) for n, m in zip(grid.shape, fine.shape, strict=True)]
    places = np.meshgrid(*at, indexing="ij")
    found = scipy.ndimage.map_coordinates(values, places, order=order, mode="nearest")
    return np.clip(found, np.min(values), np.max(values))


def _order(post: "Posterior") -> int:
    """The order of the interpolating spline: cubic where the field is smooth, linear where it is rough."""
    return 3 if post.kernel.differentiable else 1


class _Planes(NamedTuple):
    """Some planes across the last axis of a volume: where they lie, and a fine grid for pictures of them."""

    volume: Grid
    number: np.ndarray

    @property
    def places(self) -> np.ndarray:
        return self.volume.axes[2][self.number]

    @property
    def grid(self) -> Grid:
        """The fine grid of each plane; along the last axis it only counts them."""
        fine, volume = refined(_across(self.volume)), self.volume
        return Grid(
            (*fine.origin, volume.origin[2]),
            (*fine.spacing, volume.spacing[2]),
            (*fine.shape, len(self.number)),
        )

    def cut(self, values: Any, order: int = 3) -> Float[np.ndarray, "a b planes"]:
        """Values on the volume's grid, on the fine grid of the planes."""
        plane = _across(self.volume)
        fine = refined(plane)
        cuts = [interpolated(np.asarray(values[:, :, i], float), plane, fine, order) for i in self.number]
        return np.stack(cuts, axis=-1)


def planes_of(grid: Grid) -> _Planes:
    """The planes of a volume that a picture shows."""
    return _Planes(grid, cuts(grid.shape[2], ROWS))


def _across(grid: Grid) -> Grid:
    return Grid(grid.origin[:2], grid.spacing[:2], grid.shape[:2])


def _planes(post: "Posterior", std: bool, progress: bool) -> _View:
    planes, order, drawn = planes_of(post.grid), _order(post), post.kept.get("samples")
    deviation = planes.cut(_std_on_grid(post, progress), order) if std else None
    draw = None if drawn is None else planes.cut(drawn[0], order)
    return _View(planes.grid, planes.cut(post.mean, order), deviation, draw, planes.places)


def observed(post: "Posterior") -> Data | None:
    """The data in the unit of y, where the engine keeps them and no link stands between them and the field.

    They are less the part of a trend in columns, which maps do not have either.
    """
    data, problem = post.engine.observations(), post.engine.conditioned_on()
    if (
        data is not None
        and problem is not None
        and problem.trend.kind == "columns"
        and post.engine.method.linear
    ):
        columns, beta = problem.trend.of_data(data, post.grid), post.engine.trend_fit()[1]
        parts = np.split(data.y - columns @ beta, np.cumsum([len(block.y) for block in data.blocks])[:-1])
        both = zip(data.blocks, parts, strict=True)
        data = Data(tuple(dataclasses.replace(block, y=part) for block, part in both))
    return data if data is None or post.unit == 0 else scaled_data(data, post.unit)


def figure(
    post: "Posterior", std: bool = True, data: bool = True, fig: Any = None, progress: bool = False
) -> plots.Figure:
    """The picture of a posterior: a curve with its band, or maps or slices of mean, a draw, and standard deviation."""
    if post.grid.ndim == 1:
        return _series(post, std, data, progress, fig=fig)
    on_top = observed(post) if data else None
    if (on_sphere := globe_view(post, std)) is not None:
        lon, lat, fields = on_sphere
        named = {"posterior mean" if name == "mean" else name: values for name, values in fields.items()}
        return plots.globe(lon, lat, named, post.labels, data=on_top, fig=fig)
    pictured = view(post, std, progress)
    panels = {"posterior mean": pictured.mean}
    panels |= {} if pictured.draw is None else {"one draw": pictured.draw}
    panels |= {} if pictured.std is None else {"std": pictured.std}
    if post.grid.ndim == 2:
        return plots.maps(panels, pictured.grid, post.labels, data=on_top, crs=post.crs, fig=fig)
    return plots.slices(panels, pictured.grid, post.labels, where=pictured.planes, fig=fig)


def axes(post: "Posterior", ax: Any = None, std: bool = True, data: bool = True) -> Any:
    """The picture of a posterior on pyplot's figure, or on `ax`; its axes without those of colour bars."""
    if ax is None:
        fig = figure(post, std, data, shown())
        found = [a for a in fig.axes if not hasattr(a, "_colorbar")]
        return found[0] if len(found) == 1 else np.array(found)
    if post.grid.ndim == 1:
        _series(post, std, data, False, ax=ax)
    elif post.grid.ndim == 2:
        pictured = view(post, std=False)
        style = plots.scale(pictured.mean)
        drawn = plots.image(ax, pictured.mean, pictured.grid, post.labels, **style)
        if data and (on_top := observed(post)) is not None:
            plots.draw_observed(ax, on_top, post.labels, style)
        if post.crs:
            plots.draw_graticule(ax, post.crs, post.labels.axis_units[0])
        ax.figure.colorbar(drawn, ax=ax, label=post.labels.value(), extend="both")
    else:
        raise ValueError("ax: expected None for a volume, which is drawn as slices on several axes, got axes")
    return ax


class _Sphere(NamedTuple):
    """The field on a sphere, at all pairs of longitudes and latitudes in degrees."""

    lon: Float[np.ndarray, " a"]
    lat: Float[np.ndarray, " b"]
    fields: dict[str, Float[np.ndarray, "a b"]]  # mean, and std if asked for


def globe_view(post: "Posterior", std: bool = True) -> _Sphere | None:
    """The field on the sphere on which all data lie; None where they lie on none.

    Standard deviations are computed at fewer places, and interpolated.
    """
    data = observed(post)
    radius = None if data is None else radius_of(data.functionals)
    if radius is None:
        return None
    fine = PIXELS + 1, PIXELS // 2 + 1
    lon, lat, mean = _on_sphere(post, radius, fine, False)
    fields = {"mean": mean}
    if std:
        fewer = 2 if fine[0] * fine[1] <= post.engine.quick_points()[1] else 5
        coarse = _on_sphere(post, radius, (fine[0] // fewer + 1, fine[1] // fewer + 1), True)[2]
        at = [np.linspace(0, n - 1, m) for n, m in zip(coarse.shape, fine, strict=True)]
        fields["std"] = scipy.ndimage.map_coordinates(coarse, np.meshgrid(*at, indexing="ij"), order=1)
    return _Sphere(lon, lat, fields)


def _on_sphere(
    post: "Posterior", radius: float, shape: tuple[int, int], std: bool
) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, "a b"]]:
    """Longitudes, latitudes, and the mean or the standard deviation at all pairs of them."""
    lon, lat = np.linspace(-180, 180, shape[0]), np.linspace(-90, 90, shape[1])
    east, north = np.meshgrid(lon, lat, indexing="ij")
    x = sphere(east.ravel(), north.ravel(), radius)
    if std:
        found = post.predict(Points(x).given_in(post.units), progress=False).std
    else:
        found = np.ldexp(np.asarray(post.engine.at_points(x, False)[0], float), post.unit)
    return lon, lat, np.asarray(found).reshape(shape)


def _series(post: "Posterior", std: bool, data: bool, progress: bool, **where: Any) -> plots.Figure:
    """The curve of a posterior in one dimension, with up to five of its draws."""
    shown, labels, kept = view(post, std, progress), post.labels, post.kept.get("samples")
    order = _order(post)
    onto = lambda values: interpolated(np.asarray(values, float), post.grid, shown.grid, order)
    draws = None if kept is None else np.stack([onto(drawn) for drawn in kept[:5]])
    transformed = post.diagnostics.get("link", "identity") != "identity"
    lower, upper = post.interval(0.95) if std and transformed else (None, None)
    return plots.profile(
        shown.grid.axes[0], shown.mean, np.zeros_like(shown.mean) if shown.std is None else shown.std, samples=draws,
        band=None if lower is None else (onto(lower), onto(upper)), data=observed(post) if data else None,
        xlabel=labels.on_ticks(0), ylabel=labels.value(), unit=labels.axis_units[0], **where,
    )  # fmt: skip
