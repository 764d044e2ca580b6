"""The style of all pictures, and figures outside pyplot, which open no window.

Text that matplotlib would take for a formula but cannot read is shown as it is: a label never stops a picture.
"""

import functools
from typing import Any

import matplotlib
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text

INK, ACCENT, SECOND = "#20242c", "#b5403a", "#2a6f97"
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6b7280",
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "savefig.dpi": 150,
    "figure.facecolor": "white",
    "legend.frameon": False,
    "text.usetex": False,
}


def figure(width: float, height: float) -> Figure:
    """An empty figure in this style."""
    with matplotlib.rc_context(STYLE):
        return Figure(figsize=(width, height), layout="constrained")


def save(fig: Figure, path: Any) -> Any:
    """Write the figure, at the style's resolution, and return the path."""
    with matplotlib.rc_context(STYLE):
        fig.savefig(path, dpi=STYLE["savefig.dpi"])
    return path


def styled(function: Any) -> Any:
    """Make a function draw in this style, whatever the caller's matplotlib settings are."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with matplotlib.rc_context(STYLE):
            made = function(*args, **kwargs)
        if isinstance(made, Figure):
            _show_unreadable_formulas_literally(made)
        return made

    return wrapped


def _show_unreadable_formulas_literally(fig: Figure) -> None:
    """Show a name between dollar signs as it is where matplotlib cannot read it as a formula and would stop."""
    for text in fig.findobj(Text):
        try:
            if is_math_text(text.get_text()):
                MathTextParser("path").parse(text.get_text())
        except Exception:  # whatever its parser says: the picture is to be drawn
            text.set_parse_math(False)


@styled
def stacked(rows: int, width: float = 8.6, height: float = 2.9, sharex: bool = False) -> tuple[Figure, Any]:
    """A figure of several pictures on top of each other, and their axes."""
    fig = figure(width, height * rows)
    return fig, fig.subplots(rows, 1, sharex=sharex)
