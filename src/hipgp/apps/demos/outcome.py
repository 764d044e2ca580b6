"""What a demo hands back: a few numbers with their meaning, and the pictures it drew."""

import pathlib
from typing import Any, NamedTuple

import numpy as np

import hipgp as hg
from hipgp.model.kernel_words import describe

Z95 = 1.959964


class Outcome(NamedTuple):
    """The title of a demo, its numbers by name (a name ends in its unit), and its pictures."""

    title: str
    numbers: dict[str, Any]
    pictures: list[pathlib.Path]


def against_truth(mean: Any, std: Any, truth: Any) -> dict[str, float]:
    """The error against the known truth, and the share of 95% intervals that contain it."""
    error = np.ravel(mean) - np.ravel(truth)
    return {
        "error_rms": float(np.sqrt(np.mean(error**2))),
        "truth_std": float(np.std(truth)),
        "explained_percent": float(100 * (1 - np.mean(error**2) / np.var(truth))),
        "coverage95_percent": float(100 * np.mean(np.abs(error) <= Z95 * np.ravel(std))),
    }


def facts(gp: hg.GP, post: hg.Posterior, seconds: float) -> dict[str, Any]:
    """The size of the computation, its distance from the exact result, and its time."""
    info = post.diagnostics
    last = info.get("gaussian", info)  # with a link, the last of several solves
    return {
        "observations": info["observations"],
        "grid": " x ".join(str(n) for n in post.grid.shape),
        "kernel": describe(post.kernel),
        "noise_learned": None if post.noise is None else float(post.noise),
        "learning_seconds": None if gp.learned is None else gp.learned.seconds,
        **({"rounds": info["rounds"], "change_nats": info["change_nats"]} if "rounds" in info else {}),
        "iterations": last["iterations"],
        "kl_nats": last["kl_nats"],
        "seconds": seconds,
    }
