"""Units of measurement as strings: of quantities of astropy and of pint, and the conversions between them."""

from typing import Any


def is_quantity(value: Any) -> bool:
    """Whether these are numbers with a unit, of astropy or of pint."""
    return _of_astropy(value) or _of_pint(value)


def split(value: Any) -> tuple[Any, str]:
    """The numbers and the unit, which is "" for plain numbers."""
    if hasattr(type(value), "unit") and hasattr(value, "quantity"):  # a column of an astropy table
        value = value if value.unit is None else value.quantity
    if _of_astropy(value):
        return value.to_value(value.unit), str(value.unit)
    if _of_pint(value):
        return value.magnitude, f"{value.units:~C}"
    if isinstance(value, list | tuple) and value and all(map(_of_pint, value)):
        unit = value[0].units
        return [one.to(unit).magnitude for one in value], f"{unit:~C}"
    return value, ""


def _of_astropy(value: Any) -> bool:
    return hasattr(value, "to_value") and getattr(value, "unit", None) is not None


def _of_pint(value: Any) -> bool:
    return all(hasattr(type(value), name) for name in ("magnitude", "units", "dimensionality"))


def factor(name: str, unit: str, wanted: str) -> float:
    """The size of `unit` in units of `wanted`; a ValueError if they do not convert."""
    if unit == wanted:
        return 1.0
    if not unit or not wanted:
        remedy = "give all of them a unit, or none" if unit else "multiply them by their unit"
        raise ValueError(
            f"{name}: expected {in_words(wanted)} like the others, got {in_words(unit)}; {remedy}"
        )
    try:
        one, other = _parsed(unit, wanted)
        return float((1 * one).to(other).magnitude if hasattr(one, "dimensionality") else one.to(other))
    except ImportError:
        raise
    except Exception:  # what astropy and pint raise for units that are unknown or do not convert
        raise ValueError(
            f"{name}: expected a unit that converts to {wanted!r} like the others, got {unit!r}"
        ) from None


def times_length(unit: str, length: str, power: int) -> str:
    """The unit of `unit` times a length to a power, such as mag/kpc for mag, kpc and -1."""
    one, other = _parsed(unit, length)
    found = one * other**power
    return f"{found:~C}" if hasattr(one, "dimensionality") else str(found)


def in_words(unit: str) -> str:
    """A unit as messages name it."""
    return f"quantities in {unit!r}" if unit else "plain numbers"


def _parsed(*texts: str) -> list[Any]:
    """The units of one package: astropy's, with feet and inches, or pint's where that lacks one of them."""
    try:
        import astropy.units as u
        from astropy.units import imperial

        with u.add_enabled_units([imperial]):
            return [u.Unit(text) for text in texts]
    except ModuleNotFoundError:
        missing = True
    except ValueError:
        missing = False
    try:
        import pint  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        if missing:
            raise ImportError("units need astropy: pip install 'hipgp[astro]'; or pint") from None
        raise ValueError(f"unknown units among {', '.join(texts)}") from None
    registry: Any = pint.get_application_registry()
    return [registry.Unit(text) for text in texts]
