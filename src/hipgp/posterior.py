"""The posterior of the field given the data: `Posterior`, and `load` for maps from files."""

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal, overload

import equinox as eqx
import numpy as np
from jaxtyping import Float

from hipgp.batch import estimates
from hipgp.choices import observations
from hipgp.choices.domain import beyond, reaching
from hipgp.engines import EVIDENCE_PROBES, Estimate, FittedPosterior, Gradient, as_key
from hipgp.files import export, io, persistence
from hipgp.files.shapes import columns_of, places_and_shape
from hipgp.learning.learned import Learned
from hipgp.model import scaling
from hipgp.model.arguments import check_whole
from hipgp.model.coordinates import Units
from hipgp.model.covariates import Design, coefficient_table
from hipgp.model.data import Data
from hipgp.model.frames import Frame, plain_numbers
from hipgp.model.functionals import Functional, Points, as_functional
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import repeats
from hipgp.model.kernels import Kernel
from hipgp.model.labels import Labels
from hipgp.model.stream import Stream
from hipgp.model.sublattice import Sublattice
from hipgp.nonlinear.observed import new_observations, noise_of_all
from hipgp.predictions import Prediction, SampleOptions, StdMethod, StdOptions
from hipgp.runtime import compilations
from hipgp.runtime.progress import Progress
from hipgp.runtime.shown import Shown
from hipgp.scores import LeaveOut

if TYPE_CHECKING:
    from hipgp.model.geometry import Kind

compilations.keep()  # every use of the library goes through this module


