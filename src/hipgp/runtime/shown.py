"""Representations of objects: a few lines at a prompt, a small table in a notebook."""

import html
from typing import Any

import numpy as np
from jax.core import Tracer


class Shown:
    """A base class with `repr` and a notebook's table, both made from the rows of `_shown`."""

    def _shown(self) -> tuple[str, dict[str, str]]:
        """The title, and the rows as texts by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return as_text(*self._shown())

    def _repr_html_(self) -> str:
        return as_html(*self._shown())


def as_text(title: str, rows: dict[str, str]) -> str:
    """A title and a line for each row."""
    return title + "".join(f"\n  {name}: {text}" for name, text in rows.items())


def as_html(title: str, rows: dict[str, str]) -> str:
    """A title and a table of the rows, as notebooks show it."""
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td style='text-align: left'>{html.escape(text)}</td></tr>"
        for name, text in rows.items()
    )
    return f"<b>{html.escape(title)}</b>" + (f"<table>{cells}</table>" if cells else "")


def numbers(values: Any) -> str:
    """A number, or numbers in brackets, with six digits; for a JAX tracer its shape and type."""
    if isinstance(values, Tracer):
        return str(values.aval)
    array = np.asarray(values)
    if array.ndim == 0:
        return f"{array.item():.6g}"
    return "(" + ", ".join(f"{v:.6g}" for v in array.tolist()) + ("," if len(array) == 1 else "") + ")"


def between(values: Any) -> str:
    """The range of an array, such as "0.1 to 2.3", or its value if all are equal."""
    low, high = np.min(values), np.max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
