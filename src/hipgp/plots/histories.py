"""Pictures of how a fit went: solves, rounds of a linearisation, and learning, step by step."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from hipgp.plots.style import ACCENT, INK, SECOND, figure, styled


@styled
def convergence(trace: Sequence[tuple[int, float]], tolerance: float) -> Figure:
    """The bound on the distance from the exact posterior of the model on its grid after each step of the solve."""
    fig = figure(5.6, 3.6)
    ax = fig.add_subplot()
    steps, nats = np.array(trace, float).reshape(-1, 2).T
    ax.semilogy(steps, nats, "o-", color=SECOND, ms=4)
    ax.axhline(tolerance, color=ACCENT, lw=1, ls=(0, (4, 2)), label=f"tolerance, {tolerance:g} nats")
    ax.set(xlabel="conjugate-gradient step", ylabel="KL from the exact posterior on the grid, at most [nats]")
    ax.legend(fontsize=9)
    return fig


@styled
def rounds(trace: Sequence[Mapping[str, float]], tolerance: float) -> Figure:
    """The distance in nats by which the posterior moved in each round of the linearisation."""
    fig = figure(5.6, 3.6)
    ax = fig.add_subplot()
    nats = np.maximum([t["nats"] for t in trace], 1e-12)
    ax.semilogy(1 + np.arange(len(nats)), nats, "o-", color=SECOND, ms=4)
    ax.axhline(tolerance, color=ACCENT, lw=1, ls=(0, (4, 2)), label=f"tolerance, {tolerance:g} nats")
    ax.set(xlabel="round", ylabel="how far the posterior moved [nats]")
    ax.legend(fontsize=9)
    return fig


@styled
def learning(trace: Sequence[Mapping[str, float]], names: Sequence[str]) -> Figure:
    """The search for the kernel: the likelihood and every parameter against evaluations."""
    fig = figure(8.6, 3.6)
    left, right = fig.subplots(1, 2)
    objective = np.array([t["objective"] for t in trace])
    stage = np.array([t.get("stage", 0) for t in trace])
    for number in np.unique(stage):
        at = np.flatnonzero(stage == number)
        left.plot(
            at,
            objective[at],
            lw=1.6,
            color=[SECOND, ACCENT, INK][int(number) % 3],
            label=f"stage {number + 1:.0f}",
        )
    low, high = np.quantile(objective, [0, 0.9])
    left.set(xlabel="evaluation", ylabel="negative log-likelihood per datum [nats]")
    left.set_ylim(low - 0.05 * (high - low) - 1e-9, high + 0.2 * (high - low) + 1e-9)
    left.legend(fontsize=9)
    for number, name in enumerate(names):
        values = np.array([t[name] for t in trace])
        right.semilogy(
            values,
            lw=1.6,
            label=name,
            color=matplotlib.colormaps["viridis"](0.85 * number / max(1, len(names) - 1)),
        )
    right.set(xlabel="evaluation", ylabel="parameter")
    right.legend(fontsize=8)
    return fig
