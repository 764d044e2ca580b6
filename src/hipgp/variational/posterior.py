"""The variational posterior: mean, std and draws of the field on the grid and of any functional."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.engines import Estimate, FittedPosterior
from hipgp.model.data import check_differentiable, check_dimension, check_inside
from hipgp.model.functionals import Functional, Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.packing import check_shapes
from hipgp.predictions import DEFAULT_STD, Prediction, SampleOptions, StdOptions, check_std
from hipgp.runtime.memory import numbers_at_once
from hipgp.runtime.plain import Arrays, Json
from hipgp.runtime.precision import float64_available
from hipgp.variational.bound import WhitenedProblem
from hipgp.variational.families import Gaussian, gaussian, product, root_variances
from hipgp.variational.full_pass import full_pass
from hipgp.variational.minibatch_weights import (
    StoredWeights,
    WeightRows,
    WeightSource,
    compiled_weights,
    exact_source,
    local_source,
    minibatches,
)
from hipgp.variational.whitening import ToeplitzWhitening, Whitening, whiten

if TYPE_CHECKING:
    from hipgp.variational.engine import Variational


class VariationalPosterior(FittedPosterior):
    """q(e) = N(m, S) on the whitened field, u = R e; see `diagnostics` for how it was found.

    A functional has mean k'm and variance k'S k + v, where v is its residual variance given the grid values.
    """

    method: "Variational"
    whitening: Whitening
    q: Gaussian
    problem: WhitenedProblem | None  # None in a map read from a file

    @property
    def whitened_mean(self) -> Float[np.ndarray, "..."]:
        """m, in the shape of the torus (or, with the Cholesky whitening, of the grid)."""
        return np.asarray(self.q.mean).reshape(self.whitening.shape)

    @property
    def whitened_covariance(self) -> Float[np.ndarray, "B n n"]:
        """S by blocks; `q.blocks.index` says which whitened points each holds."""
        return np.asarray(self._covariance())

    @float64_available
    def _covariance(self) -> Array:
        return self.q.covariance

    @float64_available
    def elbo(self) -> float:
        """The bound on the data's log evidence, exactly: one pass over the data."""
        if self.problem is None:
            return self.diagnostics["elbo"]
        return full_pass(self.q, self.problem).bound

    @float64_available
    def grid_mean(self) -> Float[np.ndarray, "..."]:
        return self._on_grid(self.whitening.root(self.q.mean))

    @float64_available
    def grid_std(self, how: StdOptions = DEFAULT_STD) -> tuple[Float[np.ndarray, "..."], None]:
        _check_options(how)
        lags = int(np.prod([2 * b - 1 for b in self.q.blocks.block_shape]))
        if isinstance(self.whitening, ToeplitzWhitening) and lags < self.grid.size:
            variances = jnp.maximum(_torus_variances(self.q, self.whitening), 0.0)
            return self._on_grid(jnp.sqrt(variances)), None
        chunk = max(1, min(self.grid.size, numbers_at_once() // self.whitening.size))
        variance = []
        for begin in range(0, self.grid.size, chunk):
            points = jnp.minimum(jnp.arange(begin, begin + chunk), self.grid.size - 1)
            variance.append(_point_variances(self.q, self.whitening, points, self.grid.size))
        return self._on_grid(jnp.sqrt(jnp.concatenate(variance)[: self.grid.size])), None

    @float64_available
    def predict(
        self,
        functional: Functional,
        how: StdOptions = DEFAULT_STD,
        weights: StoredWeights | None = None,
    ) -> Prediction:
        """Mean and std of every functional, without observation noise; `weights` are the functional's, where stored."""
        _check_options(how)
        mean, std = np.zeros(len(functional)), np.zeros(len(functional))
        for at, mask, rows in self._weights(functional, weights):
            mean[at], std[at] = (np.asarray(a)[mask] for a in _moments(self.q, self.whitening, rows))
        return Prediction(mean.astype(self.dtype), std.astype(self.dtype))

    @float64_available
    def sample(self, how: SampleOptions, functional: Functional | None = None) -> np.ndarray:
        """Draws of q on the grid, or of functionals, whose residuals given the grid are drawn independently."""
        _check_options(StdOptions(columns=how.columns))
        if functional is not None:  # beyond the grid residuals depend on each other
            check_inside(functional, self.grid)
        white_key, rest_key = jax.random.split(how.key)
        draws = self.whitening.root(self.q.sample(white_key, how.count))
        if functional is None:
            return np.asarray(draws, self.dtype).reshape(how.count, *self.grid.shape)
        drawn = np.zeros((how.count, len(functional)))
        rest = np.asarray(jax.random.normal(rest_key, drawn.shape, float))
        for at, mask, rows in self._weights(functional):
            residual_std = np.sqrt(np.asarray(rows.v)[mask])
            drawn[:, at] = (
                np.asarray(draws @ rows.w.T.astype(draws.dtype))[:, mask] + residual_std * rest[:, at]
            )
        return drawn.astype(self.dtype)

    def at_points(self, x: Float[np.ndarray, "N D"], std: bool) -> tuple[np.ndarray, np.ndarray | None]:
        found = self.predict(Points(x))
        return found.mean, found.std if std else None

    def log_evidence(self, probes: int, key: Any) -> Estimate:
        return Estimate(self.elbo(), 0.0)

    def pack(self) -> tuple[Arrays, Json]:
        arrays = {"q_mean": np.asarray(self.q.mean), "q_precision": np.asarray(self.q.precision)}
        return arrays, {"dtype": str(np.dtype(self.dtype))}

    def _weights(
        self, functional: Functional, stored: StoredWeights | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, WeightRows]]:
        """The weights of all functionals, some at a time: their numbers, which rows are no padding, and the rows."""
        check_dimension(functional, self.grid)
        check_differentiable(self.kernel.differentiable, functional)
        beyond = np.any(self.grid.outside(functional.places()) > 0)
        if stored is not None:
            source: WeightSource = stored
        elif self.method.weights == "local" and not beyond:  # stencils end with the grid
            source = local_source(self.grid, [functional], self.method.stencil)
        else:
            limits = self.method.tolerance, self.method.predict_max_iterations
            dtype = self.method.solve_dtype(self.dtype)
            source = exact_source(
                self.kernel, self.grid, [functional], *limits, dtype, self.method.first_stencil
            )
        count = len(functional)
        for index, mask in minibatches(
            (count,), max(1, -(-count * self.whitening.size // numbers_at_once()))
        ):
            yield index[0][mask], mask, compiled_weights(source, self.kernel, self.whitening, index)

    def _on_grid(self, values: Any) -> np.ndarray:
        return np.asarray(values, self.dtype).reshape(self.grid.shape)


@float64_available
def restored(
    method: "Variational", kernel: Kernel, grid: Grid, noise: float | None, arrays: Arrays, model: Json
) -> VariationalPosterior:
    """The posterior that `pack` described; a ValueError where something does not fit."""
    if model["dtype"] not in ("float32", "float64"):
        raise ValueError(f"dtype: expected float32 or float64, got {model['dtype']!r}")
    size = arrays["q_mean"].size
    if size < grid.size:  # before a torus is made for it
        raise ValueError(f"map: expected q_mean of at least {grid.size} numbers, got {size}")
    whitening = whiten(kernel, grid, method.whitening)
    blocks = method.blocks(whitening, grid)
    count, each = blocks.index.shape
    check_shapes(arrays, {"q_mean": (blocks.size,), "q_precision": (count, each, each)})
    q = gaussian(blocks, jnp.asarray(arrays["q_mean"]), jnp.asarray(arrays["q_precision"]))
    if not bool(jnp.all(jnp.isfinite(q.factor))):
        raise ValueError("q_precision: expected positive definite matrices, got others")
    model_state = kernel, grid, noise, method, model["diagnostics"], np.dtype(model["dtype"])
    return VariationalPosterior(*model_state, whitening, q, None)


def _check_options(how: StdOptions) -> None:
    """Raise a ValueError for options that this engine does not support."""
    check_std(how, "variational", ("auto",))
    if how.columns is not None:
        raise ValueError(
            "columns: expected None with the variational engine, which has no trend, got some; use method=Batch()"
        )


@eqx.filter_jit
def _moments(q: Gaussian, whitening: Whitening, rows: WeightRows) -> tuple[Array, Array]:
    k = whitening.root_transpose(rows.w)
    return product(k, q.mean), jnp.sqrt(q.variances(k) + rows.v)


@eqx.filter_jit
def _point_variances(q: Gaussian, whitening: Whitening, points: Array, size: int) -> Array:
    return q.variances(whitening.root_transpose(jax.nn.one_hot(points, size, dtype=float)))


@eqx.filter_jit
def _torus_variances(q: Gaussian, whitening: ToeplitzWhitening) -> Array:
    toeplitz = whitening.toeplitz
    row = jnp.fft.irfftn(toeplitz.amplitudes(), s=toeplitz.torus.shape)
    return root_variances(q, row)[tuple(slice(0, n) for n in toeplitz.shape)]
