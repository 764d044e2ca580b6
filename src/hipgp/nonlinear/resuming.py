"""Checkpoints of the rounds and of learning, from which an interrupted run resumes and reaches the same result."""

import os
import pathlib
from typing import Any

import numpy as np

from hipgp.nonlinear.blocks import Block, State
from hipgp.nonlinear.iteration import Round, RoundsState
from hipgp.runtime.checkpoints import read_arrays, write_arrays

NEEDED = ("rounds", "energy", "fresh", "shrink", "share")


class RoundsCheckpoint:
    """A file with the state after the last whole round, or turn of learning."""

    def __init__(self, path: str | os.PathLike[str], problem: str):
        self.path, self.problem = pathlib.Path(path), problem

    def save(self, **arrays: Any) -> None:
        write_arrays(self.path, fingerprint=self.problem, **arrays)

    def load(self, blocks: list[Block], *needed: str) -> dict[str, np.ndarray] | None:
        """The arrays, with those of the states in the shapes that the blocks ask for; None where there is no file."""
        shapes = {n: a.shape for n, a in packed([b.start(0.0) for b in blocks]).items()}
        arrays = read_arrays(self.path, self.problem, *needed, *shapes)
        for name, shape in shapes.items() if arrays else ():
            if arrays[name].shape != shape:  # type: ignore[index]
                raise ValueError(
                    f"checkpoint: {self.path} holds {name} of shape {arrays[name].shape}, expected {shape}; remove it or "  # type: ignore[index]
                    "name another file"
                )
        return arrays

    def save_rounds(self, rounds_state: RoundsState) -> None:
        rounds = np.array([tuple(r) for r in rounds_state.rounds], float).reshape(-1, len(Round._fields))
        numbers = {name: getattr(rounds_state, name) for name in NEEDED[1:]}
        self.save(rounds=rounds, **numbers, **packed(rounds_state.states))

    def rounds_state(self, blocks: list[Block]) -> RoundsState | None:
        """The state of the rounds that was saved; None where there is no file."""
        arrays = self.load(blocks, *NEEDED)
        if arrays is None:
            return None
        rounds = tuple(Round(r[0], r[1], r[2], int(r[3]), bool(r[4])) for r in arrays["rounds"].tolist())
        numbers = float(arrays["energy"]), rounds, bool(arrays["fresh"])
        return RoundsState(
            unpacked(arrays, len(blocks)), *numbers, float(arrays["shrink"]), float(arrays["share"])
        )

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def packed(states: list[State]) -> dict[str, np.ndarray]:
    return {f"state{i}_{name}": a for i, state in enumerate(states) for name, a in state._asdict().items()}


def unpacked(arrays: dict[str, np.ndarray], count: int) -> list[State]:
    return [State(*(np.asarray(arrays[f"state{i}_{n}"], float) for n in State._fields)) for i in range(count)]
