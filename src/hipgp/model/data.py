"""Observations: functionals, measured values and their noise, of several kinds in one data set.

>>> import numpy as np
>>> from hipgp.model.functionals import Derivatives, Points
>>> x = np.linspace(0, 1, 5)
>>> data = observe(Points(x), np.sin(x), noise=0.1) + observe(Derivatives(x), np.cos(x), noise=0.2)
>>> len(data)
10
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from hipgp.model.coordinates import Units, as_quantity
from hipgp.model.frames import Frame, field_unit, in_units, on_plane
from hipgp.model.functional import Functional
from hipgp.model.grid import Grid
from hipgp.model.likelihood import Likelihood
from hipgp.model.likelihoods import Gaussian
from hipgp.model.nodes import Nodes
from hipgp.model.quantities import factor
from hipgp.runtime.shown import Shown, between

if TYPE_CHECKING:
    from hipgp.model.geometry import Kind


class Observations(eqx.Module):
    """One kind of functional with its measured values; `noise` is a std per observation, or None to learn it.

    `likelihood` is None for Gaussian noise. `field_unit` is the unit of the field, "" if y are plain numbers.
    """

    functional: Functional
    y: Float[np.ndarray, " N"]
    noise: Float[np.ndarray, " N"] | None
    likelihood: Likelihood | None = None
    field_unit: str = eqx.field(static=True, default="")
    covariates: Any = eqx.field(
        static=True, default=None
    )  # a table with a row for each, of which a trend is made
    axes: tuple[str, ...] = eqx.field(static=True, default=())  # names of the axes, of columns of a table
    name: str = eqx.field(static=True, default="")  # of the field, of the column of its values

    def in_frame(self, frame: Frame) -> "Observations":
        """These observations converted to other units of the axes and of the field."""
        if self.functional.crs or frame.crs:
            functional, scale = on_plane(self.functional, frame.crs, frame.axes)
        else:
            functional, scale = in_units(self.functional, frame.axes)
        by = scale * factor("y", self.field_unit, frame.field)
        if by == 1:
            return dataclasses.replace(self, functional=functional, field_unit=frame.field)
        if self.likelihood is not None:
            raise ValueError(
                f"y: expected values of a field in {frame.field!r} like the others with a likelihood, whose parameters are "
                f"not converted, got {self.field_unit!r}; convert them first"
            )
        noise = None if self.noise is None else by * self.noise
        return dataclasses.replace(
            self, functional=functional, y=by * self.y, noise=noise, field_unit=frame.field
        )

    def take(self, index: Any) -> "Observations":
        """The observations at `index`, a mask or an array of numbers, with what goes with each of them."""
        rows = np.arange(len(self.y))[index]
        return dataclasses.replace(
            self,
            functional=self.functional[rows],
            y=self.y[rows],
            noise=None if self.noise is None else self.noise[rows],
            likelihood=None if self.likelihood is None else self.likelihood.take(rows),
            covariates=None if self.covariates is None else self.covariates.iloc[rows],
        )

    def plain(self) -> "Observations":
        """These observations as plain numbers, with units and names dropped."""
        return dataclasses.replace(
            self, functional=self.functional.given_in(()), field_unit="", axes=(), name=""
        )


class Data(Shown, eqx.Module):
    """Observations of one field, in blocks of one kind each. `+` joins two data sets."""

    blocks: tuple[Observations, ...]

    def __add__(self, other: "Data") -> "Data":
        if not isinstance(other, Data):
            raise ValueError(f"data: expected something made by observe(...), got {type(other).__name__}")
        if other.ndim != self.ndim:
            raise ValueError(
                f"data: expected functionals in {self.ndim} dimensions like the others, got {other.ndim}"
            )
        return Data(self.blocks + other.in_frame(self.frame).blocks)

    def _shown(self) -> tuple[str, dict[str, str]]:
        rows = {}
        for number, b in enumerate(self.blocks, 1):
            noise = "to be learned" if b.noise is None else between(b.noise)
            if b.likelihood is not None:
                noise = type(b.likelihood).__name__
            rows[f"block {number}"] = (
                f"{len(b.y):,} {type(b.functional).__name__}, y from {between(b.y)}, noise {noise}"
            )
        return f"Data: {len(self):,} observations in {self.ndim} dimension{'s' * (self.ndim > 1)}", rows

    def __len__(self) -> int:
        return sum(len(block.y) for block in self.blocks)

    @property
    def functionals(self) -> list[Functional]:
        """The observed functionals, one object for each block."""
        return [block.functional for block in self.blocks]

    @property
    def frame(self) -> Frame:
        """The units of the axes and of the field, set by the first block; the others are converted to them."""
        return Frame(self.units, self.blocks[0].field_unit, self.blocks[0].functional.crs)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes where places came in a table or an array; otherwise empty."""
        return self.blocks[0].axes

    @property
    def name(self) -> str:
        """The name of the field, where its values came in a column or an array with one; otherwise empty."""
        return self.blocks[0].name

    @property
    def units(self) -> Units:
        """The unit of each axis; empty for plain numbers."""
        return self.blocks[0].functional.units

    def in_frame(self, frame: Frame) -> "Data":
        """These data converted to other units; a ValueError if the units do not convert."""
        return Data(tuple(block.in_frame(frame) for block in self.blocks))

    def kept(self, mask: Bool[np.ndarray, " N"]) -> "Data":
        """The observations that `mask` marks."""
        parts = np.split(mask, np.cumsum([len(block.y) for block in self.blocks])[:-1])
        both = zip(self.blocks, parts, strict=True)
        return Data(tuple(block.take(part) for block, part in both if np.any(part)))

    def reordered(
        self, order_of: Callable[[Observations], Int[np.ndarray, " n"]]
    ) -> "tuple[Data, np.ndarray]":
        """The data with each block in the order that `order_of` gives, and the number that each observation had before.

        A user-defined functional that cannot be reordered stays as it is.
        """
        blocks, orders, begin = [], [], 0
        for block in self.blocks:
            order = order_of(block)
            part = block.take(order)
            if type(part.functional) is not type(block.functional):
                part, order = block, np.arange(len(order))
            blocks.append(part)
            orders.append(order + begin)
            begin += len(order)
        return Data(tuple(blocks)), np.concatenate(orders)

    def plain(self) -> "Data":
        """These data as plain numbers in the units of the frame."""
        named = self.frame != Frame() or any(block.axes or block.name for block in self.blocks)
        return Data(tuple(block.plain() for block in self.blocks)) if named else self

    def covariates(self) -> Any:
        """The tables that came with the observations, as one; a ValueError if some came without."""
        tables = [block.covariates for block in self.blocks]
        if any(table is None for table in tables):
            raise ValueError(
                "trend: expected a table with every observation, of whose columns the trend is made, got "
                "observe(...) without; give observe(..., covariates=table)"
            )
        import pandas as pd

        return pd.concat(tables, ignore_index=True)

    def without_covariates(self) -> "Data":
        """These data without the covariates in their tables."""
        if all(block.covariates is None for block in self.blocks):
            return self
        return Data(tuple(dataclasses.replace(block, covariates=None) for block in self.blocks))

    @property
    def ndim(self) -> int:
        return self.blocks[0].functional.ndim

    @property
    def dtype(self) -> np.dtype:
        """float32 if all values and coordinates are, float64 otherwise."""
        return np.result_type(*[a for b in self.blocks for a in (b.y.dtype, b.functional.dtype)])

    @property
    def y(self) -> Float[np.ndarray, " N"]:
        return np.concatenate([block.y for block in self.blocks])

    @property
    def noise_known(self) -> np.ndarray:
        """Whether each observation came with its noise."""
        return np.concatenate([np.full(len(b.y), b.noise is not None) for b in self.blocks])

    @property
    def gaussian(self) -> bool:
        """Whether the noise of all observations is Gaussian, at places that are certain."""
        return all(block.likelihood is None and not block.functional.uncertain for block in self.blocks)

    @property
    def derivative(self) -> bool:
        return any(block.functional.derivative for block in self.blocks)

    def noise_std(self, unknown: float | None) -> Float[np.ndarray, " N"]:
        """The noise std of every observation; `unknown` replaces those that were not given."""
        if unknown is None and not np.all(self.noise_known):
            raise ValueError(
                "noise: expected the noise of every observation, got observe(..., noise=None) and a GP without one; "
                "give noise= to observe or to GP, or call gp.learn(data) first"
            )
        fill = lambda b: np.full(len(b.y), unknown, self.dtype) if b.noise is None else b.noise
        return np.concatenate([fill(b) for b in self.blocks])

    def nodes(self, spacing: Any) -> Nodes:
        """All functionals in one set of nodes."""
        return Nodes.concatenate([block.functional.nodes(spacing) for block in self.blocks])


