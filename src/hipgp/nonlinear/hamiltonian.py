"""Draws of the true posterior by Hamiltonian steps, with the Gaussian posterior q as the reference measure.

With d the deviation from q's mean and v a velocity, both with q's covariance S, the Hamiltonian is

    H = (d' S^-1 d + v' S^-1 v) / 2 - phi(d),      phi = log(true posterior / q).

The quadratic part is solved exactly: d and v rotate into each other. In between v is kicked by S times the gradient of phi,
which takes one solve of the Gaussian engine. A trajectory is accepted with probability exp(-change of H), so that draws are of the
true posterior on the grid whatever the length of a step; where q is nearly right long steps are accepted. Velocities are drawn
from q to DRAW nats. The solves of kicks need not be exact: with G the approximation of S c,
S^-1 G = c + [W X]' (N^-1 [W X] G - alpha) holds for any alpha, so that the change of H is computed without error. (Beskos and
others 2011; Neal 2011, section 5.5.1.)

The field between grid points is its interpolation from the grid, here and in what is drawn.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from hipgp.engines import FittedPosterior, as_key
from hipgp.model.functionals import Functional, Points
from hipgp.model.trend import Trend
from hipgp.nonlinear.blocks import Block, Direct, Nodal
from hipgp.runtime.callers import warn_caller
from hipgp.runtime.programs import bounded_jit
from hipgp.weights.stencil_geometry import STENCIL
from hipgp.weights.stencils import local_weight_rows

CHAINS = 16
WARM_UP, BETWEEN = 24, 3  # trajectories before the first draws, and from each set of draws to the next
ARC = np.pi / 2  # length of a trajectory, after which draws of q itself are independent
FIRST, LEAST, MOST = 0.25, 0.02, ARC / 2  # length of a step
WANTED, LOW = 0.8, 0.4  # acceptance
GAIN = 0.5  # of the logarithm of the step's length, for each trajectory of the warm-up
SOLVE, DRAW = 1e-3, 1e-3  # nats
AGREED = 1.2  # ratio of the spreads among and within chains, up to which they agree


class Drawn(NamedTuple):
    """Draws of the latent field on the grid, trend included, and the diagnostics of the chains."""

    values: Float[np.ndarray, "S M"]
    facts: dict[str, float]


class ChainState(NamedTuple):
    """Positions d of all chains, the ratio phi there, its gradient times S, and the dual vector of that.

    A vector holds a field, the trend's coefficients, and the values of the data's functionals and of the blocks' nodes, one
    row for each chain. All of these rotate alike.
    """

    d: Float[np.ndarray, "B n"]
    phi: Float[np.ndarray, " B"]
    push: Float[np.ndarray, "B n"]
    dual: "Dual"


class Dual(NamedTuple):
    """The dual vector S^-1 G: c in field and coefficients, and rho in the values of the data's functionals."""

    gradient: Float[np.ndarray, "B m"]
    rho: Float[np.ndarray, "B N"]

    def dot(self, v: Float[np.ndarray, "B n"]) -> Float[np.ndarray, " B"]:
        m, n = self.gradient.shape[1], self.rho.shape[1]
        return np.sum(self.gradient * v[:, :m], axis=1) + np.sum(self.rho * v[:, m : m + n], axis=1)


class Ratio:
    """The log ratio phi of the true posterior to q, and its gradient, as functions of the deviation from q's mean."""

    def __init__(self, post: FittedPosterior, trend: Trend, blocks: list[Block]):
        self.q, self.blocks = post.reference(), blocks
        parts = [_rows(post, trend, block) for block in blocks]
        self.nodes = scipy.sparse.vstack([scipy.sparse.hstack(part) for part in parts]).tocsr()
        self.nodes_transposed = self.nodes.T.tocsr()
        self.cuts = np.cumsum([part[0].shape[0] for part in parts])[:-1]
        self.at_mean = self.nodes @ np.concatenate([self.q.field, self.q.beta])

    @property
    def size(self) -> int:
        """The number of grid points."""
        return len(self.q.field)

    @property
    def width(self) -> int:
        """The number of grid points and of the trend's coefficients."""
        return self.size + len(self.q.beta)

    def vector(self, field: np.ndarray, beta: np.ndarray) -> Float[np.ndarray, "B n"]:
        """The vector of deviations of field and coefficients."""
        x = np.concatenate([field, beta], axis=1)
        return np.concatenate([x, self.q.observe(field, beta), (self.nodes @ x.T).T], axis=1)

    def at(self, d: Float[np.ndarray, "B n"]) -> ChainState:
        m, n = self.width, len(self.q.noise)
        left = (
            self.q.alpha - d[:, m : m + n] / self.q.noise
        )  # residuals of the stand-ins over their noise variances
        phi = 0.5 * np.sum(self.q.noise * left**2, axis=1)
        slopes = []
        of_blocks = np.split(self.at_mean + d[:, m + n :], self.cuts, axis=1)
        for block, values in zip(self.blocks, of_blocks, strict=True):
            log, slope = _log_likelihood(block, values.reshape(len(d), *_shape(block)))
            phi = phi + np.asarray(log, float)
            slopes.append(np.asarray(slope, float).reshape(len(d), -1))
        gradient = (self.nodes_transposed @ np.concatenate(slopes, axis=1).T).T
        gradient -= np.concatenate(self.q.observe_transpose(left), axis=1)
        bad = ~(np.isfinite(phi) & np.all(np.isfinite(gradient), axis=1))
        gradient[bad], phi[bad] = 0.0, -np.inf
        return ChainState(d, phi, *self._pushed(gradient))

    def _pushed(self, c: Float[np.ndarray, "B m"]) -> tuple[np.ndarray, Dual]:
        """S c, and S^-1 of it."""
        found = self.q.times(c[:, : self.size], c[:, self.size :], SOLVE)
        out = self.vector(found.field, found.beta)
        of_data = out[:, self.width : self.width + len(self.q.noise)]
        return out, Dual(c, of_data / self.q.noise - found.alpha)

    def draws(self, count: int, key: Any) -> Float[np.ndarray, "S n"]:
        """Deviations drawn from q."""
        found = self.q.draws(count, key, DRAW)
        return self.vector(found.field, found.beta)


