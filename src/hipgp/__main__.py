"""The command `hipgp`, also as `python -m hipgp`: signals first, then all that takes long to import."""

import contextlib
import os
import sys

from hipgp.runtime import signals


def main() -> None:
    """Run the command; output that cannot be written ends it with one line, a closed pipe without."""
    signals.install()
    code: int | str | None = 0
    try:
        from hipgp.apps.cli import main as run

        run()
    except SystemExit as leaving:
        code = leaving.code
    except OSError as error:  # of the output: all else is caught where it is done
        code = _not_written(error)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        code = code or _not_written(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter will try once more
    sys.exit(code)


def _not_written(error: OSError) -> int:
    if not isinstance(error, BrokenPipeError):
        with contextlib.suppress(OSError):
            os.write(2, f"error: the output cannot be written ({error.strerror})\n".encode())
    return 1


if __name__ == "__main__":
    main()
