"""Compiled programs kept on disk between processes, by JAX's own cache, unless the user keeps them elsewhere or not at all.

The environment variable HIPGP_CACHE is a folder, or "off". Without it they are in the user's cache folder, apart for each
kind of processor. Where JAX has a folder already, from JAX_COMPILATION_CACHE_DIR or the user's program, nothing is changed.

The folder's size is limited at each start, by deleting what was not used for longest. JAX has a limit of its own, which needs
one more package, reads the whole folder at each write, and fails for good once a process was killed between its two files.
"""

import contextlib
import hashlib
import os
import pathlib
import platform

import jax

VARIABLE, OFF = "HIPGP_CACHE", ("off", "0", "no", "")
SHORTEST = 0.05  # seconds of compiling from which a program is kept
LIMIT = 2**29  # bytes of kept programs, some five thousand of them
TRIMMED = 0.75  # of the limit are left where it was passed, so that few starts have to delete


def keep() -> None:
    """Have JAX keep what it compiles, for the next process."""
    variable = os.environ.get(VARIABLE)
    of_jax = getattr(jax.config, "jax_compilation_cache_dir", None)
    if of_jax or (variable is not None and variable.lower() in OFF):
        return
    folder = _default_folder() if variable is None else pathlib.Path(variable)
    with contextlib.suppress(OSError):  # a home that cannot be written to is no reason to fail
        folder.mkdir(parents=True, exist_ok=True)
        limit(folder, LIMIT)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)


def limit(folder: pathlib.Path, size: int) -> None:
    """Delete the programs that were not used for longest, if those in the folder take more than `size` bytes."""
    files = []
    for file in folder.glob("*-cache"):
        with contextlib.suppress(OSError):  # another process deletes as well
            stat = file.stat()
            files.append((max(stat.st_atime, stat.st_mtime), stat.st_size, file))
    total = sum(bytes_ for _, bytes_, _ in files)
    if total <= size:
        return
    for _, bytes_, file in sorted(files, key=lambda entry: entry[0]):
        with contextlib.suppress(OSError):
            file.unlink()
        total -= bytes_
        if total <= TRIMMED * size:
            return


def _default_folder() -> pathlib.Path:
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
