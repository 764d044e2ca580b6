"""The facts of the machine that a benchmark ran on, to be stored beside its numbers."""

import json
import os
import platform
import resource
import shlex
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

LOCAL = {"--data": "DIR", "--peer-python": "PYTHON"}  # what stands in for paths of this machine
RESULTS = Path(os.environ.get("HIPGP_RESULTS", Path(__file__).parent / "results"))


def facts() -> dict[str, Any]:
    """CPU, cores, threads, versions, dtype and device, as plain JSON."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": str(jax.devices()[0].device_kind),
        "dtype": str(jnp.zeros(()).dtype),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    return names[0].split(":")[1].strip() if names else platform.processor()


def peak_memory() -> dict[str, float]:
    """GiB at the most so far: of this process, and of the device where it tells."""
    out = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        out["device"] = stats["peak_bytes_in_use"] / 2**30
    return out


def write_result(name: str, result: dict[str, Any]) -> None:
    """Keep a result, with the command that made it, as JSON under benchmarks/results, or $HIPGP_RESULTS if that is set."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = {"command": command(sys.argv), **result}
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1, default=_plain) + "\n")


def command(arguments: list[str]) -> str:
    """The command line to repeat; the folder of the data sets is DIR, a peer's Python is PYTHON."""
    told = [f"benchmarks/{Path(arguments[0]).name}", *arguments[1:]]
    known = [LOCAL.get(before, word) for before, word in zip(["", *told], told, strict=False)]
    return shlex.join(["python", *known])


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def gaussian_scores(truth: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    """Error, continuous ranked probability score, log-likelihood and coverage of Gaussian predictions."""
    error = truth - mean
    u = error / std
    crps = std * (u * (2 * norm.cdf(u) - 1) + 2 * norm.pdf(u) - 1 / np.sqrt(np.pi))
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mae": float(np.mean(np.abs(error))),
        "crps": float(np.mean(crps)),
        "log_likelihood": float(np.mean(norm.logpdf(error, scale=std))),
        "coverage_95": float(np.mean(np.abs(u) < 1.959964)),
    }