def observe(
    functional: Any,
    y: Any = None,
    noise: Any = None,
    likelihood: Likelihood | None = None,
    covariates: Any = None,
    *,
    kind: "Kind | None" = None,
) -> Data:
    """Measured values `y` of `functional`; `noise`: a standard deviation, one per observation, or None to learn it.

    In place of a functional may stand a GeoDataFrame, whose points are values, whose lines are integrals (`kind="averages"`:
    averages) and whose polygons are averages (`kind="totals"`: totals); an array of xarray, whose cells are values in their
    middles or with `kind="averages"` averages over cells; or a DataFrame of coordinates. `y` and `noise` may then be names
    of columns. Empty cells of an array are left out.

    `likelihood` is the distribution of y if the noise is not Gaussian: `Poisson(exposure=...)`, `StudentT()` and others.
    With additive noise `noise` is its scale; counts take no `noise`. Quantities of astropy and pint keep their unit, and `noise` is
    converted to the unit of y.

    `covariates` is a DataFrame with a row for each, for trends in named columns: `GP(..., trend="~ elevation")`. With a
    GeoDataFrame they are its other columns.
    """
    axes: tuple[str, ...] = ()
    name = y if isinstance(y, str) else getattr(functional if y is None else y, "name", None)
    if kind is not None or not isinstance(functional, Functional):
        from hipgp.model.tables import described

        functional, y, noise, covariates, axes = described(functional, y, noise, covariates, kind)
    values, unit = as_quantity("y", y, ndim=(1,))
    if values.shape != (len(functional),):
        raise ValueError(
            f"y: expected one value per functional, shape {(len(functional),)}, got {values.shape}"
        )
    _check_covariates(covariates, len(values))
    likelihood = _checked(likelihood, functional, values, noise)
    std = None if noise is None else _noise_std(noise, values, unit)
    unit = field_unit(functional, unit)
    field = not (functional.measure or functional.derivative) and (likelihood is None or likelihood.additive)
    name = (
        name if field and isinstance(name, str) else ""
    )  # of the field: y are values of it, not sums or counts
    return Data((Observations(functional, values, std, likelihood, unit, covariates, axes, name),))


