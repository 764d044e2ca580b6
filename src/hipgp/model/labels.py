"""Names and units of the field and of its axes, for pictures, files and tables."""

import unicodedata
from typing import TYPE_CHECKING, Any, NamedTuple

from hipgp.model.dates import origin

if TYPE_CHECKING:
    from hipgp.model.frames import Frame

FIELDS = ("mean", "std", "samples")  # what a map holds on its grid
RESERVED = (*FIELDS, "sample")  # names that an axis cannot have
LONGEST = 200  # characters
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
        """Labels for `ndim` axes; a single axis unit applies to all of them."""
        names = AXES[ndim] if not axes else tuple(str(a) for a in axes)
        units = ("",) * ndim if not axis_units else axis_units
        units = (units,) * ndim if isinstance(units, str) else tuple(str(u) for u in units)
        for what, values in (("axes", names), ("axis_units", units)):
            if len(values) != ndim:
                raise ValueError(
                    f"{what}: expected {ndim} names, one per axis of the grid, got {len(values)}"
                )
        if len(set(names)) != ndim:
            raise ValueError(f"axes: expected different names, got {names}")
        unusable = [a for a in names if a in RESERVED or not a.strip()]
        if unusable:
            raise ValueError(
                f"axes: expected names other than {', '.join(RESERVED)}, which are those of the map's own parts, and none "
                f"empty, got {unusable[0]!r}; give the axis another name"
            )
        made = Labels(names, units, str(name or "field"), str(unit or ""))
        for what, values in (
            ("axes", names),
            ("axis_units", units),
            ("name", (made.name,)),
            ("unit", (made.unit,)),
        ):
            for text in values:
                _check_printable(what, text)
        return made

    @staticmethod
    def of_data(ndim: int, frame: "Frame", axes: tuple[str, ...] = (), name: str = "") -> "Labels":
        """The names and units of data: those of columns, where these can be names of axes and of the field.

        Otherwise an axis of dates is called time, the others x, y, z and t.
        """
        name = name if name.isprintable() and len(name) <= LONGEST else ""
        names = ["time" if origin(u) else a for a, u in zip(AXES[ndim], frame.axes, strict=False)]
        if axes and all(
            a.strip() and a.isprintable() and len(a) <= LONGEST and a not in RESERVED for a in axes
        ):
            names = list(axes)
        unique = names if len(set(names)) == len(names) else None
        return Labels.of(ndim, unique, frame.axes, name, frame.field)

    def changed(self, frame: "Frame", axes: Any, axis_units: Any, name: Any, unit: Any) -> "Labels":
        """These labels with others where given; units must be those of the data, where these have any."""
        units = axis_units or frame.axes, name or self.name, unit or frame.field
        made = Labels.of(len(self.axes), axes, *units)
        for what, values, known in (
            ("axis_units", made.axis_units, frame.axes),
            ("unit", (made.unit,), (frame.field,)),
        ):
            if any(known) and any(k and g != k for g, k in zip(values, known, strict=True)):
                raise ValueError(
                    f"{what}: expected {', '.join(known)} like the data, got {', '.join(values)}"
                )
        return made if axes else made._replace(axes=self.axes)

    def axis(self, number: int) -> str:
        """An axis with its unit, as a picture shows it."""
        return _with_unit(self.axes[number], self.axis_units[number])

    def on_ticks(self, number: int) -> str:
        """An axis as a picture shows it whose ticks are dates where its unit is one of dates."""
        return self.axes[number] if origin(self.axis_units[number]) else self.axis(number)

    def value(self, prefix: str = "") -> str:
        """The field with its unit; `prefix` such as "std of"."""
        return _with_unit(f"{prefix} {self.name}".strip(), self.unit)


def _with_unit(name: str, unit: str) -> str:
    """The name with its unit in brackets, if it has one."""
    return f"{name} [{unit}]" if unit else name


def _check_printable(what: str, text: str) -> None:
    """Raise a ValueError where a label has line breaks, control characters or half characters, or is too long."""
    bad = [c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    if bad or len(text) > LONGEST:
        reason = f"the character {bad[0]!r}" if bad else f"{len(text)} characters"
        raise ValueError(f"{what}: expected at most {LONGEST} printable characters on one line, got {reason}")
