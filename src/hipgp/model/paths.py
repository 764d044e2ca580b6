"""Integrals and averages of a field along lines with many vertices: roads, tracks, rivers.

>>> bent = PathIntegrals([[(0, 0), (3, 0), (3, 4)], [[(0, 0), (1, 0)], [(5, 5), (5, 7)]]])
>>> bent.length.tolist()
[7.0, 3.0]
"""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from hipgp.model.arguments import as_float
from hipgp.model.coordinates import Units, as_places, conversion
from hipgp.model.functional import Functional
from hipgp.model.functionals import NODES_PER_CELL
from hipgp.model.nodes import Nodes, gauss


class PathIntegrals(Functional):
    """The integral of the field along lines with many vertices, or its average with `average=True`.

    `paths` is a list with one entry for each: its vertices (n, D), or a list of such lines that count together. Nodes are
    Gauss-Legendre on every straight piece, two for each cell of the grid that it crosses, as for LineIntegrals.
    """

    vertices: Float[np.ndarray, "V D"]
    lines: Float[np.ndarray, "V 2"]  # which path, and which of its lines, each vertex belongs to
    average: bool = eqx.field(static=True)

    def __init__(self, paths: Any, average: bool = False):
        self.vertices, self.lines, self.units = _from_table(paths) if _is_table(paths) else _read(paths)
        self.average = bool(average)
        empty = np.flatnonzero(self.length <= 0)
        if len(empty):
            raise ValueError(
                f"paths: expected lines of positive length, got one of length zero in row {empty[0]}; leave it out, or use "
                "Points"
            )

    @property
    def table(self) -> Float[np.ndarray, "V C"]:
        """A row for each vertex: number of the path, number of the line, coordinates; a valid argument `paths`."""
        return np.concatenate([self.lines.astype(self.vertices.dtype), self.vertices], axis=1)

    @property
    def length(self) -> Float[np.ndarray, " N"]:
        """The length of each path."""
        _, delta, path = self._pieces()
        return np.bincount(path, np.linalg.norm(delta, axis=1), minlength=len(self))

    @property
    def measure(self) -> int:
        return 0 if self.average else 1

    def nodes(self, spacing: Any) -> Nodes:
        start, delta, path = self._pieces()
        cells = np.linalg.norm(delta / np.asarray(spacing, float), axis=1)
        rules = [gauss(max(1, int(np.ceil(NODES_PER_CELL * n)))) for n in cells]
        size = np.linalg.norm(delta, axis=1) / (self.length[path] if self.average else 1.0)
        piece = np.repeat(np.arange(len(rules)), [len(t) for t, _ in rules])
        t, c = (np.concatenate([rule[part] for rule in rules]) for part in (0, 1))
        x, c = start[piece] + t[:, None] * delta[piece], size[piece] * c
        counts = np.bincount(path[piece], minlength=len(self))
        place = np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts)
        weights = np.zeros((len(self), np.max(counts)))
        weights[path[piece], place] = c
        positions = np.repeat(
            x[np.cumsum(counts) - 1][:, None], np.max(counts), axis=1
        )  # padding has weight zero
        positions[path[piece], place] = x
        return Nodes(positions.astype(self.dtype), weights.astype(self.dtype))

    def places(self) -> Float[np.ndarray, "N C D"]:
        begins = self._begins()
        return np.stack([f.reduceat(self.vertices, begins) for f in (np.minimum, np.maximum)], axis=1)

    def take(self, rows: Int[np.ndarray, " n"]) -> "PathIntegrals":
        if len(rows) == 0:
            raise ValueError(f"index: expected at least one path to be picked, got none of {len(self)}")
        parts = np.split(np.arange(len(self.vertices)), self._begins()[1:])
        at = np.concatenate([parts[row] for row in rows])
        number = np.repeat(np.arange(len(rows)), [len(parts[row]) for row in rows])
        lines = np.stack([number, self.lines[at, 1]], axis=1)
        return self.with_fields({"vertices": self.vertices[at], "lines": lines})

    @property
    def dtype(self) -> np.dtype:
        return self.vertices.dtype

    def __len__(self) -> int:
        return int(self.lines[-1, 0]) + 1

    def _begins(self) -> Int[np.ndarray, " N"]:
        """Where in `vertices` each path begins."""
        return np.flatnonzero(np.diff(self.lines[:, 0], prepend=-1))

    def _pieces(self) -> tuple[np.ndarray, np.ndarray, Int[np.ndarray, " P"]]:
        """The start of every straight piece, the vector to its end, and the path to which it belongs."""
        x = np.asarray(self.vertices, float)
        joined = np.all(self.lines[1:] == self.lines[:-1], axis=1) & np.any(x[1:] != x[:-1], axis=1)
        return x[:-1][joined], np.diff(x, axis=0)[joined], self.lines[1:, 0][joined].astype(int)


def _is_table(paths: Any) -> bool:
    return isinstance(paths, np.ndarray) and paths.ndim == 2


def _from_table(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, Units]:
    table = as_float("paths", table)
    step = np.diff(table[:, 0], prepend=-1)
    if len(table) == 0 or table.shape[1] < 3 or np.any((step != 0) & (step != 1)):
        raise ValueError(
            "paths: expected a list of lines, or a table whose first column counts paths from 0 without gaps, got neither"
        )
    return table[:, 2:], table[:, :2].astype(float), ()


def _read(paths: Any) -> tuple[np.ndarray, np.ndarray, Units]:
    """The vertices of all lines, the numbers of each vertex's path and line, and the units of the axes."""
    read = [_lines(f"paths[{i}]", path) for i, path in enumerate(paths)]
    if not read:
        raise ValueError("paths: expected at least one line, got none")
    units, ndim = read[0][0][1], read[0][0][0].shape[1]
    parts, labels = [], []
    for i, lines in enumerate(read):
        for j, (line, coordinates) in enumerate(lines):
            if line.shape[1] != ndim:
                raise ValueError(
                    f"paths[{i}]: expected vertices in {ndim} dimensions like the others, got {line.shape[1]}"
                )
            by, shift = conversion(f"paths[{i}]", coordinates, units)
            parts.append(line if coordinates == units else by * line + shift)
            labels.append(np.broadcast_to([float(i), float(j)], (len(line), 2)))
    return np.concatenate(parts), np.concatenate(labels), units


def _lines(name: str, path: Any) -> list[tuple[np.ndarray, Units]]:
    """The lines of one path, with their units."""
    several = isinstance(path, list | tuple) and len(path) > 0 and np.ndim(path[0]) == 2
    found = [as_places(name, line, (2,)) for line in (path if several else [path])]
    for line, _ in found:
        if len(line) < 2:
            raise ValueError(f"{name}: expected at least 2 vertices in every line, got {len(line)}")
    return found
