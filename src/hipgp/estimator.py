"""HIPGPRegressor: a field from its values at points, in scikit-learn's conventions.

    >>> import numpy as np
    >>> from hipgp.estimator import HIPGPRegressor
    >>> x = np.linspace(0.0, 1.0, 60)[:, None]
    >>> model = HIPGPRegressor().fit(x, np.sin(6 * x[:, 0]))
    >>> mean, std = model.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(3.0)) < 0.02)
    True

The automatic grid covers the data with a margin and has a few points to each learned lengthscale. Predictions beyond the
grid use the covariance with the data directly: with distance from the data they approach the trend, and their standard
deviation approaches that of the prior, at the rate of the kernel.
"""

import warnings
from typing import Any, Literal, Self

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from hipgp.choices.domain import grown, in_step
from hipgp.engines import Method
from hipgp.exact import Exact
from hipgp.gp import GP
from hipgp.model.data import Data
from hipgp.model.estimators import GridEstimator
from hipgp.model.features import Weighted, as_columns, places
from hipgp.model.frames import Frame
from hipgp.model.functionals import Points
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import shortest_lengthscale
from hipgp.model.kernels import Kernel, Matern32
from hipgp.model.likelihood import Likelihood
from hipgp.model.quantities import split
from hipgp.model.scaling import scaled_data
from hipgp.runtime.callers import warn_caller

MOST_COLUMNS = 4
MOST_EXACT = 4_000  # observations of which joint covariances are computed
FEWEST_POINTS = 8  # per axis of an automatic grid


