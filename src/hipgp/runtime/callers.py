"""Warnings that name the user's line: the one outside this package that the call came from."""

import sys
import warnings

INSIDE = __name__.split(".")[0], "equinox"  # which stands between a method and its caller


def warn_caller(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn at the first line outside this package, however deep inside it the reason was found.

    In a thread of this package's own there is no such line: warn where its results are put together.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
