"""Blocks of observations in the iteration: the moments of the field at their nodes, and their linear Gaussian stand-in.

eta_n = sum_q c_nq g(f(x_nq)). Each block has an effective latent value zeta_n with eta_n = C_n g(zeta_n), normal under q:

- `Direct`: the field is f itself, or there is one node. zeta_n is a functional of f, and this is exact.
- `Nodal`: several nodes with weights of one sign. zeta_n is the normal variable for which C_n g(zeta_n) has the mean of
  eta_n, and the variance of eta_n's linearisation; with an exponential link that is a log-normal matched to the integral.
  With weights of both signs, eta_n itself is approximated as normal.

The stand-in of an observation is a pseudo-value of a linear functional with Gaussian noise: the Newton step of
E log p(y | eta) in the mean of zeta.
"""

import abc
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.model.data import Observations
from hipgp.model.functionals import Functional, Functionals, Points
from hipgp.model.likelihood import Likelihood
from hipgp.model.links import LINKS, Link
from hipgp.nonlinear.expectations import Terms, averaged_jit, likelihood_terms, matched_jit
from hipgp.predictions import StdOptions

if TYPE_CHECKING:
    from hipgp.engines import FittedPosterior
    from hipgp.nonlinear.nodes import NodeReader

LEAST = 0.05  # least curvature, relative to the positive one
FAINT = 1e-12  # least curvature, relative to the largest of the block
MATCHES = 8  # fixed-point iterations for an effective value's mean and standard deviation


class State(NamedTuple):
    """Moments of q at a block's nodes: means and standard deviations of f, and the standard deviation of zeta.

    `place` holds what is known of uncertain places; it is empty if places are certain.
    """

    mean: Float[np.ndarray, "N ..."]
    std: Float[np.ndarray, "N ..."]
    spread: Float[np.ndarray, " N"]
    place: Float[np.ndarray, "N ..."] = np.empty(0)


class StandIn(NamedTuple):
    """A block's linear Gaussian stand-in: pseudo-observations, and the functional's value at the current mean."""

    functional: Functional
    y: Float[np.ndarray, " N"]
    noise: Float[np.ndarray, " N"]
    present: Float[np.ndarray, " N"]

    @property
    def observations(self) -> Observations:
        return Observations(self.functional, self.y, self.noise)


