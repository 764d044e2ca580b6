"""What the numbers are called and what they are measured in: for pictures, files and tables."""

from typing import NamedTuple

AXES = {1: ("x",), 2: ("x", "y"), 3: ("x", "y", "z"), 4: ("x", "y", "z", "t")}


class Labels(NamedTuple):
    """Names and units of the axes and of the field; an empty string where there is none."""

    axes: tuple[str, ...] = ()
    axis_units: tuple[str, ...] = ()
    name: str = "field"
    unit: str = ""

    @staticmethod
    def of(
        ndim: int,
        axes: tuple[str, ...] | list[str] | None = None,
        axis_units: str | tuple[str, ...] | list[str] | None = None,
        name: str | None = None,
        unit: str | None = None,
    ) -> "Labels":
        """Labels for `ndim` axes; one axis unit will do for all."""
        names = AXES[ndim] if not axes else tuple(str(a) for a in axes)
        units = ("",) * ndim if not axis_units else axis_units
        units = (units,) * ndim if isinstance(units, str) else tuple(str(u) for u in units)
        for what, given in (("axes", names), ("axis_units", units)):
            if len(given) != ndim:
                raise ValueError(f"{what}: expected {ndim} names, one per axis of the grid, got {len(given)}")
        if len(set(names)) != ndim:
            raise ValueError(f"axes: expected different names, got {names}")
        return Labels(names, units, name or "field", unit or "")

    def axis(self, number: int) -> str:
        """An axis with its unit, as a picture shows it."""
        return with_unit(self.axes[number], self.axis_units[number])

    def value(self, prefix: str = "") -> str:
        """The field with its unit; `prefix` such as "std of"."""
        return with_unit(f"{prefix} {self.name}".strip(), self.unit)


def with_unit(name: str, unit: str) -> str:
    return f"{name} [{unit}]" if unit else name
