"""Passes over the data, minibatch by minibatch, whose state is kept in a file from which a stopped fit goes on.

A fit is a chain of stages: learning, finding q, and the last pass for the bound. The file holds the state of the present
stage with the epoch and the number of minibatches done, and what the stages before it found. Epochs are shuffled by one
generator; a resumed fit draws the orders of the epochs before it once more, and so goes on to the same numbers.
"""

import itertools
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hipgp.runtime.checkpoints import read_arrays, write_arrays

SECONDS_BETWEEN = 20.0  # seconds between two writes

State = TypeVar("State")
Minibatch = TypeVar("Minibatch")


class Keeper:
    """The file of one fit; without a path nothing is kept."""

    def __init__(self, path: str | os.PathLike[str] | None, problem: str):
        self.path = None if path is None else pathlib.Path(path)
        self.problem = problem
        self.began = self.written = time.perf_counter()
        self.found: dict[str, np.ndarray] = {}  # what finished stages left, by name and number of the leaf
        self.saved: dict[str, np.ndarray] = {}  # the file as it was read
        if self.path is not None:
            self.saved = read_arrays(self.path, problem, "stage", "epoch", "minibatch", "seconds") or {}
        self.found = {name: a for name, a in self.saved.items() if name.startswith("found ")}

    @property
    def seconds(self) -> float:
        """The seconds that the fit has taken, those before the file was written included."""
        return float(self.saved.get("seconds", 0.0)) + time.perf_counter() - self.began

    def begin(self, stage: str, first: State) -> tuple[int, int, State]:
        """The epoch, the minibatches done in it and the state that a stage begins with: `first`, or as in the file."""
        if str(self.saved.get("stage", "")) != stage:
            return 0, 0, first
        state = self._restored("state", first, self.saved)
        return int(self.saved["epoch"]), int(self.saved["minibatch"]), state

    def keep(self, stage: str, epoch: int, minibatch: int, state: Any) -> None:
        """Write the state if the last write was SECONDS_BETWEEN seconds ago."""
        if self.path is None or time.perf_counter() - self.written < SECONDS_BETWEEN:
            return
        position = {"stage": stage, "epoch": epoch, "minibatch": minibatch, "seconds": self.seconds}
        leaves = _numbered("state", state)
        write_arrays(self.path, fingerprint=self.problem, **position, **leaves, **self.found)
        self.written = time.perf_counter()

    def leave(self, name: str, found: Any) -> None:
        """Keep the result of a stage in the file, beside the states of later stages."""
        self.found |= _numbered(f"found {name}", found)

    def left(self, name: str, like: State) -> State | None:
        """The result of a stage that ended before the fit was interrupted; None otherwise."""
        return self._restored(f"found {name}", like, self.found) if f"found {name} 0" in self.found else None

    def remove(self) -> None:
        """Remove the file of a fit that is done."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _restored(self, prefix: str, like: Any, arrays: dict[str, np.ndarray]) -> Any:
        leaves, tree = jax.tree.flatten(like)
        values = []
        for number, leaf in enumerate(leaves):
            name, expected = f"{prefix} {number}", np.asarray(leaf)
            stored = arrays.get(name)
            if stored is None or stored.shape != expected.shape or stored.dtype != expected.dtype:
                got = "none" if stored is None else f"{stored.dtype} of shape {stored.shape}"
                raise ValueError(
                    f"checkpoint: expected {expected.dtype} of shape {expected.shape} for {name} in {self.path}, got {got}; "
                    "remove it or name another file"
                )
            values.append(jnp.asarray(stored) if isinstance(leaf, jax.Array) else stored)
        return jax.tree.unflatten(tree, values)


def _numbered(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    return {f"{prefix} {number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def noted(trace: np.ndarray, epoch: int, bound: float) -> np.ndarray:
    """The trace with the bound of an epoch in its place."""
    out = np.array(trace)
    out[epoch] = bound
    return out


def run(
    keeper: Keeper,
    stage: str,
    first: State,
    minibatches: Callable[[], Iterator[Minibatch]],
    epochs: int,
    step: Callable[[State, list[Minibatch], int, int], State],
    end: Callable[[State, int], State] = lambda state, epoch: state,
    most: int = 1,
) -> State:
    """The state after `epochs` epochs: a step for the next minibatches, given the epoch and the first one's number there.

    `minibatches` begins an epoch each time that it is called, and `end` ends it. A step is given at most `most` minibatches:
    as many as take about a second, so that a program can take them without coming back to Python, and files are written often.
    """
    begun, done, state = keeper.begin(stage, first)
    for _ in range(begun):
        next(minibatches())  # draws the order of an epoch that is done
    together = 1
    for epoch in range(begun, epochs):
        left, number = itertools.islice(minibatches(), done, None), done
        while taken := list(itertools.islice(left, together)):
            began = time.perf_counter()
            state = step(state, taken, epoch, number)
            number += len(taken)
            together = _as_many(len(taken), time.perf_counter() - began, most)
            keeper.keep(stage, epoch, number, state)
        state, done = end(state, epoch), 0
    return state


def _as_many(count: int, seconds: float, most: int) -> int:
    """The number of minibatches that take a second, or the time between two writes: at most twice as many as now."""
    wanted = min(1.0, SECONDS_BETWEEN) * count / max(seconds, 1e-6)
    return int(min(max(1.0, wanted), 2.0 * count, most))
