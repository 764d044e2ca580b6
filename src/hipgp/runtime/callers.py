"""Warnings that point to the user's line, the first one on the call stack outside this package."""

import sys
import warnings

INSIDE = (
    __name__.split(".")[0],
    "equinox",
)  # equinox wraps methods, so its frames lie between them and their callers


def warn_caller(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn at the first line outside this package, at any depth of calls inside it.

    Do not call it in a worker thread, whose call stack has no such line.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
