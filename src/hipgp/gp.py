"""The model, what it learns, and what it says: GP, Posterior, Prediction.

>>> import numpy as np, hipgp as hg
>>> x = np.linspace(0.0, 1.0, 50)
>>> gp = hg.GP(hg.Matern52(lengthscale=0.3), hg.Grid.cover(0.0, 1.0, shape=64))
>>> post = gp.condition(hg.observe(hg.Points(x), np.sin(6 * x), noise=0.05))
>>> bool(np.abs(post.predict(hg.Points([0.5])).mean[0] - np.sin(3.0)) < 0.05)
True
"""

import os
import warnings
from typing import Any, Literal, overload

import equinox as eqx
import numpy as np
from jaxtyping import Float

from hipgp.batch import estimates
from hipgp.batch.engine import WRAPPED, Batch
from hipgp.engines import (
    EVIDENCE_PROBES,
    Estimate,
    FittedPosterior,
    Gradient,
    Method,
    Prediction,
    Problem,
    StdMethod,
    StdOptions,
    as_key,
)
from hipgp.files import io, persistence
from hipgp.files.labels import Labels
from hipgp.learning.search import Learned
from hipgp.learning.units import LearnOptions
from hipgp.model import scaling
from hipgp.model.data import Data
from hipgp.model.functionals import Functional
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.links import Link, as_link
from hipgp.model.trend import Trend
from hipgp.nonlinear.engine import suited
from hipgp.nonlinear.learning import learn_by
from hipgp.runtime.precision import as_float
from hipgp.runtime.progress import Progress
from hipgp.weights.toeplitz import check_torus


class GP(eqx.Module):
    """A Gaussian-process prior with inducing points on a grid.

    `noise` is the standard deviation of observations that come without one; `trend` is None, "constant", "linear" or
    the user's own columns, (N, p). With a `link` g ("exp", "softplus", "logistic" or Link(g)) the field is g(f), f with
    this prior and trend; `parameters` are those of likelihoods, by name, that the data leave open.
    """

    kernel: Kernel
    grid: Grid
    noise: float | None
    trend: Trend
    link: Link
    parameters: dict[str, float]
    learned: Learned | None

    def __init__(
        self,
        kernel: Kernel,
        grid: Grid,
        noise: float | None = None,
        trend: Any = None,
        link: Any = None,
        parameters: dict[str, float] | None = None,
    ):
        if not isinstance(kernel, Kernel):
            raise ValueError(f"kernel: expected a kernel such as Matern32(), got {type(kernel).__name__}")
        if not isinstance(grid, Grid):
            raise ValueError(f"grid: expected a Grid, got {type(grid).__name__}")
        kernel.check_dimension(grid.ndim)
        if noise is not None:
            noise = float(as_float("noise", noise, ndim=(0,)))
            if noise <= 0:
                raise ValueError(f"noise: expected a positive standard deviation, got {noise}")
        self.kernel, self.grid, self.noise = kernel, grid, noise
        self.trend = trend if isinstance(trend, Trend) else Trend(trend)
        self.link, self.parameters = as_link(link), dict(parameters or {})
        self.learned = None

    def condition(
        self,
        data: Data,
        method: Method | None = None,
        *,
        progress: bool = True,
        checkpoint: Any = None,
    ) -> "Posterior":
        """The posterior given `data`, by the batch engine unless told otherwise.

        `checkpoint` names a file that a long batch solve keeps up to date and resumes from.
        """
        method = suited(Batch() if method is None else method, data, self.link, self.parameters)
        if not isinstance(method, Method):
            kind = type(method).__name__
            raise ValueError(f"method: expected Batch(...), Variational(...) or Exact(...), got {kind}")
        self._check(data, method)
        problem = Problem(self.kernel, self.grid, data, self.noise, self.trend)
        if not method.linear:
            return Posterior(method.condition(problem, progress, checkpoint), self.learned)
        scaling.warn_if_far_from_zero(data, self.grid, self.trend, self.kernel)
        unit = scaling.exponent(self.kernel, data, self.noise)
        kernel, data, noise = scaling.scaled(self.kernel, data, self.noise, -unit)
        problem = Problem(kernel, self.grid, data, noise, self.trend)
        return Posterior(method.condition(problem, progress, checkpoint), self.learned, unit=unit)

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
        """A new GP with kernel, noise (where unknown) and trend learned from `data`; how it went is in `.learned`.

        Starting values come from the data unless `start="kernel"`. `bounds` limits parameters by name, e.g.
        {"lengthscale": (0.1, 10), "Matern32.variance": (1e-3, 1)}. `polish` says whether the last steps are taken on
        the exact bound, which needs solves; by default where observations and grid points are at most 100,000 in
        all. `checkpoint` names a file to go on from after a stop; it stays when learning is done.
        """
        self._check(data, Batch())
        if start not in ("data", "kernel"):
            raise ValueError(f'start: expected "data" or "kernel", got {start!r}')
        how = LearnOptions(start, bounds, key, polish, progress, checkpoint)
        problem = Problem(self.kernel, self.grid, data, self.noise, self.trend)
        method = suited(Batch(), data, self.link, self.parameters)
        if method.linear:
            scaling.warn_if_far_from_zero(data, self.grid, self.trend, None)
            if polish:  # the exact bound alone works on the grid
                check_torus(self.kernel, self.grid, WRAPPED)
        learned, parameters = learn_by(method, problem, how)
        if learned.undetermined:
            warnings.warn(
                f"the data do not determine {', '.join(learned.undetermined)}: the likelihood is flat there or best at "
                "a bound; give bounds, a simpler kernel, or more data",
                stacklevel=3,
            )
        gp = GP(learned.kernel, self.grid, learned.noise, self.trend, self.link, parameters)
        return eqx.tree_at(lambda g: g.learned, gp, learned, is_leaf=lambda a: a is None)

    def _check(self, data: Data, method: Method) -> None:
        if not isinstance(data, Data):
            raise ValueError(f"data: expected something made by observe(...), got {type(data).__name__}")
        for block in data.blocks:
            method.check(self.kernel, self.grid, block.functional)


