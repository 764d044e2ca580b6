"""Columns and coordinates that are longitude and latitude by their names."""

from collections.abc import Iterable
from typing import Any

NAMES = (("longitude", "latitude"), ("lon", "lat"), ("lng", "lat"), ("long", "lat"))


def degrees_among(columns: Iterable[Any]) -> tuple[Any, Any] | None:
    """The columns of longitude and latitude, whatever their case; None where there are none.

    >>> degrees_among(["Lat", "depth", "Lon"])
    ('Lon', 'Lat')
    """
    found = {str(name).strip().lower(): name for name in columns}
    return next(((found[a], found[b]) for a, b in NAMES if a in found and b in found), None)


def refuse_degrees(name: str, columns: Iterable[Any]) -> None:
    """Raise a ValueError where plain coordinates are expected, and there are degrees."""
    columns = list(columns)
    if (pair := degrees_among(columns)) is None:
        return
    alone = "" if len(columns) == 2 else f" beside {', '.join(str(c) for c in columns if c not in pair)}"
    raise ValueError(
        f"{name}: expected coordinates whose distances count alike, got longitude and latitude ({pair[0]}, {pair[1]}){alone}; "
        "give the table to observe or predict, which place them on a plane in km, or compute columns in km "
        "by hg.Region.of(lon, lat).plane(lon, lat), or places of a sphere by hg.sphere(lon, lat); .to_numpy() counts "
        "degrees as they are"
    )
