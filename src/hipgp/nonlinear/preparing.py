"""A problem as the rounds take it: its blocks in the engines' order, a reader of their nodes, and a constant field to start from."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int

from hipgp.batch.ordering import in_order
from hipgp.model.data import Data, Observations
from hipgp.model.likelihoods import Gaussian
from hipgp.model.links import Link
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend
from hipgp.nonlinear.blocks import Block, Nodal, State, block_of, of_one
from hipgp.nonlinear.nodes import FEW, NodeReader
from hipgp.nonlinear.uncertain import uncertain_block

NEWTON_STEPS = 50  # at most, to the likeliest constant


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A problem's blocks, its data and trend in `order`, and the reader of many nodes (or None)."""

    blocks: list[Block]
    data: Data
    trend: Trend
    order: Int[np.ndarray, " N"]  # which of the user's observations each is
    reader: NodeReader | None

    def start(self) -> list[State]:
        """The states of a constant field: the most likely one if the trend has a constant, zero otherwise."""
        level = _likeliest_level(self.blocks) if self.trend.kind in ("constant", "linear") else 0.0
        return [b.start(level) for b in self.blocks]


def prepare(problem: Problem, link: Link, parameters: dict[str, float], draws: int) -> Prepared:
    """Prepare a problem; `parameters` complete the likelihoods, and `draws` give standard deviations at many nodes."""
    kernel, grid, data, _, trend = problem
    columns = trend.of_data(data, grid) if trend.kind == "columns" else None
    blocks, orders, begin = [], [], 0
    for observations in data.blocks:
        count = len(observations.y)
        block = _block(observations, problem, link, parameters, None)
        if isinstance(block, Nodal) and columns is not None:
            raise ValueError(
                'trend: expected None, "constant" or "linear" where lines or boxes see a field with a link, or places are '
                "uncertain, got columns"
            )
        _, order = in_order(Data((block.stand_in(block.start(0.0), False).observations,)))
        rows = None if columns is None else columns[begin : begin + count][order]
        blocks.append(_block(observations.take(order), problem, link, parameters, rows))
        orders.append(order + begin)
        begin += count
    order = np.concatenate(orders)
    of_nodes = [b.places for b in blocks if isinstance(b, Nodal)]
    many = sum(p.shape[0] * p.shape[1] for p in of_nodes) > FEW
    many = many or any(observations.functional.uncertain for observations in data.blocks)  # needs draws
    inside = all(np.all(grid.outside(p) == 0) for p in of_nodes)
    reader = NodeReader(kernel, grid, trend, draws, of_nodes) if many and inside else None
    within = [order - int(np.min(order)) for order in orders]
    ordered = Data(tuple(g.take(o) for g, o in zip(data.blocks, within, strict=True)))
    return Prepared(blocks, ordered, trend.in_order(order), order, reader)


def _block(
    observations: Observations, problem: Problem, link: Link, parameters: dict[str, float], columns: Any
) -> Block:
    likelihood = Gaussian() if observations.likelihood is None else observations.likelihood
    likelihood = likelihood.completed(parameters)
    std = np.ones(len(observations.y))
    if likelihood.additive:
        std = np.asarray(Data((observations,)).noise_std(problem.noise), float)
    if observations.functional.uncertain:
        return uncertain_block(observations, link, std, problem.grid.spacing, likelihood)
    return block_of(observations, link, std, problem.grid.spacing, likelihood, columns)


def _likeliest_level(blocks: list[Block]) -> float:
    """The constant f of highest likelihood, by Newton's method with steps of at most 2."""
    level = 0.0
    for _ in range(NEWTON_STEPS):
        up = down = 0.0
        for block in blocks:
            stand_in = block.stand_in(block.start(level), False)
            precision, one = 1 / stand_in.noise**2, of_one(stand_in.functional)
            up += float(np.sum(precision * one * (stand_in.y - stand_in.present)))
            down += float(np.sum(precision * one**2))
        change = float(np.clip(up / down if down > 0 else 0.0, -2.0, 2.0))
        level += change
        if abs(change) < 1e-3:
            break
    return level
