"""Observations that are never all in memory: read batch by batch from Parquet files, or from whatever yields batches.

>>> import numpy as np
>>> batches = [(np.array([[0.1], [0.2]]), np.array([1.0, 2.0])), (np.array([[0.3]]), np.array([1.5]))]
>>> [len(batch.y) for batch in observe_from(batches, noise=0.1).read()]
[2, 1]
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hipgp.model.arguments import as_float
from hipgp.runtime.arrays import AnyArray
from hipgp.runtime.shown import Shown

ROWS = 2**20  # rows of a batch that is read from a file
READABLE = "a folder of Parquet files, a pyarrow dataset, or an iterable of batches"


class _Rows(NamedTuple):
    """Some observations: places, values, and the noise std of each, or None where the model has it."""

    x: Float[AnyArray, "n D"]
    y: Float[AnyArray, " n"]
    noise: Float[AnyArray, " n"] | None


class Stream(Shown):
    """Values of a field at points, with Gaussian noise, in batches that a fit reads once."""

    def __init__(self, read: Callable[[], Iterator[_Rows]], rows: int | None, source: str):
        self.read, self.rows, self.source = read, rows, source

    def _shown(self) -> tuple[str, dict[str, str]]:
        count = "unknown until they are read" if self.rows is None else f"{self.rows:,}"
        return "Stream of observations", {"from": self.source, "observations": count}


def observe_from(
    batches: Any,
    coordinates: Sequence[str] | None = None,
    value: str | None = None,
    noise: Any = None,
    *,
    rows: int | None = None,
) -> Stream:
    """Values at points that are read batch by batch, so that they need not fit into memory; for `GP.condition`.

    `batches` is a folder of Parquet files (or one file), a pyarrow dataset, or an iterable of batches: tables, or pairs
    (places, values), or triples with the noise of each. A function that returns such an iterable can be read again. Of
    tables `coordinates` and `value` name the columns. `noise` is a standard deviation, a column, or None where the batches or the
    GP have it. `rows` is their number, where an iterable does not tell it, for the progress line.
    """
    if isinstance(noise, str) or noise is None:
        constant = None
    else:
        constant = float(as_float("noise", noise, ndim=(0,)))
        if constant <= 0:
            raise ValueError(f"noise: expected a positive standard deviation, got {constant}")
    names = None
    if coordinates is not None or value is not None:
        if coordinates is None or value is None or isinstance(coordinates, str):
            raise ValueError(
                "coordinates, value: expected the names of both, such as coordinates=('x', 'y'), value='depth', got "
                f"{coordinates!r} and {value!r}"
            )
        names = [*coordinates, value, *([noise] if isinstance(noise, str) else [])]
    tables, rows, source = _tables(batches, names, rows)

    def read() -> Iterator[_Rows]:
        for number, table in enumerate(tables()):
            yield _batch(table, number, names, len(coordinates or ()), constant)

    return Stream(read, rows, source)


def _tables(
    batches: Any, names: list[str] | None, rows: int | None
) -> tuple[Callable[[], Iterable[Any]], int | None, str]:
    """What yields the batches, how many rows they have, and a name for it."""
    if isinstance(batches, str | os.PathLike):
        import pyarrow.dataset

        path = os.fspath(batches)
        if not os.path.exists(path):
            raise ValueError(f"batches: expected {READABLE}, got {path}, which is not there")
        batches = pyarrow.dataset.dataset(path, format="parquet")
    if hasattr(batches, "get_fragments"):
        if names is None:
            raise ValueError(
                "coordinates, value: expected the names of columns with a dataset, got None; give coordinates=('x', 'y') and "
                "value=..."
            )
        missing = [name for name in names if name not in batches.schema.names]
        if missing:
            raise ValueError(
                f"coordinates, value, noise: expected columns of the dataset ({', '.join(batches.schema.names)}), got "
                f"{', '.join(missing)}"
            )
        files = list(batches.get_fragments())
        counted = sum(_named(file, file.count_rows) for file in files)  # finds broken files before the work
        return lambda: _from_files(files, names), counted, f"{len(files)} Parquet files"
    if not callable(batches) and not isinstance(batches, Iterable):
        raise ValueError(f"batches: expected {READABLE}, got {type(batches).__name__}")
    read: Any = batches if callable(batches) else lambda: batches
    return read, rows, "batches"


def _from_files(files: list[Any], names: list[str]) -> Iterator[Any]:
    for file in files:
        found = _named(file, lambda file=file: iter(file.to_batches(columns=names, batch_size=ROWS)))
        while (batch := _named(file, lambda found=found: next(found, None))) is not None:
            yield batch


def _named(file: Any, read: Callable[[], Any]) -> Any:
    """What `read` returns, or an error that names the file."""
    try:
        return read()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"batches: expected Parquet files that can be read, got {file.path} ({error}); mend or remove it"
        ) from None


def _batch(table: Any, number: int, names: list[str] | None, ndim: int, noise: float | None) -> _Rows:
    x: Any
    y: Any
    if names is None:
        if not isinstance(table, tuple | list) or len(table) not in (2, 3):
            raise ValueError(
                f"batches: expected pairs (places, values) or triples with the noise, got {type(table).__name__} as number "
                f"{number}; name the columns of tables by coordinates= and value="
            )
        x, y, std = (*table, None)[:3]
    else:
        columns = [_column(table, name) for name in names]
        x, y = np.stack(columns[:ndim], axis=1), columns[ndim]
        std = columns[ndim + 1] if len(columns) > ndim + 1 else None
    if np.ndim(x) != 2 or np.shape(y) != (len(x),) or (std is not None and np.shape(std) != (len(x),)):
        raise ValueError(
            f"batches: expected places (n, D), values (n,) and noise (n,), got {np.shape(x)}, {np.shape(y)}"
            f"{'' if std is None else f', {np.shape(std)}'} as number {number}"
        )
    if std is None and noise is not None:
        std = np.full(len(x), noise)
    return _Rows(x, y, std)


def _column(table: Any, name: str) -> np.ndarray:
    column = table[name] if hasattr(table, "iloc") else table.column(name)
    array = column.to_numpy() if hasattr(table, "iloc") else column.to_numpy(zero_copy_only=False)
    return as_float(name, array, ndim=(1,))
