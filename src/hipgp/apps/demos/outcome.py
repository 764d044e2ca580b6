"""What a demo hands back: a few numbers with their meaning, and the pictures it drew."""

import pathlib
from typing import Any, NamedTuple

import numpy as np

from hipgp.gp import GP, Posterior

Z95 = 1.959964


class Outcome(NamedTuple):
    title: str
    numbers: dict[str, Any]  # name -> number; names end in their unit
    pictures: list[pathlib.Path]


def against_truth(mean: Any, std: Any, truth: Any) -> dict[str, float]:
    """Error against the known truth, and how often 95% intervals hold it."""
    error = np.ravel(mean) - np.ravel(truth)
    return {
        "error_rms": float(np.sqrt(np.mean(error**2))),
        "truth_std": float(np.std(truth)),
        "explained_percent": float(100 * (1 - np.mean(error**2) / np.var(truth))),
        "coverage95_percent": float(100 * np.mean(np.abs(error) <= Z95 * np.ravel(std))),
    }


def facts(gp: GP, post: Posterior, seconds: float) -> dict[str, Any]:
    """What was computed, how far from exact it is, and how long it took."""
    told = post.diagnostics
    return {
        "observations": told["observations"],
        "grid": " x ".join(str(n) for n in post.grid.shape),
        "kernel": describe_kernel(post.kernel),
        "noise_learned": None if post.noise is None else float(post.noise),
        "learning_seconds": None if gp.learned is None else gp.learned.seconds,
        "iterations": told["iterations"],
        "kl_nats": told["kl_nats"],
        "seconds": seconds,
    }


def describe_kernel(kernel: Any) -> str:
    """A kernel in one line: Matern32(variance 1.2, lengthscale 0.3) + ..."""
    if hasattr(kernel, "left"):
        sign = " + " if type(kernel).__name__ == "Sum" else " * "
        return describe_kernel(kernel.left) + sign + describe_kernel(kernel.right)
    lengths = ", ".join(f"{v:.3g}" for v in np.atleast_1d(np.asarray(kernel.lengthscale)))
    return f"{type(kernel).__name__}(variance {float(kernel.variance):.3g}, lengthscale {lengths})"