def drawn(ratio: Ratio, count: int, key: Any, report: Callable[[int, int], None]) -> Drawn:
    """`count` draws of the true posterior, from several chains."""
    rng = np.random.default_rng(0)
    chains = min(CHAINS, count, ratio.q.at_once)
    sets = -(-count // chains)
    total, step, key = WARM_UP + BETWEEN * sets, FIRST, as_key(key)
    now = ratio.at(ratio.draws(chains, jax.random.fold_in(key, 0)))
    kept, levels, accepted = [], [], []
    for number in range(total):
        velocity = ratio.draws(chains, jax.random.fold_in(key, number + 1))
        now, chance = _trajectory(ratio, now, velocity, step, rng)
        if number < WARM_UP:
            step *= float(np.exp(GAIN * (np.mean(chance) - WANTED)))
            step = float(np.clip(step, LEAST, MOST))
        else:
            accepted.append(np.mean(chance))
            levels.append(now.phi)
            if (number - WARM_UP + 1) % BETWEEN == 0:
                kept.append(now.d[:, : ratio.width])
        report(number + 1, total)
    facts = {
        "acceptance": float(np.mean(accepted)),
        "step": step,
        "trajectories": total,
        "chains": chains,
        "chains_spread": spread_of_chains(np.array(levels)),
    }
    _warn(facts)
    x = np.concatenate(kept)[:count]
    field, beta = ratio.q.field + x[:, : ratio.size], ratio.q.beta + x[:, ratio.size :]
    return Drawn(field + beta @ ratio.q.on_grid.T, facts)


def _trajectory(
    ratio: Ratio, now: ChainState, velocity: np.ndarray, step: float, rng: np.random.Generator
) -> tuple[ChainState, np.ndarray]:
    """Each chain's next position, and the probability with which it was accepted."""
    steps = max(1, round(ARC / step))
    angle = min(step, ARC / steps) * rng.uniform(0.8, 1.0)  # no trajectory is a whole period of a mode
    to, change = now, np.zeros(len(velocity))
    for number in range(steps + 1):
        part = 0.5 * angle if number in (0, steps) else angle
        change += part * to.dual.dot(velocity) + 0.5 * part**2 * to.dual.dot(to.push)
        velocity = velocity + part * to.push
        if number < steps:
            turned = np.cos(angle) * to.d + np.sin(angle) * velocity
            velocity = np.cos(angle) * velocity - np.sin(angle) * to.d
            to = ratio.at(turned)
    log = np.nan_to_num(to.phi - now.phi - change, nan=-np.inf)
    chance = np.exp(np.minimum(log, 0.0))
    taken = rng.uniform(size=len(chance)) < chance
    return jax.tree.map(lambda a, b: np.where(_rows_like(taken, a), b, a), now, to), chance


def _rows_like(taken: np.ndarray, a: np.ndarray) -> np.ndarray:
    return taken.reshape(-1, *[1] * (np.ndim(a) - 1))


def spread_of_chains(levels: Float[np.ndarray, "T B"]) -> float:
    """The ratio of the spread of all values to that within half chains (split R-hat): near 1 where chains agree."""
    half = len(levels) // 2
    if half < 2:
        return float("nan")
    parts = np.concatenate([levels[:half], levels[half : 2 * half]], axis=1)
    within, among = np.mean(np.var(parts, axis=0, ddof=1)), np.var(np.mean(parts, axis=0), ddof=1)
    return float(np.sqrt((half - 1) / half + among / within)) if within > 0 else float("nan")


def _warn(facts: dict[str, float]) -> None:
    if facts["acceptance"] < LOW or facts["chains_spread"] > AGREED:
        warn_caller(
            f"the draws of the true posterior may not have converged: {100 * facts['acceptance']:.0f}% of the trajectories were "
            f"accepted, and the spread of {facts['chains']} chains is {facts['chains_spread']:.2f} times that within one; the "
            "posterior may have several modes, or the Gaussian one may be far from it"
        )


def _rows(post: FittedPosterior, trend: Trend, block: Block) -> tuple[Any, Any]:
    """The weights of a block's nodes or functional on the grid, and the trend's columns there."""
    functional = functional_of(block)
    p = STENCIL if post.grid.ndim <= 2 else 2
    columns = block.columns if isinstance(block, Direct) else None
    matrix = local_weight_rows(post.kernel, post.grid, [functional], p).matrix
    return matrix, scipy.sparse.csr_array(trend.of(functional, post.grid, columns))


def functional_of(block: Block) -> Functional:
    """The functional that a block's likelihood depends on: its own functional, or f at its nodes."""
    if isinstance(block, Direct):
        return block.target
    assert isinstance(block, Nodal)
    return Points(block.places.reshape(-1, block.places.shape[2]))


def _shape(block: Block) -> tuple[int, ...]:
    return block.weights.shape if isinstance(block, Nodal) else (len(block.y),)


@bounded_jit()
def _log_likelihood(block: Block, values: Any) -> tuple[Array, Array]:
    """The log-likelihood of each draw, (S,), and its derivative in every value."""
    log, back = jax.vjp(block.log_densities, jnp.asarray(values))
    return log.sum(axis=1), back(jnp.ones_like(log))[0]
