"""Places on the sky with distances, as astropy's SkyCoord: Galactic Cartesian coordinates with the Sun at the origin."""

from typing import Any

import numpy as np


def is_sky(value: Any) -> bool:
    """Whether this is a SkyCoord, or a frame of astropy with coordinates."""
    return hasattr(value, "represent_as") and hasattr(value, "transform_to")


def cartesian(name: str, value: Any) -> tuple[np.ndarray, str]:
    """x towards the Galactic centre, y towards l = 90 degrees and z towards b = 90 degrees, and their unit of length."""
    import astropy.units as u
    from astropy.coordinates import SkyCoord

    sky: Any = SkyCoord(value)
    unit: Any = sky.distance.unit
    if unit.is_equivalent(u.one):
        raise ValueError(
            f"{name}: expected a SkyCoord with distances, got directions alone; give SkyCoord(..., distance=...), for "
            "parallaxes distance=Distance(parallax=...)"
        )
    found = sky.galactic.cartesian.xyz.to_value(unit)
    bad = np.flatnonzero(~np.all(np.isfinite(np.atleast_2d(found.T)), axis=-1))
    if len(bad):
        raise ValueError(
            f"{name}: expected finite distances, got {sky.distance.ravel()[bad[0]]} in row {bad[0]} ({len(bad)} in all); "
            "leave these out"
        )
    return np.moveaxis(found, 0, -1), str(unit)


def angles(value: Any) -> dict[str, np.ndarray]:
    """The coordinates of a SkyCoord in its own frame, by name: l, b and distance, or ra, dec and distance."""
    names = {"lon": "l", "lat": "b"} if value.frame.name == "galactic" else {"lon": "ra", "lat": "dec"}
    spherical, known = value.spherical, value.representation_component_names
    names = {part: known_name for known_name, part in known.items() if part in names} or names
    found = {names[part]: getattr(spherical, part).to_value("deg") for part in ("lon", "lat")}
    return found | {"distance": spherical.distance.value}
