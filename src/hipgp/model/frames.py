"""Units and planes of functionals, and the unit of the field that follows from them."""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from hipgp.model.coordinates import Units, conversion
from hipgp.model.dates import origin
from hipgp.model.quantities import times_length

if TYPE_CHECKING:
    from hipgp.model.functional import Functional

F = TypeVar("F", bound="Functional")
PLACES = ("x", "start", "end", "lower", "upper", "positions", "vertices")  # the fields that hold coordinates
SHORT = {"metre": "m", "kilometre": "km", "US survey foot": "US survey ft", "foot": "ft"}


class Frame(NamedTuple):
    """The unit of each axis (an empty tuple for plain numbers) and the unit of the field ("" for plain numbers).

    `crs` is the coordinate reference system of the plane, "" for coordinates that are not said to be on the Earth.
    """

    axes: Units = ()
    field: str = ""
    crs: str = ""


def plane_units(crs: str) -> Units:
    """The units of the two axes of a plane, such as ("km", "km")."""
    return tuple(SHORT.get(axis.unit_name, str(axis.unit_name)) for axis in _axes(crs))


def _axes(crs: str) -> Any:
    from pyproj import CRS  # type: ignore[import-not-found]

    return CRS.from_user_input(crs).axis_info[:2]


def on_plane(functional: F, crs: str, units: Units) -> tuple[F, float]:
    """The functional on the plane `crs`, and the factor by which that scales its values, as in `in_units`.

    Coordinates without a plane count as on it if they are in its `units`. What is beside the two axes of the plane, such as
    depths or dates, is converted to `units`.
    """
    if not functional.crs and functional.units == units:
        return functional.with_fields({"crs": crs}), 1.0
    if functional.crs == crs:
        return in_units(functional, units)
    if not functional.crs or not crs:
        expected, got = (
            f"places on the plane {one!r}" if one else "plain coordinates" for one in (crs, functional.crs)
        )
        raise ValueError(
            f"functional: expected {expected} like the data, got {got}; give both as GeoDataFrames, or write "
            "hg.Points(x).given_in(post.units) for numbers on the plane of the data"
        )
    if functional.derivative:
        raise ValueError(
            f"functional: expected derivatives on the plane {crs!r} like the data, got some on another"
        )
    from pyproj import Transformer  # type: ignore[import-not-found]

    over = Transformer.from_crs(functional.crs, crs, always_xy=True)
    found = {"crs": crs, "units": (*units[:2], *functional.units[2:])}
    for name in PLACES:
        if (values := getattr(functional, name, None)) is not None:
            x, y = over.transform(values[..., 0], values[..., 1])
            beside = np.moveaxis(values[..., 2:], -1, 0)
            found[name] = np.stack([x, y, *beside], axis=-1).astype(values.dtype)
    metres = [axes[0].unit_conversion_factor for axes in map(_axes, (functional.crs, crs))]
    moved, longer = in_units(functional.with_fields(found), units)
    return moved, longer * float(metres[0] / metres[1]) ** functional.measure


def in_units(functional: F, units: Units) -> tuple[F, float]:
    """The functional with coordinates in `units`, and the factor by which the conversion scales its values.

    The factor is 1 except for integrals along lines and over areas, whose values grow as the unit of length shrinks.
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


def plain_numbers(functional: "Functional", frame: Frame, names: Units) -> "tuple[Functional, float]":
    """A functional as plain numbers in the units of the data, and the factor by which that scales it (`in_units`).

    Where the data have no units, those that the axes are said to have, `names`, are taken.
    """
    units = frame.axes
    if not (functional.units or any(units)):
        return functional, 1.0
    if functional.crs or frame.crs:
        moved, longer = on_plane(functional, frame.crs, units)
        return moved.given_in(()), longer
    if not functional.units:
        raise ValueError(
            f"functional: expected places in {', '.join(map(repr, units))} like the data, got plain numbers; give "
            "dates or quantities, or write hg.Points(x).given_in(post.units) for numbers in these units"
        )
    moved, longer = in_units(functional, units or names)
    return moved.given_in(()), longer


def field_unit(functional: "Functional", unit: str) -> str:
    """The unit of the field if measurements through `functional` are in `unit`."""
    if not unit or not (functional.measure or functional.derivative):
        return unit
    if len(set(functional.units)) != 1:
        axes = ", ".join(repr(u) for u in functional.units) or "plain numbers"
        raise ValueError(
            f"y: expected plain numbers, or coordinates in one unit, which sets that of the field, got y in {unit!r} and "
            f"coordinates in {axes}; give both a unit, or none"
        )
    length = "d" if origin(functional.units[0]) else functional.units[0]
    return times_length(unit, length, 1 if functional.derivative else -functional.measure)
