"""Curves: a series or a line of sight with its band, draws, truth and data."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from hipgp.model.data import Data
from hipgp.plots.images import across, date_ticks
from hipgp.plots.observed import draw_series
from hipgp.plots.style import ACCENT, INK, SECOND, figure, styled

Array = np.ndarray


@styled
def profile(
    x: Float[Array, " n"],
    mean: Float[Array, " n"],
    std: Float[Array, " n"],
    *,
    xlabel: str,
    ylabel: str,
    samples: Float[Array, "s n"] | None = None,
    truth: Float[Array, " n"] | None = None,
    points: tuple[Array, Array] | None = None,
    band: tuple[Array, Array] | None = None,
    title: str = "",
    data: Data | None = None,
    unit: str = "",
    ax: Any = None,
    fig: Figure | None = None,
) -> Figure:
    """A curve: the mean with its 95% band, and draws, the truth and the data where they are given.

    `band` are the ends of the band where it is not mean ± 1.96 std, such as `found.interval(0.95)` of a positive field.
    `unit` is that of x: where it is one of dates, such as "days since 2020-01-01", the axis shows dates.
    """
    ax = figure(8.2, 3.8, fig).add_subplot() if ax is None else ax
    x = across(x, unit)
    lower, upper = (mean - 1.96 * std, mean + 1.96 * std) if band is None else band
    ax.fill_between(x, lower, upper, color=SECOND, alpha=0.22, lw=0, label="95% interval")
    if samples is not None:
        ax.plot(x, samples.T, color=SECOND, lw=0.6, alpha=0.55)
    ax.plot(x, mean, color=SECOND, lw=1.8 if len(x) <= 2500 else 0.7, label="posterior mean")
    if truth is not None:
        ax.plot(x, truth, color=ACCENT, lw=1.2, ls=(0, (4, 2)), label="truth")
    if points is not None:
        ax.plot(*points, ".", color=INK, ms=3, alpha=0.6, mew=0, label="data", zorder=1)
    if data is not None:
        draw_series(ax, data, unit)
    ax.set(xlabel=xlabel, ylabel=ylabel, title=title, xlim=(x[0], x[-1]))
    date_ticks(ax, unit)
    ax.legend(loc="best", fontsize=9)
    return ax.figure
