"""Checkpoint files: the arrays from which an interrupted run resumes and reaches the same result.

A checkpoint is a .npz file of plain arrays (no pickle), written atomically, with a digest of its contents. It holds a
fingerprint of the problem and the version of the algorithm; a checkpoint with others is refused.
"""

import hashlib
import io
import math
import pathlib
import re
from typing import Any

import equinox as eqx
import jax
import numpy as np

from hipgp.runtime import archive

# Increment when the steps of a solve or of learning change, so that older checkpoints are refused.
ALGORITHM = 4


def fingerprint(*parts: Any) -> str:
    """A digest of arrays, numbers and names: equal for equal problems.

    The tree structure covers the classes (of kernels and functionals) and the static fields (the grid, the settings).
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
    """Write a .npz file atomically, with a digest and the version of the algorithm."""
    members = {f"{name}.npy": _packed(values) for name, values in {"algorithm": ALGORITHM, **arrays}.items()}
    archive.write(path, members)


def _packed(values: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(values), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def read_arrays(path: pathlib.Path, expected: str, *needed: str) -> dict[str, np.ndarray] | None:
    """The arrays of a checkpoint, None without a file; a ValueError if it is damaged or belongs to another problem."""
    if not path.exists():
        return None
    with (
        open(path, "rb") as file,
        archive.one_error(f"checkpoint: {path} is not a hipgp checkpoint", "; remove it or name another"),
    ):
        arrays = {
            name.removesuffix(".npy"): _unpacked(name, content)
            for name, content in archive.read(file).items()
        }
        for name in ("algorithm", "fingerprint", *needed):
            if name not in arrays:
                raise ValueError(f"expected {name} in it, got none")
    if int(arrays["algorithm"]) != ALGORITHM:
        raise ValueError(
            f"checkpoint: {path} was written by version {int(arrays['algorithm'])} of the algorithm, expected "
            f"{ALGORITHM}: another version of hipgp takes other steps; remove it or name another file"
        )
    if str(arrays["fingerprint"]) != expected:
        raise ValueError(
            f"checkpoint: {path} belongs to another problem (other data, kernel, grid or settings); remove it or name "
            "another file"
        )
    return arrays


def _unpacked(name: str, content: bytes) -> np.ndarray:
    """Decode one array; its size is checked before memory is allocated."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"expected version 1.0 of the .npy format, got another for {name}")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    claimed, real = math.prod(shape) * dtype.itemsize, len(content) - stream.tell()
    if dtype.kind not in "biufU" or min(shape, default=0) < 0 or claimed != real:
        raise ValueError(f"expected {claimed} bytes of numbers for {name} of shape {shape}, got {real}")
    return np.frombuffer(content, dtype, offset=stream.tell()).reshape(
        shape, order="F" if by_columns else "C"
    )
