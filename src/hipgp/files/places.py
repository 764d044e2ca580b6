"""The places of functionals as columns of a table, named after the axes."""

from collections.abc import Sequence

import numpy as np

from hipgp.model import dates
from hipgp.model.coordinates import Units
from hipgp.model.functionals import BoxAverages, Derivatives, Functional, LineIntegrals, Points

# For each kind, its fields with the form of a column's name.
COLUMNS: dict[type[Functional], dict[str, str]] = {
    Points: {"x": "{}"},
    Derivatives: {"x": "{}"},
    LineIntegrals: {"start": "start_{}", "end": "end_{}"},
    BoxAverages: {"lower": "lower_{}", "upper": "upper_{}"},
}


def columns(functional: Functional, axes: Sequence[str], units: Units = ()) -> dict[str, np.ndarray]:
    """The coordinates of points, both ends of lines and both corners of boxes by name; none of other kinds.

    Along axes whose unit is one of dates they are dates.
    """
    fields, found = COLUMNS.get(type(functional), {}), {}
    for field, form in fields.items():
        for i, axis in enumerate(axes):
            values = getattr(functional, field)[:, i]
            moments = dates.moments(values, units[i]) if units else None
            found[form.format(axis)] = values if moments is None else moments
    return found
