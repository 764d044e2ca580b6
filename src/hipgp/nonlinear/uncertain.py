"""Observations at places that are known with an error only, such as stars whose distance is.

Where observation n looks is decided by xi_n, of standard normal size: eta_n(xi) = C_n(xi) g(f). A few values of xi, the
scenarios, carry the distribution of the place: p_nk is the probability of the k-th one given y, found by Bayes' rule at the
present q(f). Under it eta_n is regressed on f and xi (posterior linearisation of both): the mean of its weights over the
scenarios, a slope b_n in xi, and what is left of its variance. With the prior of xi put back and xi integrated out,

    y_n + b_n E xi_n  =  sum_k p_nk C_nk g(f)  +  noise of variance  s_n^2 + E (left_n + b_n b_n'),

with the expectation over q(f), from draws: a field that is not known differs more from place to place than its mean does.

So y tells about the place and about the field together, and more of the place where the field changes along it.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.engines import FittedPosterior
from hipgp.model.data import Observations
from hipgp.model.functionals import NODES_PER_CELL, PLACES_REACH, Functional, LineIntegrals, Points
from hipgp.model.likelihood import Likelihood
from hipgp.model.links import LINKS, Link
from hipgp.model.nodes import gauss
from hipgp.nonlinear.blocks import Nodal, State
from hipgp.nonlinear.expectations import averaged_jit, rule

if TYPE_CHECKING:
    from hipgp.nonlinear.nodes import NodeReader

ALONG = 25  # scenarios of one error, as far as PLACES_REACH
PER_AXIS = {2: 7, 3: 5, 4: 3}  # of errors in several dimensions


class _Scenarios(NamedTuple):
    """Possible places: eta of the k-th scenario is factor_nk sum_q weights_nq uses_qk g(f(x_nq))."""

    x: Float[np.ndarray, "N Q D"]
    weights: Float[np.ndarray, "N Q"]
    uses: Float[np.ndarray, "Q K"]
    factor: Float[np.ndarray, "N K"]
    xi: Float[np.ndarray, "K P"]
    prior: Float[np.ndarray, " K"]
    step: float  # between neighbouring xi


def _scenarios(functional: Functional, spacing: Any) -> _Scenarios:
    """The scenarios of lines whose ends, or of points whose places, are uncertain."""
    if isinstance(functional, LineIntegrals):
        return _of_lines(functional, spacing)
    assert isinstance(functional, Points)
    return _of_points(functional)


def _along() -> tuple[np.ndarray, np.ndarray]:
    """Values of one standard normal error, evenly spaced, and their probabilities."""
    xi = np.linspace(-PLACES_REACH, PLACES_REACH, ALONG)
    share = np.exp(-0.5 * xi**2)
    return xi, share / share.sum()


def _of_lines(lines: LineIntegrals, spacing: Any) -> _Scenarios:
    """A line to the nearest possible end, and a short piece to each farther one; no end is before the start."""
    xi, prior = _along()
    length = lines.length
    std = np.asarray(lines.end_std, float)
    ends = np.maximum(length[:, None] + std[:, None] * xi, 0.0)  # (N, K)
    way = (lines.end - lines.start) / length[:, None]
    cells = np.linalg.norm(way / np.asarray(spacing), axis=1)  # per unit of length
    first = gauss(int(np.ceil(NODES_PER_CELL * np.max(cells * ends[:, 0]))) or 1)
    pieces = np.diff(ends, axis=1)
    other = gauss(int(np.ceil(NODES_PER_CELL * np.max(cells[:, None] * pieces))))
    at = [ends[:, :1] * first[0]]
    weights = [ends[:, :1] * first[1]]
    number = [np.zeros(len(first[0]), int)]
    for k in range(ALONG - 1):
        at.append(ends[:, k : k + 1] + pieces[:, k : k + 1] * other[0])
        weights.append(pieces[:, k : k + 1] * other[1])
        number.append(np.full(len(other[0]), k + 1))
    t, segment = np.concatenate(at, axis=1), np.concatenate(number)
    x = lines.start[:, None, :] + t[:, :, None] * way[:, None, :]
    uses = (segment[:, None] <= np.arange(ALONG)).astype(float)
    tiny = np.finfo(float).tiny
    factor = 1 / np.maximum(ends, tiny) if lines.average else np.ones(ends.shape)
    return _Scenarios(
        x, np.concatenate(weights, axis=1), uses, factor, xi[:, None], prior, float(xi[1] - xi[0])
    )


def _of_points(points: Points) -> _Scenarios:
    std, ndim = np.asarray(points.std, float), points.ndim
    if ndim == 1:
        one, share = _along()
        step = float(one[1] - one[0])
    else:
        one, share = rule(PER_AXIS[ndim])
        step = float(np.min(np.diff(one)))
    xi = np.stack(np.meshgrid(*[one] * ndim, indexing="ij"), axis=-1).reshape(-1, ndim)
    prior = np.prod(np.stack(np.meshgrid(*[share] * ndim, indexing="ij"), axis=-1).reshape(-1, ndim), axis=1)
    x = points.x[:, None, :] + std[:, None, :] * xi
    ones = np.ones(x.shape[:2])
    return _Scenarios(x, ones, np.eye(len(xi)), ones, xi, prior, step)


class Uncertain(Nodal):
    """A block at uncertain places; `weights` are their means over the prior, `State.place` has p_nk, b_n E xi_n and a variance."""

    each: _Scenarios

    def start(self, level: float) -> State:
        state = super().start(level)
        of = self._expected_of_each(state)
        return state._replace(place=self._regressed(np.broadcast_to(self.each.prior, of.shape), of))

    def weights_at(self, state: State) -> Float[np.ndarray, "N Q"]:
        shares = state.place[:, : len(self.each.prior)] * self.each.factor
        return self.each.weights * (shares @ self.each.uses.T)

    def measured(self, state: State, noise: Any = None) -> tuple[np.ndarray, np.ndarray]:
        std = self.noise if noise is None else noise
        shift, variance = state.place[:, -2], state.place[:, -1]
        return self.y + shift, np.sqrt(std**2 + variance)

    def refreshed(self, state: State, post: FittedPosterior, reader: "NodeReader | None") -> State:
        assert reader is not None
        new = super().refreshed(state, post, reader)
        value, slope = (np.asarray(a) for a in averaged_jit(self.link, new.mean, new.std))
        drawn = reader.draws(post, reader.rows(self.places)).values.reshape(-1, *self.places.shape[:2])
        of, parts = self._eta_of_each(value), np.stack([self._eta_of_each(slope * draw) for draw in drawn])
        variance = np.sum(parts**2, axis=0) / (len(drawn) - 1)
        share = self._shares(of, variance)
        place = self._regressed(share, of)
        place[:, -1] += sum(self._variance(share, part) for part in parts) / (len(drawn) - 1)
        return new._replace(place=place)

    def _shares(self, of: Float[np.ndarray, "N K"], variance: Float[np.ndarray, "N K"]) -> np.ndarray:
        """The probabilities of the scenarios given y, whose eta have these means and variances."""
        flat = self._slopes(np.broadcast_to(self.each.prior, of.shape), of)[0]
        # variance within a scenario, which is not distinguished from its neighbours
        within_step = np.sum(flat**2, axis=1) * (0.5 * self.each.step) ** 2
        width = self.noise[:, None] ** 2 + variance + within_step[:, None]
        log = np.log(self.each.prior) - 0.5 * (self.y[:, None] - of) ** 2 / width - 0.5 * np.log(width)
        share = np.exp(log - log.max(axis=1, keepdims=True))
        return share / share.sum(axis=1, keepdims=True)

    def log_densities(self, values: Float[Array, "S N Q"]) -> Float[Array, "S N"]:
        """The log density of y, a mixture over the scenarios."""
        of = self.each.factor * ((self.each.weights * self.link(values)) @ self.each.uses)
        log = jnp.log(self.each.prior) - 0.5 * ((self.y[:, None] - of) / self.noise[:, None]) ** 2
        return jax.nn.logsumexp(log, axis=2) - jnp.log(self.noise) - 0.5 * np.log(2 * np.pi)

    def _expected_of_each(self, state: State) -> Float[np.ndarray, "N K"]:
        """The expected eta of each scenario."""
        return self._eta_of_each(np.asarray(averaged_jit(self.link, state.mean, state.std)[0]))

    def _eta_of_each(self, values: Float[np.ndarray, "N Q"]) -> Float[np.ndarray, "N K"]:
        """The weighted sum of values at the nodes for each scenario."""
        return self.each.factor * ((self.each.weights * values) @ self.each.uses)

    def _variance(
        self, share: Float[np.ndarray, "N K"], of: Float[np.ndarray, "N K"]
    ) -> Float[np.ndarray, " N"]:
        """The variance of eta about its mean over the scenarios, with the prior of xi in the linear part."""
        slope, _, left = self._slopes(share, of)
        return left + np.sum(slope**2, axis=1)

    def _slopes(
        self, share: Float[np.ndarray, "N K"], of: Float[np.ndarray, "N K"]
    ) -> tuple[Float[np.ndarray, "N P"], Float[np.ndarray, "N P"], Float[np.ndarray, " N"]]:
        """The regression of eta on xi under these probabilities: slopes, the mean of xi, and the residual variance."""
        xi = self.each.xi
        mean = share @ xi
        away = xi - mean[:, None, :]
        middle = np.sum(share * of, axis=1)
        covariance = np.einsum("nk,nkp,nkr->npr", share, away, away)
        covariance = covariance + (0.5 * self.each.step) ** 2 * np.eye(xi.shape[1])
        across = np.einsum("nk,nkp->np", share * (of - middle[:, None]), away)
        slope = np.linalg.solve(covariance, across[:, :, None])[:, :, 0]
        left = np.sum(share * (of - middle[:, None]) ** 2, axis=1) - np.sum(slope * across, axis=1)
        return slope, mean, np.maximum(left, 0.0)

    def _regressed(self, share: Float[np.ndarray, "N K"], of: Float[np.ndarray, "N K"]) -> np.ndarray:
        slope, mean, left = self._slopes(share, of)
        extra = np.sum(slope * mean, axis=1), left + np.sum(slope**2, axis=1)
        return np.concatenate([share, np.stack(extra, axis=1)], axis=1)


def uncertain_block(
    observations: Observations, link: Link, noise: np.ndarray, spacing: Any, likelihood: Likelihood
) -> Uncertain:
    """A block of observations at uncertain places."""
    each = _scenarios(observations.functional, spacing)
    weights = each.weights * ((each.prior * each.factor) @ each.uses.T)
    outer, scale = link, weights.sum(axis=1)
    if link.identity:
        outer, scale = LINKS["identity"], np.ones(len(scale))
    y = np.asarray(observations.y, float)
    return Uncertain(y, noise, likelihood, outer, scale, link, np.asarray(each.x), weights, each)
