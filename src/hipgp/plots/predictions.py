"""A prediction against its places: a curve with its band in one dimension, coloured points in two, bars otherwise."""

from typing import TYPE_CHECKING, Any

import matplotlib.dates
import numpy as np

from hipgp.plots.images import SPREAD, scale
from hipgp.plots.style import INK, SECOND, figure, styled

if TYPE_CHECKING:
    from hipgp.predictions import Prediction

LEVEL = 0.95


@styled
def draw_prediction(p: "Prediction", ax: Any = None, fig: Any = None) -> Any:
    """The axes with the mean and the 95% interval; two of them, for mean and std, where places are in a plane."""
    if len(p.places) == 2 and ax is None:
        return _in_a_plane(p, figure(9.4, 4.0, fig))
    ax = figure(8.2, 3.8, fig).add_subplot() if ax is None else ax
    names, lower, upper = list(p.places), *p.interval(LEVEL)
    if len(names) == 1 and len(p.mean) > 1:
        x = np.asarray(p.places[names[0]])
        order = np.argsort(x)
        ax.fill_between(
            x[order], lower[order], upper[order], color=SECOND, alpha=0.22, lw=0, label="95% interval"
        )
        ax.plot(x[order], p.mean[order], color=SECOND, lw=1.8, label="posterior mean")
        _dates(ax, x)
        ax.set_xlabel(names[0])
        ax.legend(fontsize=9)
    else:
        x = np.arange(len(p.mean))
        ax.errorbar(
            x, p.mean, (p.mean - lower, upper - p.mean), fmt="o", ms=4, color=SECOND, ecolor=INK, elinewidth=0.9,
            label="posterior mean and 95% interval",
        )  # fmt: skip
        ax.set_xlabel("number of the functional")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend(fontsize=9)
    ax.set_ylabel("prediction")
    return ax


def _in_a_plane(p: "Prediction", fig: Any) -> np.ndarray:
    axes, names = fig.subplots(1, 2, sharex=True, sharey=True), list(p.places)
    x, y = p.places.values()
    size = float(np.clip(4e4 / len(p.mean), 2, 60))
    for ax, title, values, style in (
        (axes[0], "posterior mean", p.mean, scale(p.mean)),
        (axes[1], "std", p.std, {"cmap": SPREAD}),
    ):
        drawn = ax.scatter(x, y, c=values, s=size, lw=0, **style)
        fig.colorbar(drawn, ax=ax, shrink=0.8, aspect=25)
        ax.set(title=title, xlabel=names[0], ylabel=names[1])
        _dates(ax, np.asarray(x))
    return axes


def _dates(ax: Any, x: np.ndarray) -> None:
    if x.dtype.kind == "M":
        locator = matplotlib.dates.AutoDateLocator(maxticks=6)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(matplotlib.dates.ConciseDateFormatter(locator))
