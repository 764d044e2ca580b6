"""The posterior of a transformed field: the Gaussian posterior of f of the last round, passed through the link."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float, Int

from hipgp.engines import Estimate, FittedPosterior
from hipgp.model.arguments import as_float
from hipgp.model.data import Data
from hipgp.model.functionals import Functional, Functionals, Points
from hipgp.model.likelihood import Likelihood
from hipgp.model.likelihoods import Gaussian
from hipgp.model.links import LINKS, Link
from hipgp.model.packing import pack_observations
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend
from hipgp.nonlinear.blocks import Block, Nodal, StandIn, State, is_one_sign, node_means, zeta_spread
from hipgp.nonlinear.expectations import averaged_jit, matched_jit, spread_jit
from hipgp.nonlinear.leave_out import left_out
from hipgp.nonlinear.nodes import FEW, NodeReader
from hipgp.nonlinear.observed import Observed, common_likelihood
from hipgp.predictions import DEFAULT_STD, Prediction, SampleOptions, StdOptions
from hipgp.runtime.plain import Arrays, Json
from hipgp.runtime.precision import float64_available
from hipgp.scores import LeaveOut, group_numbers

if TYPE_CHECKING:
    from hipgp.nonlinear.engine import Linearised

FARTHEST, HALVINGS = 9.0, 50  # standard deviations within which probabilities are looked for, by halving
DRAWS_AT_ONCE = 2**24  # values of f at nodes that are held together


class Transformed(Prediction):
    """A prediction of a transformed field, scale * g(zeta) with zeta normal, whose quantiles are exact."""

    link: Link
    scale: Float[np.ndarray, " N"]
    zeta_mean: Float[np.ndarray, " N"]
    zeta_std: Float[np.ndarray, " N"]

    @staticmethod
    def of(
        link: Link, scale: np.ndarray, mean: np.ndarray, std: np.ndarray, error: Any = None
    ) -> "Transformed":
        value = scale * np.asarray(averaged_jit(link, mean, std)[0])
        wide = np.abs(scale) * np.asarray(spread_jit(link, mean, std))
        found = Transformed(value, wide, None if error is None else error * wide / np.maximum(std, 1e-300))
        found.link, found.scale, found.zeta_mean, found.zeta_std = link, scale, mean, std
        return found

    def quantile(self, q: Any) -> np.ndarray:
        share = np.asarray(q, float)[..., None] if np.ndim(q) else np.asarray(q, float)
        side = np.where(self.scale < 0, -1.0, 1.0)
        return self.scale * np.asarray(
            self.link(self.zeta_mean + side * scipy.special.ndtri(share) * self.zeta_std)
        )

    def cdf(self, values: Any) -> np.ndarray:
        """The probability that each value is not exceeded, by bisection on zeta, in which the value is monotone."""
        low, high = np.full(len(self.scale), -FARTHEST), np.full(len(self.scale), FARTHEST)
        side = np.where(self.scale < 0, -1.0, 1.0)
        for _ in range(HALVINGS):
            z = 0.5 * (low + high)
            below = self.scale * np.asarray(self.link(self.zeta_mean + side * z * self.zeta_std)) < values
            low, high = np.where(below, z, low), np.where(below, high, z)
        return scipy.special.ndtr(0.5 * (low + high))

    def in_unit(self, power: int, longer: float) -> Prediction:
        raise ValueError(
            "functional: expected lines in the unit of length of the data with a link, got another unit of length"
        )

    def with_noise(self, noise: Any) -> Prediction:
        """New measurements, whose independent Gaussian noise has the standard deviation `noise`."""
        added = as_float("noise", noise, ndim=(0, 1)).astype(float)
        if added.shape not in ((), np.shape(self.mean)) or np.any(added <= 0):
            raise ValueError(
                f"noise: expected a positive standard deviation, or one for each of {len(self.mean)} values, got {noise!r}"
            )
        return Observed.of(self, Gaussian(), added)


class LinearisedPosterior(FittedPosterior):
    """The posterior of g(f), from the Gaussian posterior of f of the last round."""

    method: "Linearised"
    post: FittedPosterior
    data: Data
    blocks: list[Block]
    states: list[State]
    stand_ins: list[StandIn]
    trend: Trend
    order: Int[np.ndarray, " N"]  # which of the user's observations each of `data` is
    reader: NodeReader | None

    @property
    def link(self) -> Link:
        return self.method.link

    @float64_available
    def grid_mean(self) -> Float[np.ndarray, "..."]:
        mean = np.asarray(self.post.grid_mean(), float)
        if self.link.identity:
            return mean.astype(self.dtype)
        return np.asarray(averaged_jit(self.link, mean, self._latent_std(DEFAULT_STD)[0])[0]).astype(
            self.dtype
        )

    @float64_available
    def grid_std(self, how: StdOptions = DEFAULT_STD) -> tuple[np.ndarray, np.ndarray | None]:
        mean = np.asarray(self.post.grid_mean(), float)
        std, error = self._latent_std(how)
        wide = np.asarray(spread_jit(self.link, mean, std))
        error = None if error is None else (error * wide / std).astype(self.dtype)
        return wide.astype(self.dtype), error

    @float64_available
    def grid_quantile(self, q: float) -> Float[np.ndarray, "..."]:
        mean = np.asarray(self.post.grid_mean(), float)
        f = mean + scipy.special.ndtri(q) * self._latent_std(DEFAULT_STD)[0]
        return np.asarray(self.link(f), self.dtype)

    def _latent_std(self, how: StdOptions) -> tuple[np.ndarray, np.ndarray | None]:
        """The standard deviation of f on the grid, and its Monte Carlo error or None."""
        if how.method == "auto" and self.reader is not None:
            drawn = self.reader.on_grid(self.post)
            std = np.sqrt(np.sum(drawn**2, axis=0) / (len(drawn) - 1)).reshape(self.grid.shape)
            return std, std / np.sqrt(2 * (len(drawn) - 1))
        std, error = self.post.grid_std(how)
        return np.asarray(std, float), None if error is None else np.asarray(error, float)

    @float64_available
    def predict(self, functional: Functional, how: StdOptions = DEFAULT_STD) -> Prediction:
        if self.link.identity:
            return self.post.predict(functional, how)
        nodes = functional.nodes(self.grid.spacing)
        weights = np.asarray(nodes.weights, float)
        if nodes.rule_size == 1:
            found = self.post.predict(Points(nodes.x[:, 0]), how)
            mean, std = np.asarray(found.mean, float), np.asarray(found.std, float)
            return Transformed.of(self.link, weights[:, 0], mean, std, found.std_error)
        return self._of_sums(np.asarray(nodes.x), weights, how)

    def _of_sums(self, places: np.ndarray, weights: np.ndarray, how: StdOptions) -> Prediction:
        reader = self.reader or (
            NodeReader(self.kernel, self.grid, self.trend, self.method.draws)
            if weights.size > FEW and np.all(self.grid.outside(places) == 0)
            else None
        )
        if reader is None:
            mean = node_means(self.post, None, places)
            std = self.post.at_points(places.reshape(-1, places.shape[2]), True)[1]
            assert std is not None
            std, error = std.reshape(weights.shape), None
        else:
            rows = reader.rows(places)
            mean, draws = reader.means(self.post, rows), reader.draws(self.post, rows)
            std = np.sqrt(draws.variance).reshape(weights.shape)
            error = 1 / np.sqrt(2 * (len(draws.values) - 1))
        value, slope = (np.asarray(a) for a in averaged_jit(self.link, mean, std))
        eta, linear = np.sum(weights * value, axis=1), weights * slope
        if reader is None or how.method != "auto":
            of_eta = np.asarray(self.post.predict(Functionals(places, linear), how).std, float)
        else:
            of_eta = draws.of_sums(linear)
        if not is_one_sign(weights):
            return Transformed.of(LINKS["identity"], np.ones(len(eta)), eta, of_eta)
        scale = weights.sum(axis=1)
        spread = zeta_spread(self.link, scale, eta, of_eta)
        zeta = np.asarray(matched_jit(self.link, jnp.asarray(eta / scale), spread))
        return Transformed.of(self.link, scale, zeta, spread, None if error is None else error * spread)

    @float64_available
    def sample(self, how: SampleOptions, functional: Functional | None = None) -> np.ndarray:
        """Draws of the Gaussian posterior of f, passed through the link."""
        if self.link.identity:
            return self.post.sample(how, functional)
        if functional is None:
            return np.asarray(self.link(self.post.sample(how)), self.dtype)
        nodes = functional.nodes(self.grid.spacing)
        weights, flat = (
            np.asarray(nodes.weights, float),
            Points(np.asarray(nodes.x).reshape(-1, functional.ndim)),
        )
        if how.count * weights.size > DRAWS_AT_ONCE:
            return self._sums_of_draws(self.post.sample(how), nodes, weights).astype(self.dtype)
        drawn = np.asarray(self.link(self.post.sample(how, flat)), float)
        return np.sum(weights * drawn.reshape(how.count, *weights.shape), axis=2).astype(self.dtype)

    def _sums_of_draws(self, drawn: np.ndarray, nodes: Any, weights: np.ndarray) -> np.ndarray:
        """Sums over many nodes of draws on the grid, in chunks of functionals."""
        count, out = len(drawn), []
        flat = np.asarray(drawn, float).reshape(count, -1)
        size = max(1, DRAWS_AT_ONCE // (count * weights.shape[1]))
        reader = NodeReader(self.kernel, self.grid, self.trend, count)
        for begin in range(0, len(weights), size):
            some = slice(begin, begin + size)
            f = reader.interpolated(flat, reader.rows(np.asarray(nodes.x[some])))
            out.append(np.sum(weights[some] * np.asarray(self.link(f)), axis=2))
        return np.concatenate(out, axis=1)

    def trend_fit(self) -> tuple[Trend, Float[np.ndarray, " p"], Float[np.ndarray, "p p"]]:
        return self.post.trend_fit()

    def at_points(self, x: Float[np.ndarray, "N D"], std: bool) -> tuple[np.ndarray, np.ndarray | None]:
        mean, wide = self.post.at_points(x, True)
        found = Transformed.of(self.link, np.ones(len(x)), mean, np.asarray(wide))
        return found.mean, found.std if std else None

    @float64_available
    def log_evidence(self, probes: int, key: Any) -> Estimate:
        """The variational bound: the stand-ins' evidence, with expected log-likelihoods exchanged for those of the data."""
        found = self.post.log_evidence(probes, key)
        gain = 0.0
        for block, state, stand_in in zip(self.blocks, self.states, self.stand_ins, strict=True):
            predicted = self.post.predict(stand_in.functional)
            mean, std = np.asarray(predicted.mean, float), np.asarray(predicted.std, float)
            squares = ((stand_in.y - mean) ** 2 + std**2) / stand_in.noise**2
            expected = -0.5 * squares - np.log(stand_in.noise)
            gain += block.expected(state) - float(np.sum(expected - 0.5 * np.log(2 * np.pi)))
        return Estimate(found.value + gain, found.error)

    def observations(self) -> Data:
        return self.data

    def conditioned_on(self) -> Problem:
        return Problem(self.kernel, self.grid, self.data, self.noise, self.trend)

    def scatter(self, likelihood: Likelihood | None) -> Likelihood:
        if likelihood is not None:
            return likelihood.completed(self.method.parameters)
        return common_likelihood([block.likelihood for block in self.blocks])

    @float64_available
    def leave_out(self, groups: Any = None) -> LeaveOut:
        if any(block.functional.uncertain for block in self.data.blocks):
            raise ValueError(
                "leave_out: expected certain places, whose predictions follow from the others alone, got some with a std; "
                "condition on the others"
            )
        numbers = group_numbers(groups, len(self.data))
        found = self.post.leave_out(numbers[self.order])
        return left_out(found, self.blocks, self.states, self.stand_ins, self.order)

    def pack(self) -> tuple[Arrays, Json]:
        """Data, and the states and stand-ins of the last round, from which one Gaussian solve restores the rest."""
        arrays, described = pack_observations(self.data, self.trend)
        arrays["order"] = self.order
        parts = zip(self.blocks, self.states, self.stand_ins, strict=True)
        for number, (block, state, stand_in) in enumerate(parts):
            arrays |= {f"state{number}_{name}": value for name, value in state._asdict().items()}
            arrays[f"stand_in{number}_y"] = stand_in.y
            arrays[f"stand_in{number}_noise"] = np.asarray(stand_in.noise)
            if isinstance(block, Nodal) and isinstance(stand_in.functional, Functionals):
                arrays[f"stand_in{number}_weights"] = stand_in.functional.weights
        return arrays, described
