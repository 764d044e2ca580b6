"""The posterior of a transformed field as draws of the true posterior, in place of the Gaussian one of f."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from hipgp.model.functionals import Functional
from hipgp.nonlinear import hamiltonian
from hipgp.nonlinear.blocks import of_one
from hipgp.nonlinear.nodes import NodeReader
from hipgp.nonlinear.posterior import LinearisedPosterior, Transformed
from hipgp.predictions import DEFAULT_STD, Prediction, SampleOptions, StdOptions
from hipgp.runtime.plain import Arrays, Json
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Report
from hipgp.weights.stencil_geometry import STENCIL
from hipgp.weights.stencils import local_weight_rows

LEAST = 1e-300  # of a standard deviation


class CorrectedPosterior(LinearisedPosterior):
    """Draws of the true posterior of f on the grid, and predictions with their moments.

    A functional is predicted as g of a normal variable, with the mean and the standard deviation of the draws before the link.
    """

    drawn: Float[np.ndarray, "S M"]

    @float64_available
    def grid_mean(self) -> Float[np.ndarray, "..."]:
        return np.mean(np.asarray(self.link(self.drawn)), axis=0).reshape(self.grid.shape).astype(self.dtype)

    @float64_available
    def grid_std(self, how: StdOptions = DEFAULT_STD) -> tuple[np.ndarray, np.ndarray | None]:
        self._check_std(how)
        std = np.std(np.asarray(self.link(self.drawn)), axis=0, ddof=1).reshape(self.grid.shape)
        error = std / np.sqrt(2 * (len(self.drawn) - 1))
        return std.astype(self.dtype), error.astype(self.dtype)

    @float64_available
    def grid_quantile(self, q: float) -> Float[np.ndarray, "..."]:
        found = self._of_latent(self.drawn)
        return found.quantile(q).reshape(self.grid.shape).astype(self.dtype)

    @float64_available
    def predict(self, functional: Functional, how: StdOptions = DEFAULT_STD) -> Prediction:
        self._check_std(how)
        eta, scale, left = self._of_draws(self.drawn, functional, how.columns)
        side = np.where(scale == 0, 1.0, scale)
        return self._of_latent(np.asarray(self.link.inverse(eta / side)), side, left)

    def _check_std(self, how: StdOptions) -> None:
        """Raise a ValueError if options ask for standard deviations other than those of the draws that were made."""
        if how.method not in ("auto", "samples"):
            raise ValueError(
                f'std: expected "auto" or "samples" with Linearised(corrected={len(self.drawn)}), whose standard deviations '
                f"are those of its draws, got {how.method!r}; leave it out"
            )
        if how.samples not in (DEFAULT_STD.samples, len(self.drawn)):
            raise ValueError(
                f"samples: expected the {len(self.drawn)} draws that were made, got {how.samples}; leave it out, or give "
                f"Linearised(corrected={how.samples})"
            )

    def _of_latent(self, z: np.ndarray, scale: Any = 1.0, left: Any = 0.0) -> Transformed:
        """A prediction from draws before the link; `left` is a variance that they do not have."""
        std = np.sqrt(np.var(z, axis=0, ddof=1) + left)
        ones = np.ones(z.shape[1])
        return Transformed.of(self.link, scale * ones, z.mean(axis=0), std, std / np.sqrt(2 * (len(z) - 1)))

    def _of_draws(
        self, drawn: Float[np.ndarray, "S M"], functional: Functional, columns: Any = None
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """A functional of draws, the sum of its weights, and the variance of f that the grid does not hold."""
        if self.link.identity:
            p = STENCIL if self.grid.ndim <= 2 else 2
            rows = local_weight_rows(self.kernel, self.grid, [functional], p)
            level = np.mean(drawn, axis=1, keepdims=True)
            flat = (rows.matrix @ (drawn - level).T).T + level * of_one(functional)
            return flat, np.ones(len(functional)), rows.residual
        nodes = functional.nodes(self.grid.spacing)
        weights = np.asarray(nodes.weights, float)
        eta = self._sums_of_draws(drawn, nodes, weights)
        return eta, weights.sum(axis=1), 0.0

    @float64_available
    def sample(self, how: SampleOptions, functional: Functional | None = None) -> np.ndarray:
        """The draws, in a random order that the key decides; there are no more than were made."""
        count = how.count
        if count > len(self.drawn):
            raise ValueError(
                f"count: expected at most the {len(self.drawn)} draws that were made, got {count}; give "
                f"Linearised(corrected={count})"
            )
        chosen = self.drawn[np.asarray(jax.random.permutation(how.key, len(self.drawn)))[:count]]
        if functional is None:
            return np.asarray(self.link(chosen), self.dtype).reshape(count, *self.grid.shape)
        return np.asarray(self._of_draws(chosen, functional, how.columns)[0], self.dtype)

    def at_points(self, x: Float[np.ndarray, "N D"], std: bool) -> tuple[np.ndarray, np.ndarray | None]:
        reader = NodeReader(self.kernel, self.grid, self.trend, len(self.drawn))
        drawn = reader.interpolated(self.drawn, reader.rows(x[:, None, :]))
        found = self._of_latent(drawn[:, :, 0])
        return found.mean, found.std if std else None

    def pack(self) -> tuple[Arrays, Json]:
        arrays, described = super().pack()
        return arrays | {"drawn": self.drawn}, described


def corrected(found: LinearisedPosterior, key: Any, report: Report) -> CorrectedPosterior:
    """The true posterior from a Gaussian one, by Hamiltonian draws; their acceptance is in the diagnostics."""
    ratio = hamiltonian.Ratio(found.post, found.trend, found.blocks)
    drawn = hamiltonian.drawn(ratio, found.method.corrected, key, report)
    return with_draws(found, drawn.values, found.diagnostics | drawn.facts)


def with_draws(found: LinearisedPosterior, drawn: np.ndarray, diagnostics: Json) -> CorrectedPosterior:
    """The posterior with these draws of f on the grid."""
    fields: dict[str, Any] = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
    return CorrectedPosterior(**(fields | {"diagnostics": diagnostics, "drawn": drawn}))
