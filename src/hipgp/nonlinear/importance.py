"""Accuracy of the Gaussian posterior q: importance weights of its draws, and the Pareto shape of their tail.

q is the prior times the Gaussian likelihoods of the stand-ins, so the ratio of the true posterior to q is a ratio of
likelihoods, without a determinant or K^-1. The Pareto shape k of the largest weights tells how far they can be trusted
(Vehtari and others 2024): below 0.7 draws of q can be reweighted; above it the tails of q may be wrong.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from hipgp.engines import FittedPosterior, as_key
from hipgp.model.functionals import Functional, Functionals, Points
from hipgp.model.nodes import Nodes
from hipgp.nonlinear.blocks import Block, Direct, Nodal, StandIn
from hipgp.predictions import SampleOptions
from hipgp.runtime.callers import warn_caller

TRUSTED = 0.7
LOG_2PI = float(np.log(2 * np.pi))


def pareto_facts(
    post: FittedPosterior, blocks: list[Block], stand_ins: list[StandIn], count: int
) -> dict[str, float]:
    """The Pareto shape and the effective number of draws, for the diagnostics, with a warning if the shape is too large."""
    log = importance_weights(post, blocks, stand_ins, count, 0)
    k, w = pareto_shape(log), np.exp(log - np.max(log))
    if k > TRUSTED:
        warn_caller(
            f"importance weights of {count} draws have a Pareto shape of {k:.2f}, above {TRUSTED}: the Gaussian posterior of f "
            "differs from the true one by more than these draws can correct; its tails may be off",
        )
    return {"pareto_k": k, "effective_draws": float(np.sum(w) ** 2 / np.sum(w**2))}


def pareto_shape(log_weights: Float[np.ndarray, " S"]) -> float:
    """k of the generalised Pareto distribution fitted to the largest weights (Zhang and Stephens 2009)."""
    w = np.sort(np.exp(log_weights - np.max(log_weights)))
    count = len(w)
    tail = int(min(0.2 * count, 3 * np.sqrt(count)))
    excess = w[-tail:] - w[-tail - 1]
    excess = excess[excess > 0]
    n = len(excess)
    if n < 5:
        return float("inf")  # a few draws carry all the weight
    tried = 30 + int(np.sqrt(n))
    quartile = excess[int(n / 4 + 0.5) - 1]
    theta = 1 / excess[-1] + (1 - np.sqrt(tried / (np.arange(1, tried + 1) - 0.5))) / (3 * quartile)
    k = np.mean(np.log1p(-theta[:, None] * excess), axis=1)
    profile = n * (np.log(-theta / k) - k - 1)
    share = 1 / np.sum(np.exp(profile - profile[:, None]), axis=1)
    best = float(np.sum(theta * share))
    shape = float(np.mean(np.log1p(-best * excess)))
    return (n * shape + 5) / (n + 10)  # a weak prior at 0.5


def importance_weights(
    post: FittedPosterior, blocks: list[Block], stand_ins: list[StandIn], count: int, key: int
) -> Float[np.ndarray, " S"]:
    """The log of the ratio of the true posterior to q at draws of q, up to a constant."""
    drawn = _drawn(post, blocks, count, key)
    out = np.zeros(count)
    for block, stand_in, values in zip(blocks, stand_ins, drawn, strict=True):
        linear = values
        if isinstance(block, Nodal):
            linear = np.sum(stand_in.functional.weights * values, axis=2)  # type: ignore[attr-defined]
        gaussian = -0.5 * (((stand_in.y - linear) / stand_in.noise) ** 2 + LOG_2PI) - np.log(stand_in.noise)
        out += block.log_likelihood(values) - np.sum(gaussian, axis=1)
    return out


def _drawn(post: FittedPosterior, blocks: list[Block], count: int, key: int) -> list[np.ndarray]:
    """Joint draws of f at each block's nodes, or of its functional."""
    parts: list[Functional] = [
        b.target if isinstance(b, Direct) else Points(b.places.reshape(-1, b.places.shape[2]))  # type: ignore[attr-defined]
        for b in blocks
    ]
    joint = parts[0] if len(parts) == 1 else _together(parts, post.grid.spacing)
    draws = post.sample(SampleOptions(count, as_key(key)), joint)
    cuts = np.cumsum([len(p) for p in parts])[:-1]
    shaped = lambda a, b: a.reshape(count, *b.weights.shape) if isinstance(b, Nodal) else a
    return [
        np.asarray(shaped(a, b), float) for a, b in zip(np.split(draws, cuts, axis=1), blocks, strict=True)
    ]


def _together(parts: list[Functional], spacing: Any) -> Functional:
    """Join functionals of several kinds, so that they are drawn jointly."""
    nodes = Nodes.concatenate([part.nodes(spacing) for part in parts])
    if nodes.direction is not None:
        raise ValueError(
            "importance: expected 0 where derivatives and other functionals are observed together, whose draws are not joint, "
            "got more"
        )
    return Functionals(nodes.x, nodes.weights)