class HIPGPRegressor(GridEstimator, RegressorMixin, BaseEstimator):
    """Gaussian-process regression on inducing points on a grid, for 1 to 4 columns and very many rows.

    Parameters
    ----------
    kernel : Kernel, "auto" or None
        In the units of X. None: Matern32 with one lengthscale per column. "auto": chosen by log evidence, see `GP`.
    noise : float or None
        Standard deviation of the observations' noise; None: learned.
    trend : None, "constant" or "linear"
        Estimated together with the field.
    learn : bool
        Learn the kernel's parameters (and the noise, if None) from the data; the values in `kernel` do not matter. With
        False, `kernel` and `noise` are used as given.
    grid : Grid or None
        None: covers the data, with `points_per_lengthscale` and `margin`.
    points_per_lengthscale : float
        Resolution of the automatic grid along each axis; the grid is refined if it proves too coarse for the data.
    margin : float
        How far the automatic grid reaches beyond the data on every side, as a fraction of their range.
    max_grid_points : int
        The automatic grid is made coarser if it would have more points.
    method : Batch, Exact or None
        Settings of the engine; None: the exact engine up to a few thousand observations, the batch engine beyond.
    link : None, "exp", "softplus", "logistic" or Link(g)
        The field is g(f), such as exp(f), which is positive.
    likelihood : Likelihood or None
        How y scatters about the field: Poisson(), StudentT(), ...; None: Gaussian noise. Parameters are numbers, or learned.
    alpha : float, array (N,) or None
        The variance of the noise, of all observations or of each, as in GaussianProcessRegressor; in place of `noise`.
    random_state : int
        Seed of the random order of the data in learning.

    Attributes
    ----------
    kernel_, noise_, grid_ : the learned (or given) kernel and noise, and the grid.
    parameters_ : the likelihood's learned parameters, by name.
    units_ : the unit of each column, such as "days since 2020-01-01"; empty where X are plain numbers.
    crs_ : the plane of columns called lon and lat, in km about their middle, as PROJ names it; "" for other columns.
    gp_ : the GP; `gp_.learned` holds the course of learning and the standard error of each parameter.
    posterior_ : the Posterior, which predicts any functional of the field: slopes, integrals, averages.
    """

    def __init__(
        self,
        kernel: Kernel | Literal["auto"] | None = None,
        *,
        noise: float | None = None,
        trend: Literal["constant", "linear"] | None = "constant",
        learn: bool = True,
        grid: Grid | None = None,
        points_per_lengthscale: float = 6.0,
        margin: float = 0.05,
        max_grid_points: int = 100_000,
        method: Method | None = None,
        random_state: int = 0,
        link: Any = None,
        likelihood: Likelihood | None = None,
        alpha: Any = None,
    ):
        super().__init__(
            kernel, trend=trend, learn=learn, grid=grid, points_per_lengthscale=points_per_lengthscale, margin=margin,
            max_grid_points=max_grid_points, method=method, random_state=random_state,
        )  # fmt: skip
        self.noise = noise
        self.link = link
        self.likelihood = likelihood
        self.alpha = alpha

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn the kernel from X, (N, D), and y, (N,), and condition on them, all in float64.

        Columns of dates become days since the first date; quantities of astropy and pint become numbers in their unit. An observation of
        weight w counts as w of them: its noise has variance noise^2 / w, or alpha / w, also where the noise is learned;
        weight zero leaves it out.
        """
        X, plane = as_columns(X, None)
        self.units_, self.crs_ = plane.axes, plane.crs
        y = split(y)[0]
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        columns = X.shape[1]
        if columns > MOST_COLUMNS:
            raise ValueError(
                f"X: expected 1 to {MOST_COLUMNS} columns (features), got {columns}: the inducing points lie on a "
                "grid; choose columns, or reduce them in a Pipeline (PCA(n_components=3), say)"
            )
        self._check_settings()
        kernel = Matern32(lengthscale=np.ones(columns)) if self.kernel is None else self.kernel
        y, noise = np.asarray(y, np.float64), self._noise_std(y)
        measured = Weighted.of(X, y, noise, sample_weight, self._frame(), self.likelihood)
        X, parameters = measured.X, {}
        self.kernel_: Kernel
        if self.learn:
            default = self.method is None and self.link is None and self.likelihood is None
            grid = None if default else self._learning_grid(X)
            start = GP(kernel, grid, trend=self.trend, link=self.link)
            learned = start.learn(measured.to_learn(), key=self.random_state, progress=False)
            self.kernel_, self.noise_ = learned.kernel, self.noise if learned.noise is None else learned.noise
            parameters = learned.parameters
        else:
            assert not isinstance(kernel, str)  # as `_check_settings` made sure
            learned, self.kernel_, self.noise_ = None, kernel, self.noise
        self.parameters_ = parameters
        self._condition(
            measured.data(self.noise_), self._automatic_grid(X) if self.grid is None else self.grid, learned
        )
        return self

    def _frame(self) -> Frame:
        return Frame(self.units_, "", self.crs_)

    def _noise_std(self, y: np.ndarray) -> Any:
        """The standard deviation of the noise: one, one for each observation, or None to learn it."""
        if self.alpha is None:
            return self.noise
        if self.noise is not None:
            raise ValueError(
                f"alpha: expected None with a noise, got both; alpha = noise^2 = {self.noise**2:.4g}"
            )
        alpha = np.asarray(self.alpha, float)
        if alpha.shape not in ((), y.shape) or not np.all(alpha > 0):
            raise ValueError(
                f"alpha: expected a positive variance, or one for each of {len(y)} observations, got shape {alpha.shape}"
                + ("" if np.all(alpha > 0) else f" with {float(np.min(alpha)):g}")
            )
        return np.sqrt(alpha)

    def _condition(self, data: Data, grid: Grid, learned: GP | None) -> None:
        """Condition on the data; an automatic grid that proves too coarse is refined, up to `max_grid_points`."""
        for last in (False, False, True):
            gp = self._gp(grid)
            if learned is not None:
                gp = eqx.tree_at(lambda g: g.learned, gp, learned.learned, is_leaf=lambda a: a is None)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                posterior = gp.condition(data, self._method(), progress=False)
            finer = _finer(grid, posterior.diagnostics.get("grid_needed"), self.max_grid_points)
            if last or finer is None or self.grid is not None:
                break
            grid = finer
        self.grid_, self.gp_, self.posterior_ = grid, gp, posterior
        for warning in caught:
            warn_caller(warning.message)

    def _gp(self, grid: Grid) -> GP:
        return GP(self.kernel_, grid, self.noise_, self.trend, self.link, self.parameters_)

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """The posterior mean at X and, with `return_std`, the standard deviation, both without observation noise.

        With `return_cov` it is the mean and the joint covariance, (N, N), which is computed exactly from up to 4,000
        observations.
        """
        check_is_fitted(self)
        if return_std and return_cov:
            raise RuntimeError(
                "return_cov: expected return_std=False with it, got both; its diagonal has the variances"
            )
        X = validate_data(self, as_columns(X, self._frame())[0], reset=False, dtype=np.float64)
        mean, std = self.posterior_.engine.at_points(X, return_std)
        unit = self.posterior_.unit
        if return_cov:
            return np.ldexp(mean, unit), self._covariance(X)
        return (np.ldexp(mean, unit), np.ldexp(std, unit)) if std is not None else np.ldexp(mean, unit)

    def _covariance(self, X: np.ndarray) -> Float[np.ndarray, "N N"]:
        engine: Any = self.posterior_.engine
        if engine.method.on_grid:
            problem = engine.conditioned_on() if engine.method.linear else None
            if problem is None or len(problem.data) > MOST_EXACT:
                raise ValueError(
                    f"return_cov: expected at most {MOST_EXACT:,} observations with Gaussian noise and no link, got others; "
                    "use the covariance of draws: np.cov(model.sample_y(X, 500))"
                )
            engine = Exact().condition(problem, progress=False)
        return np.ldexp(engine.covariance(Points(X)), 2 * self.posterior_.unit)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Float[np.ndarray, "N S"]:
        """`n_samples` joint draws of the field at X, (N, n_samples), without observation noise.

        If X reaches beyond the grid, the posterior is computed again on a grid that covers X.
        """
        check_is_fitted(self)
        X = validate_data(self, as_columns(X, self._frame())[0], reset=False, dtype=np.float64)
        key = int(check_random_state(random_state).randint(2**31 - 1))
        posterior = self.posterior_
        if np.any(self.grid_.outside(X) > 0):
            instead = f"draw elsewhere, or raise max_grid_points (now {self.max_grid_points})"
            wide = grown(self.grid_, X, 10 * self.max_grid_points, "X", instead)
            gp = self._gp(wide)
            data = posterior.engine.observations()
            if data is None:
                raise ValueError("X: expected places within the grid with this method, got some beyond it")
            data = scaled_data(data, posterior.unit)
            posterior = gp.condition(data, self._method(), progress=False)
        return posterior.sample(n_samples, key=key, at=places(X, posterior.frame), progress=False).T

    def _check_settings(self) -> None:
        additive = self.likelihood is None or getattr(self.likelihood, "additive", False)
        if not self.learn and (
            self.kernel is None
            or isinstance(self.kernel, str)
            or (self.noise is None and self.alpha is None and additive)
        ):
            raise ValueError(
                "learn: expected True, or a kernel and a noise to use as they are, got False without"
            )
        if not isinstance(self.trend, str | None):
            raise ValueError(f'trend: expected None, "constant" or "linear", got {type(self.trend).__name__}')
        for name, least in (("points_per_lengthscale", 0.1), ("margin", 0.0), ("max_grid_points", 2)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)!r}")

    def _method(self) -> Method | Literal["auto"]:
        return "auto" if self.method is None else self.method

    def _learning_grid(self, X: np.ndarray) -> Grid:
        """A grid whose spacing bounds the lengthscale from below; learning evaluates nothing on it."""
        lower, extent = _box(X)
        points = max(FEWEST_POINTS, int(2 * len(X) ** (1 / X.shape[1])))
        return Grid.cover(lower, lower + extent, shape=(points,) * X.shape[1])

    def _automatic_grid(self, X: np.ndarray) -> Grid:
        lower, extent = _box(X)
        step = shortest_lengthscale(self.kernel_, X.shape[1]) / self.points_per_lengthscale
        step = np.minimum(step, extent / (FEWEST_POINTS - 1))
        wide = (1 + 2 * self.margin) * extent
        points = lambda factor: np.prod(np.ceil(wide / (factor * step)) + 1)
        factor = 1.0
        while points(factor) > self.max_grid_points and np.any(factor * step < wide):
            factor *= 1.05
        grid = Grid.cover(lower, lower + extent, spacing=factor * step, margin=self.margin * extent)
        return in_step(self.kernel_, grid)

    def __getstate__(self) -> dict[str, Any]:
        """The state with NumPy arrays for JAX ones, which unpickle as float32 where 64-bit types are off."""
        whole: Any = super().__getstate__()
        state: dict[str, Any] = dict(whole)
        for name in ("gp_", "posterior_"):
            if name in state:
                state[name] = jax.tree.map(lambda a: np.asarray(a) if eqx.is_array(a) else a, state[name])
        return state


def _box(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lower corner and the range of the data; a constant column gets the range |value|, or 1 if it is zero."""
    lower, extent = X.min(axis=0), np.ptp(X, axis=0)
    size = np.abs(lower)
    flat = extent <= 1e-12 * size
    return lower, np.where(flat | (extent == 0), np.where(size > 0, size, 1.0), extent)


def _finer(grid: Grid, shape: tuple[int, ...] | None, most: int) -> Grid | None:
    """A grid of `shape` points over the same box; None if `shape` is None or exceeds `most` points."""
    if shape is None or np.prod(shape, dtype=float) > most:
        return None
    cells = (np.asarray(grid.shape) - 1) / (np.asarray(shape) - 1)
    return Grid(grid.origin, np.asarray(grid.spacing) * cells, tuple(shape))
