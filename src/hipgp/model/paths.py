"""Integrals and averages of a field along lines with many vertices: roads, tracks, rivers.

>>> bent = PathIntegrals([[(0, 0), (3, 0), (3, 4)], [[(0, 0), (1, 0)], [(5, 5), (5, 7)]]])
>>> bent.length.tolist()
[7.0, 3.0]
"""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from hipgp.model.coordinates import as_places
from hipgp.model.functionals import NODES_PER_CELL
from hipgp.model.nodes import Nodes, gauss
from hipgp.model.vertices import FromVertices, Line, from_lines, from_table, is_table


class PathIntegrals(FromVertices):
    """The integral of the field along lines with many vertices, or its average with `average=True`.

    `paths` is a list with one entry for each: its vertices (n, D), or a list of such lines that count together. Nodes are
    Gauss-Legendre on every straight piece, two for each cell of the grid that it crosses, as for LineIntegrals.
    """

    average: bool = eqx.field(static=True)

    def __init__(self, paths: Any, average: bool = False):
        self.vertices, self.numbers, self.units = (
            from_table("paths", paths)
            if is_table(paths)
            else from_lines("paths", [_lines(f"paths[{i}]", path) for i, path in enumerate(paths)])
        )
        self.average = bool(average)
        empty = np.flatnonzero(self.length <= 0)
        if len(empty):
            raise ValueError(
                f"paths: expected lines of positive length, got one of length zero in row {empty[0]}; leave it out, or use "
                "Points"
            )

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

    def _pieces(self) -> tuple[np.ndarray, np.ndarray, Int[np.ndarray, " P"]]:
        """The start of every straight piece, the vector to its end, and the path to which it belongs."""
        x = np.asarray(self.vertices, float)
        joined = np.all(self.numbers[1:] == self.numbers[:-1], axis=1) & np.any(x[1:] != x[:-1], axis=1)
        return x[:-1][joined], np.diff(x, axis=0)[joined], self.numbers[1:, 0][joined].astype(int)


def _lines(name: str, path: Any) -> list[Line]:
    """The lines of one path, with their units."""
    several = isinstance(path, list | tuple) and len(path) > 0 and np.ndim(path[0]) == 2
    found = [as_places(name, line, (2,)) for line in (path if several else [path])]
    for line, _ in found:
        if len(line) < 2:
            raise ValueError(f"{name}: expected at least 2 vertices in every line, got {len(line)}")
    return found
