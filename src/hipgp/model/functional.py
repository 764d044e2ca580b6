"""What a functional is: nodes and weights at a given resolution, in pieces of a size that fits into memory."""

import abc
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

if TYPE_CHECKING:
    from hipgp.model.coordinates import Units
    from hipgp.model.nodes import Nodes

F = TypeVar("F", bound="Functional")


class Functional(eqx.Module):
    """N linear functionals of one kind.

    Subclasses give their nodes at a given resolution, and places that bound their support. `units` holds the unit of
    each axis if coordinates are dates or quantities, and is empty for plain numbers. `crs` names the plane on which the
    coordinates are, if they are on the Earth.
    """

    units: "Units" = eqx.field(static=True, default=(), kw_only=True)
    crs: str = eqx.field(static=True, default="", kw_only=True)

    @abc.abstractmethod
    def nodes(self, spacing: Any) -> "Nodes":
        """Nodes and weights that resolve a field varying on the scale `spacing` (a number, or one per axis)."""

    @abc.abstractmethod
    def places(self) -> Float[np.ndarray, "N C D"]:
        """Places whose convex hull contains the support of each functional."""

    @abc.abstractmethod
    def take(self, rows: Int[np.ndarray, " n"]) -> "Functional":
        """The functionals numbered `rows`."""

    def __getitem__(self, index: Any) -> "Functional":
        """The functionals at `index` (a number, a slice, a mask or an array of numbers)."""
        return self.take(np.atleast_1d(np.arange(len(self))[index]))

    def given_in(self, units: "Units") -> "Functional":
        """These functionals with their coordinates taken to be in `units`, one for each axis, such as `post.units`."""
        if units and len(units) != self.ndim:
            raise ValueError(f"units: expected one for each of {self.ndim} axes, got {len(units)}")
        crs = self.crs if any(units) else ""
        return self.with_fields({"units": tuple(units) if any(units) else (), "crs": crs})

    def with_fields(self, values: dict[str, Any]) -> Self:
        """A copy with other values in some fields, without checking again."""
        return _replaced(type(self), self, values)

    def finer(self) -> "Functional":
        """These functionals with the default quadrature, in which the resolution alone sets the number of nodes."""
        return self

    def nodes_of(self, rows: Int[np.ndarray, " n"], spacing: Any) -> "Nodes":
        """The nodes of the functionals numbered `rows`, as many for each as the longest of them needs."""
        if getattr(self, "rule", "gauss") == "monte-carlo":
            return self.nodes(spacing)[rows]  # each has random nodes that do not depend on `rows`
        return self.take(rows).nodes(spacing)

    def pieces(self, spacing: Any, most: int) -> Iterator[Int[np.ndarray, " n"]]:
        """Split the functionals into chunks of about `most` nodes (at least one functional each), the longest first.

        A chunk holds functionals of similar size, so that short rays are not padded to the nodes of long ones.
        """
        if self.single:
            for begin in range(0, len(self), most):
                yield np.arange(begin, min(begin + most, len(self)))
            return
        size = np.linalg.norm(extents(self.places()) / np.asarray(spacing), axis=1)
        order = np.argsort(-size, kind="stable")
        begin = 0
        while begin < len(order):
            rows = order[begin : begin + max(1, most // self.nodes_each(order[begin : begin + 1], spacing))]
            while len(rows) > 1 and len(rows) * self.nodes_each(rows, spacing) > 2 * most:
                rows = rows[: len(rows) // 2]
            yield rows
            begin += len(rows)

    def nodes_each(self, rows: Int[np.ndarray, " n"], spacing: Any) -> int:
        """The number of nodes of each of these functionals, of which the first must be the longest."""
        return self.nodes_of(rows[:1], spacing).x.shape[1]

    @property
    def single(self) -> bool:
        """Whether each functional has exactly one node."""
        return self.places().shape[1] == 1

    @property
    def derivative(self) -> bool:
        """Whether the functionals need the field's first derivative."""
        return False

    @property
    def uncertain(self) -> bool:
        """Whether the places are known with errors only."""
        return False

    @property
    def measure(self) -> int:
        """The dimension that they integrate over: 1 for lengths, 2 for areas, 0 for values and averages."""
        return 0

    def __len__(self) -> int:
        return self.places().shape[0]

    @property
    def ndim(self) -> int:
        return self.places().shape[-1]

    @property
    def dtype(self) -> np.dtype:
        return self.places().dtype


def take_rows(kind: type[F], functional: F, rows: Int[np.ndarray, " n"]) -> F:
    """The functionals numbered `rows`, as an instance of `kind`; fields that a subclass adds are dropped."""
    if len(rows) == 0:
        raise ValueError(
            f"index: expected at least one functional to be picked, got none of {len(functional)}"
        )
    fields = {field.name: getattr(functional, field.name) for field in dataclasses.fields(kind)}
    return _replaced(kind, functional, {k: v[rows] for k, v in fields.items() if isinstance(v, np.ndarray)})


def _replaced(kind: type[F], functional: F, values: dict[str, Any]) -> F:
    """A copy, as an instance of `kind`, with other values in some fields; nothing is checked again."""
    out = object.__new__(kind)
    for field in dataclasses.fields(kind):
        value = values[field.name] if field.name in values else getattr(functional, field.name)
        object.__setattr__(out, field.name, value)
    return out


def extents(places: Float[np.ndarray, "N C D"]) -> Float[np.ndarray, "N D"]:
    """The extent of each functional along each axis."""
    # NumPy is slow at reducing an axis of two.
    return np.abs(places[:, 1] - places[:, 0]) if places.shape[1] == 2 else np.ptp(places, axis=1)
