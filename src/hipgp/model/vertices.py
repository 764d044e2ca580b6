"""Functionals given by vertices, along lines or around polygons, and the table of their vertices that files keep."""

from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int

from hipgp.model.arguments import as_float
from hipgp.model.coordinates import Units, conversion
from hipgp.model.functional import Functional

Line = tuple[np.ndarray, Units]  # the vertices of a line or ring, and the units of their coordinates


class FromVertices(Functional):
    """Functionals that are given by vertices, each functional by one or several lines or rings of them."""

    vertices: Float[np.ndarray, "V D"]
    numbers: Float[
        np.ndarray, "V 2"
    ]  # the functional, and the line or ring of it, that each vertex belongs to

    @property
    def table(self) -> Float[np.ndarray, "V C"]:
        """A row for each vertex: numbers of the functional and of its line or ring, coordinates; a valid argument."""
        return np.concatenate([self.numbers.astype(self.vertices.dtype), self.vertices], axis=1)

    @property
    def lines(self) -> list[np.ndarray]:
        """The vertices of every line or ring, an array for each."""
        new = np.any(np.diff(self.numbers, axis=0) != 0, axis=1)
        return np.split(self.vertices, np.flatnonzero(new) + 1)

    def places(self) -> Float[np.ndarray, "N C D"]:
        begins = self._begins()
        return np.stack([f.reduceat(self.vertices, begins) for f in (np.minimum, np.maximum)], axis=1)

    def take(self, rows: Int[np.ndarray, " n"]) -> Self:
        if len(rows) == 0:
            raise ValueError(f"index: expected at least one functional to be picked, got none of {len(self)}")
        parts = np.split(np.arange(len(self.vertices)), self._begins()[1:])
        at = np.concatenate([parts[row] for row in rows])
        number = np.repeat(np.arange(len(rows)), [len(parts[row]) for row in rows])
        numbers = np.stack([number, self.numbers[at, 1]], axis=1)
        return self.with_fields({"vertices": self.vertices[at], "numbers": numbers})

    @property
    def dtype(self) -> np.dtype:
        return self.vertices.dtype

    def __len__(self) -> int:
        return int(self.numbers[-1, 0]) + 1

    def _begins(self) -> Int[np.ndarray, " N"]:
        """The index of the first vertex of each functional."""
        return np.flatnonzero(np.diff(self.numbers[:, 0], prepend=-1))


def from_table(name: str, table: np.ndarray) -> tuple[np.ndarray, np.ndarray, Units]:
    """Vertices, numbers and units from a table as `FromVertices.table` has it."""
    table = as_float(name, table)
    step = np.diff(table[:, 0], prepend=-1)
    if len(table) == 0 or table.shape[1] < 3 or np.any((step != 0) & (step != 1)):
        raise ValueError(
            f"{name}: expected a list, or a table whose first column counts {name} from 0 without gaps, got neither"
        )
    return table[:, 2:], table[:, :2].astype(float), ()


def from_lines(name: str, lines_of_each: list[list[Line]]) -> tuple[np.ndarray, np.ndarray, Units]:
    """Vertices, numbers and units from the lines or rings of each functional, in the units of the first."""
    if not lines_of_each:
        raise ValueError(f"{name}: expected at least one, got none")
    first, units = lines_of_each[0][0]
    ndim = first.shape[1]
    vertices, numbers = [], []
    for i, lines in enumerate(lines_of_each):
        for j, (x, line_units) in enumerate(lines):
            if x.shape[1] != ndim:
                raise ValueError(
                    f"{name}[{i}]: expected vertices in {ndim} dimensions like the others, got {x.shape[1]}"
                )
            factor, shift = conversion(f"{name}[{i}]", line_units, units)
            vertices.append(x if line_units == units else factor * x + shift)
            numbers.append(np.broadcast_to([float(i), float(j)], (len(x), 2)))
    return np.concatenate(vertices), np.concatenate(numbers), units


def is_table(value: Any, columns: int | None = None) -> bool:
    """Whether the value is an array with two axes, and with this number of columns unless that is None."""
    return isinstance(value, np.ndarray) and value.ndim == 2 and columns in (None, value.shape[1])
