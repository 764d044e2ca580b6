"""Pictures of arrays on grids: maps and slices, curves with bands, whole skies, and checks of a posterior.

Every function returns a matplotlib `Figure` outside pyplot, which opens no window: save it with `save(figure, path)`.
With `fig=`, it is drawn on that one, such as pyplot's. Colours are perceptually uniform and survive printing in grey.
"""

from hipgp.plots.checks import calibration, calibration_of, residuals, standardised
from hipgp.plots.curves import profile
from hipgp.plots.globe import globe
from hipgp.plots.graticule import draw_graticule
from hipgp.plots.histories import convergence, learning, rounds
from hipgp.plots.images import SIGNED, SPREAD, VALUE, across, date_ticks, image, limits, scale, spread_scale
from hipgp.plots.maps import maps, slices
from hipgp.plots.observed import draw_observed
from hipgp.plots.sky import sky
from hipgp.plots.style import ACCENT, INK, SECOND, STYLE, Figure, figure, save, stacked, styled

__all__ = [
    "ACCENT",
    "INK",
    "SECOND",
    "SIGNED",
    "SPREAD",
    "STYLE",
    "VALUE",
    "Figure",
    "across",
    "calibration",
    "calibration_of",
    "convergence",
    "date_ticks",
    "draw_graticule",
    "draw_observed",
    "figure",
    "globe",
    "image",
    "learning",
    "limits",
    "maps",
    "profile",
    "residuals",
    "rounds",
    "save",
    "scale",
    "sky",
    "slices",
    "spread_scale",
    "stacked",
    "standardised",
    "styled",
]
