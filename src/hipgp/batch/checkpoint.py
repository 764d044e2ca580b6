"""The state of a solve on disk, from which an interrupted solve resumes and reaches the same result."""

import os
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np

from hipgp.linalg.krylov import CGState
from hipgp.runtime import hosts
from hipgp.runtime.checkpoints import read_arrays, write_arrays

SECONDS_BETWEEN = 20.0  # seconds between two checkpoints
LIKE_RHS = (
    "value",
    "residual",
    "direction",
)  # arrays of a solve's state in the shape of the right-hand sides


class Checkpoint:
    """The state of one solve, on disk."""

    def __init__(self, path: str | os.PathLike[str], problem: str):
        self.path = pathlib.Path(path)
        self.problem = problem
        self.written = time.perf_counter()

    def load(self, shape: tuple[int, ...]) -> tuple[jax.Array, int, tuple[CGState, jax.Array]] | None:
        shapes = {"x": shape, "steps": (), "scale": (shape[0], 1)}
        shapes |= {f"state_{name}": shape if name in LIKE_RHS else shape[:1] for name in CGState._fields}
        with hosts.file_of_first(self.path) as path:
            arrays = read_arrays(path, self.problem, *shapes)
        if arrays is None:
            return None
        for name, expected in shapes.items():
            if arrays[name].shape != expected:
                raise ValueError(
                    f"checkpoint: {self.path} holds {name} of shape {arrays[name].shape}, expected {expected}; remove "
                    "it or name another file"
                )
        state = CGState(*[jnp.asarray(arrays[f"state_{name}"]) for name in CGState._fields])
        return jnp.asarray(arrays["x"]), int(arrays["steps"]), (state, jnp.asarray(arrays["scale"]))

    def save(self, x: jax.Array, steps: int, state: CGState, scale: jax.Array, now: bool = False) -> None:
        """Write a checkpoint if the last one is SECONDS_BETWEEN seconds old, or `now`; process 0 does so for all."""
        if not hosts.is_first():
            return
        if not now and time.perf_counter() - self.written < SECONDS_BETWEEN:
            return
        fields = {
            f"state_{name}": np.asarray(value) for name, value in zip(CGState._fields, state, strict=True)
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
        if hosts.is_first():
            self.path.unlink(missing_ok=True)
