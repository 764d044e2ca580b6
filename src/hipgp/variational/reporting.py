"""What a fit says of itself: a progress bar for long ones, diagnostics, and errors for settings that make no sense."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hipgp.variational.minibatch_weights import Solves
from hipgp.variational.whitening import ToeplitzWhitening, Whitening

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 2.0  # seconds before a progress bar appears


class Reporter:
    """A progress bar by epochs, shown once a fit has taken longer than PATIENCE."""

    def __init__(self, wanted: bool):
        self.wanted, self.began = wanted, time.perf_counter()
        self.bar: Progress | None = None
        self.tasks: dict[str, Any] = {}

    def epoch(self, what: str, number: int, total: int, elbo: float) -> None:
        if not self.wanted or time.perf_counter() - self.began < PATIENCE:
            return
        if self.bar is None:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("epoch {task.completed}/{task.total}"),
            )
            self.bar = Progress(*columns, TextColumn("ELBO {task.fields[elbo]:,.2f}"), TimeElapsedColumn())
            self.bar.start()
        if what not in self.tasks:
            self.tasks[what] = self.bar.add_task(what, total=total, elbo=elbo)
        self.bar.update(self.tasks[what], completed=number + 1, elbo=elbo)

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.stop()


def sizes(count: int, shape: tuple[int, ...], whitening: Whitening) -> dict[str, Any]:
    facts: dict[str, Any] = {"observations": count, "grid": shape, "grid_points": int(np.prod(shape))}
    facts |= {"whitened_shape": whitening.shape, "whitened_points": whitening.size}
    if isinstance(whitening, ToeplitzWhitening):
        facts |= {"torus": whitening.shape, "clipped_mass": float(whitening.toeplitz.clipped_mass)}
    return facts


def solve_facts(solves: Solves) -> dict[str, Any]:
    return {
        "pcg_iterations_max": int(solves.most),
        "pcg_iterations_mean": float(solves.mean),
        "pcg_relative_error_max": float(solves.error),
        "pcg_unconverged": int(solves.failed),
    }


def verdict(facts: dict[str, Any], nats: float, pcg_error: float) -> dict[str, Any]:
    """Whether all went well, and in words what did not and what to try."""
    said = []
    if facts["pcg_relative_error_max"] > pcg_error:
        said.append(
            f"{facts['pcg_unconverged']} solves for the weights stopped short, at relative errors up to "
            f"{facts['pcg_relative_error_max']:.1e}: raise max_iterations, or use weights='local'"
        )
    if facts["mean_gap_nats"] > nats:
        advice = (
            "the solve for it met its limit: use larger blocks, which precondition it, or method=Batch()"
            if facts["direct"]
            else "raise epochs or batch_size, or use direct=True"
        )
        said.append(f"the mean is about {facts['mean_gap_nats']:.2g} nats short of the optimum: {advice}")
    if facts.get("clipped_mass", 0.0) > 1e-3:
        said.append(
            f"the embedding clipped {facts['clipped_mass']:.1e} of the covariance: the lengthscale is long for the grid"
        )
    return {"converged": not said, "message": "; ".join(said) or "converged"}


def check_finite(elbo: float) -> None:
    if not np.isfinite(elbo):
        raise FloatingPointError(
            "the bound is not finite: the weights or the kernel's parameters have overflowed; rescale the data, or use "
            "float64"
        )


# --- settings ---------------------------------------------------------------------------------------------------------


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> Any:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def whole(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return int(value)


def between(name: str, value: Any, most: float) -> float:
    """A number above zero and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value <= most:
        raise ValueError(f"{name}: expected a number above 0 and at most {most:g}, got {value!r}")
    return float(value)


def per_axis(name: str, value: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    every = [value] if isinstance(value, int | np.integer) else list(value)
    if not 1 <= len(every) <= 4:
        raise ValueError(f"{name}: expected a whole number, or one per axis of the grid, got {value!r}")
    return tuple(whole(name, n) for n in every)