class Posterior(Shown, eqx.Module):
    """The posterior of the field given the data: means, standard deviations and samples of any functional.

    The engine computes in units of 2^unit of y; `unit` is 0 unless the numbers are extreme (`scaling.py`). `kept` holds
    the std and samples that a map was saved with, `frame` the units of the data. `shown` are the points of the engine's grid
    that are the grid which was asked for.
    """

    engine: FittedPosterior
    learned: Learned | None = None  # how the kernel was learned, if it was
    named: Labels | None = eqx.field(static=True, default=None)
    unit: int = eqx.field(static=True, default=0)
    kept: dict[str, np.ndarray] = eqx.field(default_factory=dict)
    frame: Frame = eqx.field(static=True, default=Frame())
    design: Design | None = eqx.field(static=True, default=None)  # of a trend in named columns
    shown: Sublattice = eqx.field(static=True, default=Sublattice())

    def _shown(self) -> tuple[str, dict[str, str]]:
        info = self.diagnostics
        rows = {"kernel": repr(self.kernel), "grid": repr(self.grid), "engine": str(info.get("engine"))}
        rows |= {} if self.noise is None else {"noise": f"{self.noise:.4g}"}
        rows |= {"observations": f"{info['observations']:,}"} if "observations" in info else {}
        rows |= {"from the exact posterior": f"{info['kl_nats']:.2g} nats"} if "kl_nats" in info else {}
        rows |= {} if self.learned is None else self.learned.labelled_rows
        return f"Posterior of {self.labels.value()}", rows

    @property
    def labels(self) -> Labels:
        """Names and units for files and plots: those given to `labelled`, otherwise those of the data."""
        return Labels.of_data(self.grid.ndim, self.frame) if self.named is None else self.named

    @property
    def units(self) -> Units:
        """The unit of each axis, such as "kpc" or "days since 2020-01-01"; empty where coordinates are plain numbers."""
        return self.frame.axes

    @property
    def crs(self) -> str:
        """The plane of the coordinates, as PROJ names it, if the data are on the Earth; otherwise ""."""
        return self.frame.crs

    def labelled(
        self, axes: Any = None, axis_units: Any = None, name: str | None = None, unit: str | None = None
    ) -> "Posterior":
        """This posterior with names and units: `labelled(("X", "Y"), "kpc", "density", "mag/kpc")`.

        Each is a single line of at most 200 characters; an axis cannot be called mean, std, sample or samples.
        """
        labels = self.labels.changed(self.frame, axes, axis_units, name, unit)
        return dataclasses.replace(self, named=labels)

    def plot(self, ax: Any = None, *, std: bool = True, data: bool = True) -> Any:
        """Draw the posterior with matplotlib's pyplot, or on `ax`, and return the axes, an array where there are several.

        A curve with its 95% band, maps of mean and standard deviation, or slices of them, predicted on a grid fine enough
        for a picture, with the data on top. On a given `ax` a map is of the mean alone.
        """
        from hipgp import display

        return display.axes(self, ax, std, data)

    def to_xarray(self, std: Any = None, samples: Any = None) -> Any:
        """The map as an xarray.Dataset with coordinates and units: the mean, and std and samples if given.

        A map that was loaded with std or samples has them by default; False leaves them out. `std=True` computes the
        standard deviation if the map has none.
        """
        return io.dataset(self.grid, self.labels, export.fields_of(self, std, samples))

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        std: Any = True,
        interval: float | None = None,
        samples: Any = None,
        crs: str | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the map for other programs, as NetCDF, zarr, GeoTIFF or FITS by the ending: .nc, .zarr, .tif or .fits.

        `interval=0.95` adds the ends of 95% intervals, `crs` such as "EPSG:32614" says which coordinates the axes are.
        """
        export.check_ending(path, self.grid.ndim)  # before the work
        io.check_free(path, overwrite)
        export.described(crs or self.crs or "EPSG:4326")
        found = io.dataset(self.grid, self.labels, export.fields_of(self, std, samples, interval))
        export.write(path, found, self.grid, self.labels, crs or self.crs or None, overwrite)

    def to_fits(self, path: str | os.PathLike[str], std: Any = None, *, overwrite: bool = False) -> None:
        """Write a FITS cube with a linear WCS (needs astropy): the mean and, if given, std as an extension."""
        io.write_fits(path, self.to_xarray(std), overwrite)

    def save(
        self, path: str | os.PathLike[str], std: Any = None, samples: Any = None, *, overwrite: bool = False
    ) -> None:
        """Write the posterior to one file, which `load` reads; std and samples are stored with it if given.

        An existing file is replaced only with `overwrite=True`, and only once the new one is complete.
        """
        io.check_free(path, overwrite)  # before the work
        arrays, model = persistence.pack(self)
        io.write(path, io.Record(self.to_xarray(std, samples), arrays, model, self.labels), overwrite)

    @property
    def kernel(self) -> Kernel:
        return scaling.scaled_kernel(self.engine.kernel, self.unit) if self.unit else self.engine.kernel

    @property
    def grid(self) -> Grid:
        return self.shown.grid(self.engine.grid)

    @property
    def noise(self) -> float | None:
        return scaling.scaled_noise(self.engine.noise, self.unit)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """The engine's report: iterations, KL to the exact posterior on the grid, clipped mass, seconds, sizes."""
        return self.engine.diagnostics

    @property
    def mean(self) -> Float[np.ndarray, "..."]:
        """The posterior mean at the grid points, in the grid's shape."""
        return np.ldexp(self.shown.of(self.engine.grid_mean()), self.unit)

    @overload
    def std(
        self,
        method: StdMethod = ...,
        *,
        samples: int = ...,
        key: Any = ...,
        progress: bool = ...,
        return_error: Literal[False] = ...,
    ) -> np.ndarray: ...

    @overload
    def std(
        self,
        method: StdMethod = ...,
        *,
        samples: int = ...,
        key: Any = ...,
        progress: bool = ...,
        return_error: Literal[True],
    ) -> tuple[np.ndarray, np.ndarray | None]: ...

    def std(
        self,
        method: StdMethod = "auto",
        *,
        samples: int = 64,
        key: Any = 0,
        progress: bool = True,
        return_error: bool = False,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray | None]:
        """The posterior standard deviation at the grid points, in the grid's shape; `method` is `std` of `predict`.

        With `return_error` also its Monte Carlo error, which is None unless it was estimated from samples.
        """
        with Progress("standard deviations", progress) as bar:
            found = self.engine.grid_std(StdOptions(method, samples, key, None, bar.done))
        std, error = (None if a is None else np.ldexp(self.shown.of(a), self.unit) for a in found)
        return (std, error) if return_error else std  # type: ignore[return-value]

    def interval(self, p: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends on the grid of the central interval that holds the field with probability `p`."""
        if not 0 < p < 1:
            raise ValueError(f"p: expected a probability between 0 and 1, got {p!r}")
        ends = (self.engine.grid_quantile(share) for share in (0.5 * (1 - p), 0.5 * (1 + p)))
        lower, upper = (np.ldexp(self.shown.of(end), self.unit) for end in ends)
        return lower, upper

    def predict(
        self,
        functional: Any,
        std: StdMethod = "auto",
        *,
        samples: int = 64,
        key: Any = 0,
        columns: Any = None,
        noisy: Any = False,
        noise: Any = None,
        kind: "Kind | None" = None,
        progress: bool = True,
    ) -> Any:
        """Mean and std of any functional, observed or not; an array of places means Points.

        On a DataFrame with the axes' columns it is a DataFrame with the columns mean and std more, on a grid of xarray, with
        the axes' coordinates, a Dataset. On a GeoDataFrame it is a GeoDataFrame: of values at points, of integrals along
        lines and averages over polygons, or what `kind` says ("averages", "totals").

        `std` chooses the algorithm for standard deviations: "vecchia" conditions on the nearest observations only and
        is deterministic, "samples" takes the mean square error over simulated data and reports its Monte Carlo error,
        and "exact" solves for each functional or factors once. "auto" takes "vecchia" for points given points, and for
        lines given lines from the same place, where the nearest observations carry nearly all the information; otherwise
        whichever of "exact" and "samples" needs fewer products. `columns` holds the trend columns of these functionals,
        if the trend was given as columns.

        With `noisy=True` the prediction is of new observations: how the data scatter is added, with the `noise` of the data
        or that which is given. A likelihood, as in `noisy=Poisson(exposure=2.0)`, says how the new ones do.
        """
        at, shaped = places_and_shape(functional, self.labels, self.crs, kind)
        if self.design is not None:
            columns = self.design.matrix(functional if columns is None else columns)
        functional, longer = self._plain(at)
        estimates.check_places(functional)
        found = self._predicted(functional, StdOptions(std, samples, key, columns), progress)
        found = self._in_unit(found, functional, longer)
        if noisy is not False:
            of_data = noise_of_all(self.engine.observations(), self.noise, self.unit)
            found = new_observations(found, self.engine, noisy, noise, of_data)
        return shaped(found)

    def _predicted(self, functional: Functional, how: StdOptions, progress: bool) -> Prediction:
        """The prediction in the engine's unit, at points beyond its grid from the data themselves where that is enough."""
        default = how.method == "auto" and how.columns is None
        default &= self.engine.method.linear and not repeats(self.kernel)
        if default and isinstance(functional, Points) and beyond(self.engine, functional):
            return self.engine.predict_beyond(functional.x)
        engine = reaching(self.engine, functional, progress)
        with Progress("standard deviations", progress) as bar:
            return engine.predict(functional, how._replace(report=bar.done))

    def sample(
        self, count: int, key: Any = 0, at: Any = None, columns: Any = None, progress: bool = True
    ) -> np.ndarray:
        """`count` draws from the posterior at the grid points, (count, *grid.shape), or of functionals `at`, (count, N)."""
        check_whole("count", count, 1)
        columns = columns if self.design is None or at is None else self.design.matrix(columns)
        at, longer = (None, 1.0) if at is None else self._plain(at)
        engine = self.engine if at is None else reaching(self.engine, at, progress)
        itemsize = np.dtype(self.engine.dtype).itemsize
        estimates.check_draws(count, engine.grid.size if at is None else len(at), itemsize)
        with Progress("drawing", progress) as bar:
            drawn = engine.sample(SampleOptions(count, as_key(key), columns, bar.done), at)
        return np.ldexp(self.shown.of(drawn) if at is None else drawn, self.unit) / longer

    @property
    def coefficients(self) -> Any:
        """The coefficients of the trend as a pandas table: name, estimate, standard error, and the ends of the 95% interval.

        Of "linear" the slopes are per unit of each axis, and the constant is the trend's value in the middle of the grid.
        """
        found = self.engine.trend_fit()
        names = self.labels.axes if self.design is None else self.design.names
        return coefficient_table(*found, self.grid, names, 2.0**self.unit)

    def log_evidence(self, probes: int = EVIDENCE_PROBES, key: Any = 0) -> Estimate:
        """The log-probability of the data under this model, with its Monte Carlo error, for model comparison.

        The variational engine returns its lower bound.
        """
        found = self.engine.log_evidence(probes, as_key(key))
        powers = self.unit * self.diagnostics["observations"] if self.unit else 0  # a density in each of y
        return found._replace(value=found.value - powers * float(np.log(2)))

    def log_evidence_gradient(self, probes: int = EVIDENCE_PROBES, key: Any = 0) -> Gradient:
        """The gradient of the log evidence in the logarithm of each parameter, by name, from `Exact` and `Batch`.

        `Batch` estimates it from random probes, with an error that falls as the square root of their number.
        """
        return self.engine.log_evidence_gradient(probes, as_key(key))

    def leave_out(self, groups: Any = None) -> LeaveOut:
        """Leave-one-out predictions of the observations, noise included, without a refit, and their scores.

        Observations with the same label in `groups` are left out together. Kernel and noise are not learned again. The
        exact engine is exact here; `std_error` of the result bounds the error of the batch engine.
        """
        return self.engine.leave_out(groups).in_unit(self.unit)

    def update(self, more: Any, *, columns: Any = None, progress: bool = True) -> "Posterior":
        """The certified posterior with `more` data, in a fraction of a new fit's steps; kernel and noise stay.

        A map of `observe_from(...)` takes more from another stream, whose sums are added to its own.

        `columns` are the user's own trend columns of the new observations; of a trend in named columns, a table, or that
        which came with them.
        """
        if isinstance(more, Stream):
            return dataclasses.replace(self, engine=self.engine.with_more(more, progress), kept={})
        if self.design is not None and isinstance(more, Data):
            columns = self.design.matrix(more.covariates() if columns is None else columns)
            more = more.without_covariates()
        engine = observations.with_more(self.engine, more, self.frame, self.unit, columns, progress)
        return dataclasses.replace(self, engine=engine, kept={})

    def without(self, index: Any, *, progress: bool = True) -> "Posterior":
        """The certified posterior without the observations `index`: their numbers in the order given, or a mask of all."""
        engine = observations.without(self.engine, index, progress)
        return dataclasses.replace(self, engine=engine, kept={})

    def _plain(self, at: Any) -> tuple[Functional, float]:
        """A functional in the units of the data, as plain numbers, and the factor by which that scales it (`in_units`)."""
        return plain_numbers(as_functional(at), self.frame, self.labels.axis_units)

    def _in_unit(self, found: Prediction, functional: Functional, longer: float) -> Prediction:
        """The prediction in the unit of y, with the coordinates of its functionals."""
        if self.unit != 0 or longer != 1:
            found = found.in_unit(self.unit, longer)
        return found.placed(columns_of(functional, self.labels.axes, self.units))


def load(path: str | os.PathLike[str]) -> Posterior:
    """Read a saved posterior, which predicts any functional as it did before.

    A damaged or incomplete file, or one that is not a map, raises a ValueError that names it.
    """
    record = io.read(path)
    with io.damaged(path):
        fields = record.fields
        kept = {str(name): np.asarray(fields[name]) for name in fields.data_vars if name != "mean"}
        return Posterior(named=record.labels, kept=kept, **persistence.unpack(record.arrays, record.model))
