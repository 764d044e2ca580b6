"""Maps of the whole sky."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from hipgp.plots.images import SPREAD, VALUE, limits
from hipgp.plots.style import INK, figure, styled

Array = np.ndarray


@styled
def sky(
    longitude: Float[Array, " a"], latitude: Float[Array, " b"], panels: Mapping[str, Float[Array, "a b"]], label: str,
    title: str = "",
) -> Figure:  # fmt: skip
    """Whole-sky maps in the Mollweide projection; angles in degrees, the galactic centre in the middle."""
    fig = figure(5.6 * len(panels), 4.3)
    if title:
        fig.suptitle(title + "\n", fontweight="bold")  # the empty line keeps it off the panels' titles
    shared = limits(*[v for k, v in panels.items() if k != "std"])
    for number, (name, values) in enumerate(panels.items()):
        ax = fig.add_subplot(1, len(panels), number + 1, projection="mollweide")
        # longitude grows to the left, as seen from inside
        is_spread = name == "std"
        low, high = (0.0, limits(values)[1]) if is_spread else shared
        drawn = ax.pcolormesh(
            -np.deg2rad(longitude), np.deg2rad(latitude), values.T, cmap=SPREAD if is_spread else VALUE, vmin=low, vmax=high,
            shading="gouraud", rasterized=True,
        )  # fmt: skip
        ax.grid(color="white", alpha=0.25, lw=0.5)
        ax.set_xticks(np.deg2rad([-120, -60, 0, 60, 120]), ["120°", "60°", "0°", "300°", "240°"], fontsize=8)
        ax.tick_params(axis="x", colors="#e5e7eb")
        for tick in ax.get_xticklabels():  # legible on dark and on bright
            tick.set_path_effects([withStroke(linewidth=1.6, foreground=INK)])
        ax.tick_params(axis="y", labelsize=8)
        ax.set_title(name, pad=12)
        fig.colorbar(
            drawn,
            ax=ax,
            orientation="horizontal",
            shrink=0.6,
            pad=0.06,
            label=f"std of {label}" if is_spread else label,
        )
    return fig
