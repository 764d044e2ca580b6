"""Pictures of a prior: covariance against distance, and draws."""

from typing import Any

import numpy as np

from hipgp.model.dates import origin
from hipgp.model.kernel_scales import typical_lengthscale
from hipgp.model.kernel_words import describe
from hipgp.model.kernels import Kernel
from hipgp.plots.style import ACCENT, INK, SECOND, figure, styled

REACH, DRAWS, POINTS = 4.0, 3, 300  # lengthscales; draws, and their points


@styled
def draw_prior(
    kernel: Kernel, noise: float | None = None, units: tuple[str, ...] = (), ndim: int = 1, fig: Any = None
) -> np.ndarray:
    """Two axes: the covariance against the distance along each axis, and draws along the first, with the noise's bars."""
    fig = figure(9.4, 3.6, fig)
    left, right = axes = fig.subplots(1, 2)
    lengths = np.asarray(typical_lengthscale(kernel, ndim), float)
    distinct = np.unique(lengths, return_index=True)[1] if len(set(units)) <= 1 else range(ndim)
    for number, colour in zip(sorted(distinct), (SECOND, ACCENT, INK, "#6b7280"), strict=False):
        distance = np.linspace(0, REACH * lengths.max(), POINTS)
        x = np.zeros((POINTS, ndim))
        x[:, number] = distance
        label = None if len(lengths) == 1 or len(distinct) == 1 else f"along axis {number}"
        left.plot(
            distance, np.asarray(kernel(x, np.zeros((1, ndim))))[:, 0], color=colour, lw=1.8, label=label
        )
    named = [u.split()[0] if origin(u) else u for u in units[:1] if u]
    label = f"distance [{named[0]}]" if named else "distance"
    left.set(xlabel=label, ylabel="covariance", title="covariance of two values", xlim=(0, None))
    if left.get_legend_handles_labels()[0]:
        left.legend(fontsize=9)
    x = np.zeros((POINTS, ndim))
    x[:, 0] = np.linspace(0, 2.5 * REACH * lengths[0], POINTS)
    gram = np.asarray(kernel(x, x), float)
    values, vectors = np.linalg.eigh(gram)  # nearly singular for smooth kernels
    white = np.random.default_rng(0).standard_normal((POINTS, DRAWS))
    drawn = vectors @ (np.sqrt(np.maximum(values, 0))[:, None] * white)
    right.plot(x[:, 0], drawn, lw=1.3, color=SECOND, alpha=0.8)
    if noise is not None:
        at = slice(POINTS // 20, None, POINTS // 10)
        right.errorbar(
            x[at, 0], drawn[at, 0], noise, fmt="none", ecolor=INK, elinewidth=0.9, label="noise of a value"
        )
        right.legend(fontsize=9)
    right.set(xlabel=label.replace("distance", "place"), ylabel="field", title=f"{DRAWS} draws of the prior")
    fig.suptitle(describe(kernel, units), fontsize=10)
    return axes
