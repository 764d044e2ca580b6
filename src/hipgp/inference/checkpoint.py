"""Checkpoints of long runs: a killed solve or learning goes on from where it was, to the same answer.

A checkpoint is one .npz file of plain arrays (no pickle), written to a temporary name and renamed, so that a file is
either whole or not there. It carries a fingerprint of the problem: one that belongs to another problem is refused.
"""

import hashlib
import os
import pathlib
import re
import time
import zipfile
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from hipgp.solvers import State

EVERY = 20.0  # seconds between two checkpoints


def fingerprint(*parts: Any) -> str:
    """A digest of arrays, numbers and names: equal for equal problems.

    The structure tells the classes (which kernel, which functional) and the static fields (the grid, the settings).
    """
    structure = re.sub(r" at 0x[0-9a-f]+", "", str(jax.tree.structure(parts)))
    digest = hashlib.sha256(structure.encode())
    for leaf in jax.tree.leaves(parts):
        if eqx.is_array_like(leaf) and not isinstance(leaf, str):
            array = np.asarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()


def write_arrays(path: pathlib.Path, **arrays: Any) -> None:
    """Write an .npz file that is either whole or not there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_arrays(path: pathlib.Path, expected: str) -> dict[str, np.ndarray] | None:
    """The arrays of a checkpoint; None where there is no file; a ValueError where it is another problem's."""
    if not path.exists():
        return None
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"checkpoint: {path} is not a hipgp checkpoint ({error}); remove it or name another"
        ) from None
    if str(arrays.get("fingerprint")) != expected:
        raise ValueError(
            f"checkpoint: {path} belongs to another problem (other data, kernel, grid or settings); remove it or name "
            "another file"
        )
    return arrays


class Checkpoint:
    """The state of one solve, on disk."""

    def __init__(self, path: str | os.PathLike[str], problem: str):
        self.path = pathlib.Path(path)
        self.problem = problem
        self.written = time.perf_counter()

    def load(self, shape: tuple[int, ...]) -> tuple[jax.Array, int, tuple[State, jax.Array]] | None:
        arrays = read_arrays(self.path, self.problem)
        if arrays is None:
            return None
        if arrays["x"].shape != shape:
            raise ValueError(
                f"checkpoint: {self.path} holds a solve of shape {arrays['x'].shape}, expected {shape}"
            )
        state = State(*[jnp.asarray(arrays[f"state_{name}"]) for name in State._fields])
        return jnp.asarray(arrays["x"]), int(arrays["steps"]), (state, jnp.asarray(arrays["scale"]))

    def save(self, x: jax.Array, steps: int, state: State, scale: jax.Array, now: bool = False) -> None:
        """Write, if the last one is EVERY seconds old."""
        if not now and time.perf_counter() - self.written < EVERY:
            return
        fields = {
            f"state_{name}": np.asarray(value) for name, value in zip(State._fields, state, strict=True)
        }
        write_arrays(
            self.path,
            fingerprint=self.problem,
            x=np.asarray(x),
            steps=steps,
            scale=np.asarray(scale),
            **fields,
        )
        self.written = time.perf_counter()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
