"""Several processes that compute together, as `jax.distributed` starts them: what each must know of the others."""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np


def several() -> bool:
    """Tell whether other processes compute with this one."""
    return jax.process_count() > 1


def agreed(value: Any) -> Any:
    """Return process 0's value (a tree of numbers and arrays) in all processes, which decide alike by it."""
    if not several():
        return value
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(value)


def is_first() -> bool:
    """Tell whether this is process 0, which writes files for all."""
    return jax.process_index() == 0


@contextlib.contextmanager
def file_of_first(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Give every process the file that process 0 has at `path`: others get a copy, for as long as this lasts."""
    if not several():
        yield path
        return
    held = path.read_bytes() if is_first() and path.exists() else b""
    size = int(agreed(np.asarray(len(held))))
    content = np.frombuffer(held, np.uint8) if is_first() else np.zeros(size, np.uint8)
    content = np.asarray(agreed(content)).tobytes() if size else b""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / path.name
        if size:
            copy.write_bytes(content)
        yield copy


def gathered(array: Any) -> np.ndarray:
    """Copy an array to the host, with its parts on the devices of other processes."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def check_equal(argument: str, what: str, digest: str) -> None:
    """Raise a ValueError where processes have different digests of what they were given."""
    if not several():
        return
    from jax.experimental import multihost_utils

    here = np.frombuffer(bytes.fromhex(digest), np.uint8)
    every = np.asarray(multihost_utils.process_allgather(here)).reshape(jax.process_count(), -1)
    differ = [i for i, other in enumerate(every) if not np.array_equal(other, every[0])]
    if differ:
        raise ValueError(
            f"{argument}: expected the same {what} in every process, got others in process "
            f"{', '.join(map(str, differ))} than in process 0; read the same files everywhere, in the same order"
        )
