"""Pictures that check a posterior: calibration and residuals."""

import textwrap
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from scipy.stats import norm

from hipgp.plots.images import limits
from hipgp.plots.style import ACCENT, SECOND, figure, styled
from hipgp.scores import describe_calibration

Array = np.ndarray
BARS: dict[str, Any] = {"density": True, "color": SECOND, "alpha": 0.75, "edgecolor": "white"}


def calibration(
    mean: Float[Array, " n"], std: Float[Array, " n"], truth: Float[Array, " n"], title: str = ""
) -> Figure:
    """Coverage of every central interval, the histogram of PIT values, and in words whether the error bars are right."""
    return calibration_of(norm.cdf((np.ravel(truth) - np.ravel(mean)) / np.ravel(std)), title)


@styled
def calibration_of(pit: Float[Array, " n"], title: str = "") -> Figure:
    """Calibration from PIT values, the posterior probabilities below the truth, of any distribution."""
    fig = figure(8.6, 4.2, title=title)
    left, right = fig.subplots(1, 2)
    nominal = np.linspace(0.01, 0.99, 99)
    reached = [np.mean(np.abs(pit - 0.5) <= p / 2) for p in nominal]
    left.plot([0, 100], [0, 100], color="#9aa3af", lw=1)
    left.plot(100 * nominal, 100 * np.array(reached), color=SECOND, lw=2.2)
    left.set(
        xlabel="interval [% of posterior probability]",
        ylabel="truth inside [%]",
        xlim=(0, 100),
        ylim=(0, 100),
    )
    at95 = 100 * float(np.mean(np.abs(pit - 0.5) <= 0.475))
    left.plot(95, at95, "o", color=ACCENT, zorder=3, clip_on=False)
    low = np.mean(reached) < np.mean(nominal)  # the curve passes below the diagonal: the words go above it
    left.annotate(
        f"95% intervals hold\nthe truth {at95:.1f}% of the time", (95, at95), (3, 84) if low else (98, 14),
        ha="left" if low else "right", color=ACCENT,
        arrowprops={"arrowstyle": "-", "color": ACCENT, "lw": 0.8},
    )  # fmt: skip
    left.set_aspect("equal")
    right.hist(pit, bins=20, range=(0, 1), lw=0.6, **BARS)
    right.axhline(1, color="#9aa3af", lw=1)
    right.set(xlabel="posterior probability below the truth (PIT)", ylabel="density", xlim=(0, 1))
    right.set_title("flat is right; a hump: too wide, a bowl: too narrow", fontsize=9, color="#4b5563")
    fig.supxlabel(textwrap.fill(describe_calibration(pit).words, 110), fontsize=9.5)
    return fig


@styled
def residuals(
    measured: Float[Array, " n"],
    predicted: Float[Array, " n"],
    noise: Float[Array, " n"],
    label: str,
    title: str = "",
) -> Figure:
    """Measured against predicted values, and the residuals in units of their expected standard deviation."""
    fig = figure(8.6, 3.9, title=title)
    left, right = fig.subplots(1, 2)
    low, high = limits(measured, predicted, share=1.0)
    left.plot([low, high], [low, high], color="#9aa3af", lw=1)
    left.plot(predicted, measured, ".", ms=5, color=SECOND, alpha=0.45, mew=0)
    left.set(xlabel=f"predicted {label}", ylabel=f"measured {label}")
    left.set_aspect("equal")
    pull = (measured - predicted) / noise
    _beside_a_standard_normal(right, pull, "residual / its expected std")
    right.set_title(f"standard deviation {np.std(pull):.2f}, expected 1", fontsize=9, color="#4b5563")
    return fig


@styled
def standardised(values: Float[Array, " n"]) -> Figure:
    """The histogram of residuals in units of their noise, beside a standard normal."""
    fig = figure(5.6, 3.4)
    _beside_a_standard_normal(fig.add_subplot(), values, "residual / noise")
    return fig


def _beside_a_standard_normal(ax: Any, values: Float[Array, " n"], xlabel: str) -> None:
    x = np.linspace(-5, 5, 200)
    bins = int(np.clip(2 * np.sqrt(len(values)), 10, 40))
    ax.hist(np.clip(values, -5, 5), bins=bins, range=(-5, 5), **BARS)
    ax.plot(x, norm.pdf(x), color=ACCENT, lw=1.4, label="standard normal")
    ax.set(xlabel=xlabel, ylabel="density", xlim=(-5, 5))
    ax.legend(fontsize=9)
