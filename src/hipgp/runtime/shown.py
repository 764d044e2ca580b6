"""How objects show themselves: a few lines at a prompt, a small table in a notebook."""

import html
from typing import Any

import numpy as np
from jax.core import Tracer


class Shown:
    """A base class with `repr` and a notebook's table, both made from what `_shown` tells."""

    def _shown(self) -> tuple[str, dict[str, str]]:
        """A title, and rows of a name and a text each."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, rows = self._shown()
        return title + "".join(f"\n  {name}: {text}" for name, text in rows.items())

    def _repr_html_(self) -> str:
        title, rows = self._shown()
        cells = "".join(
            f"<tr><td>{html.escape(name)}</td><td style='text-align: left'>{html.escape(text)}</td></tr>"
            for name, text in rows.items()
        )
        return f"<b>{html.escape(title)}</b>" + (f"<table>{cells}</table>" if cells else "")


def numbers(values: Any) -> str:
    """A number, or numbers in brackets, with six digits; the type of what JAX is tracing."""
    if isinstance(values, Tracer):
        return str(values.aval)
    array = np.asarray(values)
    if array.ndim == 0:
        return f"{array.item():.6g}"
    return "(" + ", ".join(f"{v:.6g}" for v in array.tolist()) + ("," if len(array) == 1 else "") + ")"


def between(values: Any) -> str:
    """The range of an array in words, such as "0.1 to 2.3", or its one value."""
    low, high = np.min(values), np.max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
