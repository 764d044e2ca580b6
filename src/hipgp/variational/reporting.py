"""The diagnostics of a variational fit, and the checks of its settings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hipgp.variational.minibatch_weights import SolveSummary
from hipgp.variational.whitening import ToeplitzWhitening, Whitening


def sizes(count: int, shape: tuple[int, ...], whitening: Whitening) -> dict[str, Any]:
    """The numbers of observations, grid points and whitened points, and the clipped mass of the torus."""
    facts: dict[str, Any] = {"observations": count, "grid": shape, "grid_points": int(np.prod(shape))}
    facts |= {"whitened_shape": whitening.shape, "whitened_points": whitening.size}
    if isinstance(whitening, ToeplitzWhitening):
        facts |= {"torus": whitening.shape, "clipped_mass": float(whitening.toeplitz.clipped_mass)}
    return facts


def solve_facts(solves: SolveSummary) -> dict[str, Any]:
    """The diagnostics of the solves for the weights."""
    return {
        "pcg_iterations_max": int(solves.most_iterations),
        "pcg_iterations_mean": float(solves.mean_iterations),
        "pcg_relative_error_max": float(solves.error),
        "pcg_unconverged": int(solves.unconverged),
    }


def verdict(facts: dict[str, Any], nats: float, pcg_error: float) -> dict[str, Any]:
    """Whether the fit converged; if not, `message` gives the reasons and what to try."""
    reasons = []
    if facts["pcg_relative_error_max"] > pcg_error:
        reasons.append(
            f"{facts['pcg_unconverged']} solves for the weights stopped short, at relative errors up to "
            f"{facts['pcg_relative_error_max']:.1e}: raise max_iterations, or use weights='local'"
        )
    if facts["mean_gap_nats"] > nats:
        advice = (
            "the solve for it met its limit: use larger blocks, which precondition it, or method=Batch()"
            if facts["direct"]
            else "raise epochs or batch_size, or use direct=True"
        )
        reasons.append(f"the mean is about {facts['mean_gap_nats']:.2g} nats short of the optimum: {advice}")
    if facts.get("clipped_mass", 0.0) > 1e-3:
        reasons.append(
            f"the embedding clipped {facts['clipped_mass']:.1e} of the covariance: the lengthscale is long for the grid"
        )
    return {"converged": not reasons, "message": "; ".join(reasons) or "converged"}


# --- settings ---------------------------------------------------------------------------------------------------------


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> Any:
    """The value, if it is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def whole(name: str, value: Any, least: int = 1) -> int:
    """The value, if it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return int(value)


def between(name: str, value: Any, most: float) -> float:
    """The value, if it is a number above zero and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value <= most:
        raise ValueError(f"{name}: expected a number above 0 and at most {most:g}, got {value!r}")
    return float(value)


def per_axis(name: str, value: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """One whole number for all axes or one each, as a tuple; None stays None."""
    if value is None:
        return None
    values = [value] if isinstance(value, int | np.integer) else list(value)
    if not 1 <= len(values) <= 4:
        raise ValueError(f"{name}: expected a whole number, or one per axis of the grid, got {value!r}")
    return tuple(whole(name, n) for n in values)


def step_sizes(value: Any) -> float | tuple[float, float]:
    """A step size, or the first and the last of falling ones."""
    if not isinstance(value, tuple | list):
        return between("step", value, 1.0)
    if len(value) != 2:
        raise ValueError(f"step: expected one number, or the first and the last, got {value!r}")
    first, last = (between("step", v, 1.0) for v in value)
    if last > first:
        raise ValueError(f"step: expected a last number that is not above the first, got {value!r}")
    return first, last