class Posterior(eqx.Module):
    """The field after the data: means, standard deviations and samples of any functional.

    The engine computes in units of 2^unit of y; 0 unless the numbers are extreme (`scaling.py`).
    """

    engine: FittedPosterior
    learned: Learned | None = None  # how the kernel was found, where it was learned
    named: Labels | None = eqx.field(static=True, default=None)
    unit: int = eqx.field(static=True, default=0)

    @property
    def labels(self) -> Labels:
        """Names and units, for files and pictures."""
        return Labels.of(self.grid.ndim) if self.named is None else self.named

    def labelled(
        self, axes: Any = None, axis_units: Any = None, name: str | None = None, unit: str | None = None
    ) -> "Posterior":
        """The same posterior with names and units: `labelled(("X", "Y"), "kpc", "density", "mag/kpc")`.

        Each is one line of at most 200 characters; an axis cannot be called mean, std, sample or samples.
        """
        labels = Labels.of(self.grid.ndim, axes, axis_units, name, unit)
        return Posterior(self.engine, self.learned, labels, self.unit)

    def to_xarray(self, std: Any = None, samples: Any = None) -> Any:
        """The map as an xarray.Dataset with coordinates and units: the mean, and std and draws where given."""
        given = {"mean": self.mean, "std": std, "samples": samples}
        fields = {name: np.asarray(values) for name, values in given.items() if values is not None}
        return io.dataset(self.grid, self.labels, fields)

    def to_fits(self, path: str | os.PathLike[str], std: Any = None, *, overwrite: bool = False) -> None:
        """A FITS cube with a linear WCS (needs astropy): the mean, and std as an extension where given."""
        io.write_fits(path, self.to_xarray(std), overwrite)

    def save(
        self, path: str | os.PathLike[str], std: Any = None, samples: Any = None, *, overwrite: bool = False
    ) -> None:
        """Write the whole map into one file, which `load` brings back; give std and draws to keep them with it.

        A file of that name is replaced only with `overwrite=True`, and only once the new one is complete.
        """
        io.check_free(path, overwrite)  # before the work
        arrays, model = persistence.pack(self.engine, self.learned)
        model["unit"] = self.unit
        io.write(path, io.Record(self.to_xarray(std, samples), arrays, model, self.labels), overwrite)

    @property
    def kernel(self) -> Kernel:
        return scaling.scaled_kernel(self.engine.kernel, self.unit) if self.unit else self.engine.kernel

    @property
    def grid(self) -> Grid:
        return self.engine.grid

    @property
    def noise(self) -> float | None:
        return scaling.scaled_noise(self.engine.noise, self.unit)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """What the engine did: iterations, KL to the exact posterior, clipped mass, seconds, sizes."""
        return self.engine.diagnostics

    @property
    def mean(self) -> Float[np.ndarray, "..."]:
        """The posterior mean on the grid, in its shape."""
        return np.ldexp(self.engine.grid_mean(), self.unit)

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
        """The posterior standard deviation on the grid, in its shape; `method` as in `predict`.

        With `return_error`, also its Monte Carlo error where it was estimated from samples, and None otherwise.
        """
        with Progress("standard deviations", progress) as bar:
            std, error = self.engine.grid_std(StdOptions(method, samples, key, None, bar.done))
        std = np.ldexp(std, self.unit)
        error = None if error is None else np.ldexp(error, self.unit)
        return (std, error) if return_error else std

    def predict(
        self,
        functional: Functional,
        std: StdMethod = "auto",
        *,
        samples: int = 64,
        key: Any = 0,
        columns: Any = None,
        progress: bool = True,
    ) -> Prediction:
        """Mean and std of any functional, observed or not.

        `std` says how: "vecchia" (deterministic, given the nearest observations), "samples" (the mean square error
        over simulated data, with its Monte Carlo error stated) or "exact" (one solve each, or one factorisation); "auto" is the
        first for points given points and for lines given such from the same place, of which the nearest observations
        tell nearly all; otherwise the last or the second, whichever takes fewer products. `columns` are the user's own
        trend columns for these functionals.
        """
        estimates.check_places(functional)
        self.engine.method.check(self.kernel, self.grid, functional)
        with Progress("standard deviations", progress) as bar:
            found = self.engine.predict(functional, StdOptions(std, samples, key, columns, bar.done))
        return self._in_unit(found)

    def sample(
        self,
        count: int,
        key: Any = 0,
        at: Functional | None = None,
        columns: Any = None,
        progress: bool = True,
    ) -> np.ndarray:
        """`count` draws of the posterior: (count, *grid.shape), or (count, N) of the functionals `at`."""
        if count < 1:
            raise ValueError(f"count: expected a positive number of draws, got {count}")
        if at is not None:
            self.engine.method.check(self.kernel, self.grid, at)
        itemsize = np.dtype(self.engine.dtype).itemsize
        estimates.check_draws(count, self.grid.size if at is None else len(at), itemsize)
        with Progress("drawing", progress) as bar:
            return np.ldexp(self.engine.sample(count, as_key(key), at, columns, bar.done), self.unit)

    def log_evidence(self, probes: int = EVIDENCE_PROBES, key: Any = 0) -> Estimate:
        """The log-probability of the data under this model, with its Monte Carlo error: to choose between models.

        Of the variational engine its bound, which is below it.
        """
        found = self.engine.log_evidence(probes, as_key(key))
        if self.unit == 0:
            return found
        per_unit = self.diagnostics["observations"] * self.unit * float(np.log(2))  # a density in each of y
        return Estimate(found.value - per_unit, found.error)

    def log_evidence_gradient(self, probes: int = EVIDENCE_PROBES, key: Any = 0) -> Gradient:
        """The gradient of the log evidence in the logarithm of each parameter, by name, from `Exact` and `Batch`.

        That of `Batch` is an estimate from random probes, whose error falls with the root of their number.
        """
        return self.engine.log_evidence_gradient(probes, as_key(key))

    def leave_one_out(self) -> Prediction:
        """Mean and std of each observed value, its noise included, given all the others; `Exact` alone gives it."""
        return self._in_unit(self.engine.leave_one_out())

    def _in_unit(self, found: Prediction) -> Prediction:
        if self.unit == 0:
            return found
        return Prediction(*(None if a is None else np.ldexp(a, self.unit) for a in found))  # type: ignore[arg-type]


def load(path: str | os.PathLike[str]) -> Posterior:
    """The map that was saved; it predicts any functional as it did before.

    A file that is damaged, incomplete or not a map is a ValueError that names it.
    """
    record = io.read(path)
    with io.damaged(path):
        engine, learned = persistence.unpack(record.arrays, record.model)
        return Posterior(engine, learned, record.labels, int(record.model["unit"]))
