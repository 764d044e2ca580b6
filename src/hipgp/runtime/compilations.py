"""Compiled programs kept on disk between processes, by JAX's own cache, unless the user keeps them elsewhere or not at all.

The environment variable HIPGP_CACHE is a folder, or "off". Without it they are in the user's cache folder, apart for each
kind of processor. Where JAX has a folder already, from JAX_COMPILATION_CACHE_DIR or the user's program, nothing is changed.
"""

import contextlib
import hashlib
import os
import pathlib
import platform

import jax

VARIABLE, OFF = "HIPGP_CACHE", ("off", "0", "no", "")
SHORTEST = 0.05  # seconds of compiling from which a program is kept


def keep() -> None:
    """Have JAX keep what it compiles, for the next process."""
    told = os.environ.get(VARIABLE)
    if (told is not None and told.lower() in OFF) or jax.config.jax_compilation_cache_dir:
        return
    folder = _usual() if told is None else pathlib.Path(told)
    with contextlib.suppress(OSError):  # a home that cannot be written to is no reason to fail
        folder.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)


def _usual() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "hipgp" / f"jax-{_processor()}"


def _processor() -> str:
    """The kind of processor: homes are shared by machines that do not have the same instructions."""
    kind = platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        with open("/proc/cpuinfo") as file:
            flags = next(line for line in file if line.lower().startswith(("flags", "features")))
        kind += "-" + hashlib.sha256(flags.encode()).hexdigest()[:8]
    return kind