def _check_covariates(covariates: Any, count: int) -> None:
    if covariates is not None and not (hasattr(covariates, "columns") and len(covariates) == count):
        got = f"{len(covariates)} rows" if hasattr(covariates, "columns") else type(covariates).__name__
        raise ValueError(f"covariates: expected a DataFrame with {count} rows like y, got {got}")


def _noise_std(noise: Any, y: Float[np.ndarray, " N"], unit: str) -> Float[np.ndarray, " N"]:
    """The noise std of each observation, in the unit of y."""
    std, noise_unit = as_quantity("noise", noise, ndim=(0, 1))
    std = (factor("noise", noise_unit, unit) * std).astype(y.dtype)
    if std.shape not in ((), y.shape):
        raise ValueError(f"noise: expected a number or one per observation, shape {y.shape}, got {std.shape}")
    if np.any(std <= 0):
        raise ValueError(f"noise: expected positive standard deviations, got {float(np.min(std))}")
    return np.broadcast_to(std, y.shape).copy()


def _checked(
    likelihood: Any, functional: Functional, y: Float[np.ndarray, " N"], noise: Any
) -> Likelihood | None:
    """Check a likelihood against the observations; the Gaussian one becomes None."""
    if likelihood is None:
        return None
    if not isinstance(likelihood, Likelihood):
        kind = (
            likelihood.__name__ + ", a class" if isinstance(likelihood, type) else type(likelihood).__name__
        )
        raise ValueError(f"likelihood: expected Poisson(...), StudentT(...), ..., got {kind}")
    if noise is not None and not likelihood.additive:
        raise ValueError(
            f"noise: expected None with {type(likelihood).__name__}, whose parameters set the scatter of y, got a value"
        )
    likelihood.check_parameters(len(y))
    likelihood.check(y)
    if functional.uncertain and not isinstance(likelihood, Gaussian):
        raise ValueError(
            f"likelihood: expected Gaussian noise at uncertain places, got {type(likelihood).__name__}; leave out the "
            "likelihood, or the std of the places"
        )
    return None if isinstance(likelihood, Gaussian) else likelihood


