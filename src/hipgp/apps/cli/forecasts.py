"""Places between two ends of a single axis, such as the dates of a forecast."""

from typing import Any

import numpy as np
import pandas as pd

import hipgp as hg
from hipgp.apps.cli.console import BadInput
from hipgp.apps.cli.reading import Sheet
from hipgp.model import dates

USUAL, MOST = 200, 1_000_000  # places


def places(post: hg.Posterior, begin: str, end: str, step: str) -> Sheet:
    """A table with a row for every step from `begin` to `end`, both dates or numbers as the map's axis is."""
    if post.grid.ndim != 1 or post.design is not None:
        raise BadInput(
            "from, to: expected a map of a single axis without a trend in columns, got another; give a table of places"
        )
    dated = dates.origin(post.labels.axis_units[0]) is not None
    first, last = (_end(name, text, dated) for name, text in (("from", begin), ("to", end)))
    if not first < last:
        raise BadInput(f"to: expected an end after {begin}, got {end}")
    size = (last - first) / (USUAL - 1) if not step else _step(step, dated)
    if not 0 <= (last - first) / size < MOST:
        raise BadInput(f"step: expected a positive one, and at most {MOST:,} places, got {step}")
    count = int((last - first) / size * (1 + 1e-12)) + 1
    return Sheet(pd.DataFrame({post.labels.axes[0]: [first + i * size for i in range(count)]}), {})


def _end(name: str, text: str, dated: bool) -> Any:
    try:
        found: Any = pd.to_datetime(text, format="ISO8601", utc=True) if dated else float(text)
    except ValueError:
        found = np.nan
    if pd.isna(found) or (not dated and not np.isfinite(found)):
        expected = "a date such as 2020-02-01" if dated else "a number"
        raise BadInput(f"{name}: expected {expected} like the map's axis, got {text!r}")
    return found


def _step(text: str, dated: bool) -> Any:
    none: Any = pd.Timedelta(0) if dated else 0.0
    try:
        found: Any = pd.Timedelta(text) if dated else float(text)
    except ValueError:
        found = none
    if pd.isna(found) or not found > none:
        expected = "a duration such as 6h or 1D" if dated else "a positive number"
        raise BadInput(f"step: expected {expected}, got {text!r}")
    return found