class Block(eqx.Module):
    """Observations of one kind in the iteration."""

    y: Float[np.ndarray, " N"]
    noise: Float[np.ndarray, " N"]
    likelihood: Likelihood
    outer: Link  # from zeta to eta
    scale: Float[np.ndarray, " N"]

    @abc.abstractmethod
    def start(self, level: float) -> State:
        """The state of a constant f without uncertainty."""

    @abc.abstractmethod
    def zeta(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """The mean of zeta, and its derivative in the functional's value or in the nodes' values."""

    @abc.abstractmethod
    def stand_in(self, state: State, late: bool) -> StandIn:
        """The linear stand-in; `late` means that steps are small, so that the true curvature can be used."""

    @abc.abstractmethod
    def moved(self, state: State, stand_in: StandIn, found: "SolvedBlock") -> tuple[np.ndarray, np.ndarray]:
        """The means at the block's nodes after the engine's solve, and the functional's value there."""

    @abc.abstractmethod
    def refreshed(self, state: State, post: "FittedPosterior", reader: "NodeReader | None") -> State:
        """The state with the standard deviations of this posterior and unchanged means."""

    def terms(self, state: State) -> Terms:
        mean, _ = self.zeta(state)
        y, noise = self.measured(state)
        found = likelihood_terms(self.likelihood, self.outer, y, noise, self.scale, mean, state.spread)
        return jax.tree.map(lambda a: np.asarray(a, float), found)

    def measured(self, state: State, noise: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """The measured values and their noise: the block's, or `noise` where it is not None."""
        return self.y, self.noise if noise is None else noise

    def expected(self, state: State) -> float:
        """The expected log-likelihood."""
        value = float(np.sum(self.terms(state).value))
        return value if np.isfinite(value) else -np.inf

    def log_likelihood(self, values: Float[np.ndarray, "S N ..."]) -> Float[np.ndarray, " S"]:
        """The log-likelihood of the block for draws of f at its nodes, or of its functional."""
        return np.sum(np.asarray(self.log_densities(jnp.asarray(values))), axis=1)

    @abc.abstractmethod
    def log_densities(self, values: Float[Array, "S N ..."]) -> Float[Array, "S N"]:
        """The log density of each observation, given draws of f at its nodes, or of its functional."""

    def _log_density(self, eta: Any) -> Float[Array, "S N"]:
        return self.likelihood.log_density(*(jnp.asarray(a) for a in (self.y, eta, self.noise)))

    def _check_numbers(self, terms: Terms, state: State) -> None:
        """Raise a ValueError where the user's own log density, or a derivative of it, is no number."""
        bad = ~np.isfinite(terms.value + terms.gradient + terms.curvature + terms.information)
        if type(self.likelihood) is Likelihood and np.any(bad):
            first, (zeta, _) = int(np.flatnonzero(bad)[0]), self.zeta(state)
            eta = self.scale[first] * float(np.asarray(self.outer(zeta[first])))
            raise ValueError(
                f"likelihood: expected logpdf(y, eta) with two derivatives, finite for every eta that may be, got others for "
                f"{int(np.sum(bad))} of {len(bad)} observations (first: y = {self.y[first]:.6g}, eta near {eta:.4g})"
            )

    def _observations(self, functional: Functional, present: np.ndarray, state: State, late: bool) -> StandIn:
        terms = self.terms(state)
        self._check_numbers(terms, state)
        floor = LEAST * terms.information if late else terms.information
        curvature = np.fmax(terms.curvature, floor)
        curvature = np.fmax(curvature, FAINT * np.max(curvature))
        y = present + terms.gradient / curvature
        return StandIn(functional, y, 1 / np.sqrt(curvature), present)


class SolvedBlock(NamedTuple):
    """The engine's result for a block: the posterior, the means of the block's functionals, and alpha = A^-1 (y - X beta)."""

    post: "FittedPosterior"
    mean: Float[np.ndarray, " N"]
    alpha: Float[np.ndarray, " N"]
    reader: "NodeReader | None"


class Direct(Block):
    """A block whose effective value is a functional of f: a value at one place, or, without a link, any functional."""

    target: Functional
    columns: Any = None  # trend columns, if the trend was given as columns

    def start(self, level: float) -> State:
        zero = np.zeros(len(self.y))
        return State(level * of_one(self.target) if level else zero, zero, zero)

    def zeta(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        return state.mean, np.ones(len(self.y))

    def stand_in(self, state: State, late: bool) -> StandIn:
        return self._observations(self.target, state.mean, state, late)

    def moved(self, state: State, stand_in: StandIn, found: SolvedBlock) -> tuple[np.ndarray, np.ndarray]:
        return found.mean, found.mean

    def refreshed(self, state: State, post: "FittedPosterior", reader: "NodeReader | None") -> State:
        std = np.asarray(post.predict(self.target, StdOptions(columns=self.columns)).std, float)
        return State(state.mean, std, std)

    def log_densities(self, values: Float[Array, "S N"]) -> Float[Array, "S N"]:
        return self._log_density(self.scale * self.outer(values))


class Nodal(Block):
    """Several nodes through a link; `outer` is the link for weights of one sign, and the identity otherwise."""

    link: Link
    places: Float[np.ndarray, "N Q D"]
    weights: Float[np.ndarray, "N Q"]

    def start(self, level: float) -> State:
        zero = np.zeros(self.weights.shape)
        return State(zero + level, zero, np.zeros(len(self.y)))

    def weights_at(self, state: State) -> Float[np.ndarray, "N Q"]:
        """The weights of the nodes, which at uncertain places depend on what is known of them."""
        return self.weights

    def zeta(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        value, slope = averaged_jit(self.link, state.mean, state.std)
        eta = np.sum(self.weights_at(state) * np.asarray(value), axis=1)
        if self.outer.identity:
            return eta, np.asarray(slope)
        mean = matched_jit(self.outer, eta / self.scale, state.spread)
        slope_of_outer = np.asarray(averaged_jit(self.outer, mean, state.spread)[1])
        return np.asarray(mean), np.asarray(slope) / (self.scale * slope_of_outer)[:, None]

    def stand_in(self, state: State, late: bool) -> StandIn:
        weights = self.weights_at(state) * self.zeta(state)[1]
        present = np.sum(weights * state.mean, axis=1)
        return self._observations(Functionals(self.places, weights), present, state, late)

    def moved(self, state: State, stand_in: StandIn, found: SolvedBlock) -> tuple[np.ndarray, np.ndarray]:
        mean = node_means(found.post, found.reader, self.places)
        weights = stand_in.functional.weights  # type: ignore[attr-defined]
        return mean, np.sum(weights * mean, axis=1)

    def refreshed(self, state: State, post: "FittedPosterior", reader: "NodeReader | None") -> State:
        shape = self.weights.shape
        if reader is None:
            std = post.at_points(self.places.reshape(-1, self.places.shape[2]), True)[1]
            assert std is not None
            state = state._replace(std=std.reshape(shape))
        else:
            draws = reader.draws(post, reader.rows(self.places))
            state = state._replace(std=np.sqrt(draws.variance).reshape(shape))
        linear = self.weights_at(state) * np.asarray(averaged_jit(self.link, state.mean, state.std)[1])
        if reader is None:
            of_eta = post.predict(Functionals(self.places, linear), StdOptions()).std
        else:
            of_eta = draws.of_sums(linear)
        return state._replace(spread=self._spread(state, np.asarray(of_eta, float)))

    def log_densities(self, values: Float[Array, "S N Q"]) -> Float[Array, "S N"]:
        return self._log_density(jnp.sum(self.weights * self.link(values), axis=2))

    def _spread(self, state: State, of_eta: np.ndarray) -> np.ndarray:
        """The standard deviation of zeta, given that of eta's linearisation."""
        if self.outer.identity:
            return of_eta
        value = averaged_jit(self.link, state.mean, state.std)[0]
        eta = np.sum(self.weights_at(state) * np.asarray(value), axis=1)
        return zeta_spread(self.outer, self.scale, eta, of_eta)


def zeta_spread(outer: Link, scale: np.ndarray, eta: np.ndarray, of_eta: np.ndarray) -> np.ndarray:
    """The standard deviation of zeta for which the linearisation of C g(zeta) has the standard deviation of eta."""
    spread = np.zeros(len(eta))
    for _ in range(1 if outer.name == "exp" else MATCHES):
        mean = matched_jit(outer, eta / scale, spread)
        slope = np.asarray(averaged_jit(outer, jnp.asarray(mean), spread)[1])
        spread = of_eta / np.abs(scale * slope)
    return spread


def node_means(post: "FittedPosterior", reader: "NodeReader | None", places: np.ndarray) -> np.ndarray:
    """The mean of f at each node."""
    if reader is not None:
        return reader.means(post, reader.rows(places))
    mean = post.at_points(places.reshape(-1, places.shape[2]), False)[0]
    return np.asarray(mean, float).reshape(places.shape[:2])


def of_one(functional: Functional) -> Float[np.ndarray, " N"]:
    """The value of each functional of a field that is 1 everywhere."""
    nodes = functional.finer().nodes(1e9)
    value = 1.0 if nodes.value is None else np.asarray(nodes.value, float)
    return np.sum(value * np.asarray(nodes.weights, float), axis=1)


def is_one_sign(weights: Float[np.ndarray, "N Q"]) -> bool:
    """Whether each functional's weights all have one sign and are not all zero."""
    return bool(
        np.all(np.abs(weights.sum(axis=1)) >= (1 - 1e-12) * np.abs(weights).sum(axis=1) - 0.0)
    ) and bool(np.all(np.abs(weights).sum(axis=1) > 0))


def block_of(
    observations: Observations,
    link: Link,
    noise: np.ndarray,
    spacing: Any,
    likelihood: Likelihood,
    columns: Any,
) -> Block:
    """Make the block of some observations, `Direct` or `Nodal` according to functional and link."""
    n, functional, y = len(observations.y), observations.functional, np.asarray(observations.y, float)
    common = y, noise, likelihood
    if link.identity:
        return Direct(*common, LINKS["identity"], np.ones(n), functional, columns)
    nodes = functional.nodes(spacing)
    weights = np.asarray(nodes.weights, float)
    if nodes.rule_size == 1 and np.all(weights != 0):
        x = nodes.x[:, 0]
        target = functional if isinstance(functional, Points) else Points(x)
        return Direct(*common, link, weights[:, 0], target, columns)
    one = is_one_sign(weights)
    scale, outer = (weights.sum(axis=1), link) if one else (np.ones(n), LINKS["identity"])
    return Nodal(*common, outer, scale, link, np.asarray(nodes.x), weights)
