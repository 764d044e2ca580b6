"""The units that functionals are given in, and those of the field that follow."""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from hipgp.model.coordinates import Units, conversion
from hipgp.model.dates import origin

if TYPE_CHECKING:
    from hipgp.model.functionals import Functional

F = TypeVar("F", bound="Functional")
PLACES = ("x", "start", "end", "lower", "upper", "positions", "vertices")  # the fields that hold coordinates


class Frame(NamedTuple):
    """The unit of each axis, none where coordinates are plain numbers, and that of the field, "" where it is plain."""

    axes: Units = ()
    field: str = ""


def in_units(functional: F, units: Units) -> tuple[F, float]:
    """The functional with coordinates in `units`, and the factor from what it was of the field to what it is now.

    That factor is 1 but for integrals along lines and over areas, which are larger in a shorter unit of length.
    """
    if functional.units == units:
        return functional, 1.0
    by, shift = conversion("functional", functional.units, units)
    by, shift = (np.broadcast_to(a, (functional.ndim,)) for a in (by, shift))
    found: dict[str, Any] = {"units": units}
    for field in dataclasses.fields(functional):
        values = getattr(functional, field.name)
        if field.name in PLACES:
            found[field.name] = by * values + shift
        elif field.name == "direction" and values is not None:
            found[field.name] = by * values  # a step of one in the old unit
    if functional.measure != 1:  # an area is a product of lengths along the axes
        return functional.with_fields(found), float(np.prod(by)) if functional.measure else 1.0
    if np.ptp(by) > 0:
        raise ValueError(
            "functional: expected one unit of length along all axes for integrals along lines, got "
            f"{', '.join(map(repr, functional.units))}; give average=True, or the same unit for all"
        )
    return functional.with_fields(found), float(by[0])


def field_unit(functional: "Functional", unit: str) -> str:
    """The unit of the field, where measurements of it through `functional` are in `unit`."""
    if not unit or not (functional.measure or functional.derivative):
        return unit
    if len(set(functional.units)) != 1:
        axes = ", ".join(repr(u) for u in functional.units) or "plain numbers"
        raise ValueError(
            f"y: expected plain numbers, or coordinates in one unit of which the field's follows, got y in {unit!r} and "
            f"coordinates in {axes}; give both a unit, or none"
        )
    import astropy.units as u

    length = u.Unit("d" if origin(functional.units[0]) else functional.units[0])
    return str(u.Unit(unit) * length if functional.derivative else u.Unit(unit) / length**functional.measure)
