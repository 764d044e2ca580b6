"""The places of functionals as columns of a table, named after the axes."""

from collections.abc import Sequence

import numpy as np

from hipgp.model.functionals import BoxAverages, Derivatives, Functional, LineIntegrals, Points

# For each kind, its fields with the form of a column's name.
COLUMNS: dict[type[Functional], dict[str, str]] = {
    Points: {"x": "{}"},
    Derivatives: {"x": "{}"},
    LineIntegrals: {"start": "start_{}", "end": "end_{}"},
    BoxAverages: {"lower": "lower_{}", "upper": "upper_{}"},
}


def columns(functional: Functional, axes: Sequence[str]) -> dict[str, np.ndarray]:
    """The coordinates of points, both ends of lines and both corners of boxes by name; none of other kinds."""
    fields = COLUMNS.get(type(functional), {})
    return {
        form.format(axis): getattr(functional, field)[:, i]
        for field, form in fields.items()
        for i, axis in enumerate(axes)
    }
