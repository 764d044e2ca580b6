"""The style of all pictures, and figures outside pyplot, which open no window.

Text that matplotlib would take for a formula but cannot read is shown as it is: a label never stops a picture. Characters
that the usual font lacks are drawn with another font of this machine; a warning names those that no font has.
"""

import functools
import warnings
from typing import Any

import matplotlib
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text

from hipgp.runtime.callers import warn_caller

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


def figure(width: float, height: float, fig: Figure | None = None, title: str = "") -> Figure:
    """An empty figure in this style, with a title unless that is empty; `fig` in this size where it is given."""
    if fig is None:
        with matplotlib.rc_context(STYLE):
            fig = Figure(figsize=(width, height), layout="constrained")
    else:
        fig.set_size_inches(width, height)
        fig.set_layout_engine("constrained")
    if title:
        fig.suptitle(title, fontweight="bold")
    return fig


def shown() -> Figure:
    """A new figure of pyplot, which notebooks and `plt.show()` show; to be given a size by what is drawn on it."""
    import matplotlib.pyplot as plt

    return plt.figure()


def save(fig: Figure, path: Any, dpi: float = STYLE["savefig.dpi"], format: str | None = None) -> Any:
    """Write the figure to a path, or to a file in a `format`, and return it."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # said when the figure was made
        fig.savefig(
            path, dpi=dpi, format=format, bbox_inches="tight"
        )  # labels of panels of one aspect may stick out
    return path


def styled(function: Any) -> Any:
    """Make a function draw in this style, whatever the caller's matplotlib settings are."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with matplotlib.rc_context(STYLE):
            made = function(*args, **kwargs)
        if isinstance(made, Figure):
            _show_unreadable_formulas_literally(made)
            _find_fonts(made)
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


def _find_fonts(fig: Figure) -> None:
    """Let other fonts of this machine draw what the usual one lacks, and say which characters none of them has."""
    texts = [text for text in fig.findobj(Text) if not text.get_text().isascii()]
    lost: set[str] = set()
    for text in texts:
        usual = get_font(findfont(text.get_fontproperties()))
        lacking = {c for c in text.get_text() if c.isprintable() and not usual.get_char_index(ord(c))}
        if lacking:
            found = {c: _family_with(c) for c in sorted(lacking)}
            text.set_fontfamily([*text.get_fontfamily(), *sorted({name for name in found.values() if name})])
            lost |= {c for c, name in found.items() if not name}
    if lost:
        warn_caller(
            f"no font on this machine has {' '.join(sorted(lost))}: such characters are drawn as boxes; install a font "
            "that has them, such as Noto Sans of the script in question, or use other names"
        )


@functools.cache
def _family_with(character: str) -> str | None:
    """The first family of fonts, in the order of their names, that can draw this character."""
    for entry in sorted(fontManager.ttflist, key=lambda entry: (entry.name, entry.fname)):
        plain = (entry.style, entry.variant, entry.weight) == ("normal", "normal", 400)
        if plain and not entry.name.startswith("Last Resort"):  # whose characters are all boxes
            try:
                if get_font(findfont(FontProperties(family=entry.name))).get_char_index(ord(character)):
                    return entry.name
            except (OSError, RuntimeError, ValueError):  # a font that cannot be read
                continue
    return None


@styled
def stacked(rows: int, width: float = 8.6, height: float = 2.9, sharex: bool = False) -> tuple[Figure, Any]:
    """A figure of several pictures on top of each other, and their axes."""
    fig = figure(width, height * rows)
    return fig, fig.subplots(rows, 1, sharex=sharex)
