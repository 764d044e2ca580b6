"""Process conditions of JAX's threads: no fork after they start, and no destruction of a busy backend at exit."""

import ctypes
import functools
import os
import sys


class _Process:
    """Whether this process was forked from one in which JAX had started."""

    forked = False


def _after_fork() -> None:
    bridge = sys.modules.get("jax._src.xla_bridge")  # JAX is not imported for this
    _Process.forked = bridge is not None and bridge.backends_are_initialized()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)


def check_not_forked() -> None:
    """Raise a RuntimeError in a forked process that cannot use JAX."""
    if _Process.forked:
        raise RuntimeError(
            "hipgp: expected a process started afresh, got one forked after JAX had started: JAX's threads are gone in "
            'it, and it would hang. Start workers with multiprocessing.get_context("spawn") (or "forkserver"), or '
            "create them before JAX is used"
        )


@functools.cache
def keep_backend() -> None:
    """Keep JAX's backend alive to the end of the process, because an interrupt may have left work running on it.

    In jaxlib 0.10 a compilation continues in its own thread after Ctrl-C, and crashes once the backend is destroyed.
    """
    import jax

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(jax.local_devices()[0].client))
