"""The command `hipgp`, also run as `python -m hipgp`. It handles signals before the slow imports begin."""

import contextlib
import os
import sys

from hipgp.runtime import signals


def main() -> None:
    """Run the command. Output that cannot be written ends it with a one-line error, or silently if a pipe is closed."""
    signals.install()
    code: int | str | None = 0
    try:
        from hipgp.apps.cli import main as run

        run()
    except SystemExit as leaving:
        code = leaving.code
    except OSError as error:  # from writing the output; commands catch all other input and output errors
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