def count_repeated(data: Data) -> int:
    """The number of observations that repeat another exactly, in functional and in value."""
    found = 0
    for block in data.blocks:
        places = np.asarray(block.functional.places(), float).reshape(len(block.y), -1)
        rows = np.column_stack([places, np.asarray(block.y, float)])
        found += len(rows) - len(np.unique(rows, axis=0))
    return found


def check_dimension(functional: Functional, grid: Grid) -> None:
    """Raise a ValueError if a functional differs from the grid in dimensions."""
    if not isinstance(functional, Functional):
        raise ValueError(f"functional: expected Points, LineIntegrals, ..., got {type(functional).__name__}")
    if functional.ndim != grid.ndim:
        raise ValueError(
            f"grid: expected {functional.ndim} dimension{'s' * (functional.ndim > 1)} like the places, got {grid.ndim}"
            + (f"; write [[{', '.join('xyzt'[: grid.ndim])}]] for a single place" * (functional.ndim == 1))
        )


def check_inside(functional: Functional, grid: Grid) -> None:
    """Raise a ValueError if a functional differs from the grid in dimensions, or reaches beyond the grid."""
    check_dimension(functional, grid)
    places = functional.places()
    far = np.max(grid.outside(places), axis=1)
    out = np.flatnonzero(far > 0)
    if len(out):
        lower, upper = (f(places.reshape(-1, grid.ndim), axis=0) for f in (np.min, np.max))
        show = lambda v: "(" + ", ".join(f"{float(a):.6g}" for a in v) + ")"
        raise ValueError(
            f"data: expected places within the grid, got {len(out)} of {len(functional)} {type(functional).__name__} "
            f"that reach outside the grid (first: number {out[0]}; farthest: number {int(np.argmax(far))}, by "
            f"{float(np.max(far)):.4g}); cover them with "
            f"Grid.cover({show(np.minimum(lower, grid.lower))}, {show(np.maximum(upper, grid.upper))}, ...)"
        )


def check_differentiable(differentiable: int, observed: Data | Functional) -> None:
    """Raise a ValueError if derivatives are observed of a field that has none under this kernel."""
    if observed.derivative and differentiable < 1:
        raise ValueError(
            "kernel: expected one whose draws have a derivative (Matern32, Matern52, SquaredExponential, ...) for "
            "derivative data, got one without (Matern12, or Gneiting with alpha < 2)"
        )
