"""A progress line on the terminal for anything that takes over two seconds; silence otherwise."""

import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

PATIENCE = 2.0  # seconds before anything is shown
NOTEBOOK = 100  # characters of a line in a notebook

# called with the number of items done, and of all items
Report = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """Report nothing."""


class Progress:
    """A context manager that shows `description` and the seconds spent, once PATIENCE has passed."""

    def __init__(self, description: str, shown: bool):
        self.description, self.detail = description, ""
        self.fraction: float | None = None
        self.began = time.perf_counter()
        self.live = self._display() if shown else None
        self.timer = threading.Timer(PATIENCE, self._show) if shown else None
        self.lock = threading.Lock()  # the timer may go off while the work ends
        self.over = False

    def __enter__(self) -> Self:
        if self.timer is not None:
            self.timer.daemon = True
            self.timer.start()
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        with self.lock:
            self.over = True
        if self.timer is not None:
            self.timer.cancel()
        if self.live is not None and self.live.is_started:
            self.live.stop()

    def _display(self) -> "Live":
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        notebook = console.is_jupyter
        if notebook:  # there rich asks for ipywidgets; a line that is written over needs none
            console = Console(stderr=True, force_jupyter=False, force_terminal=True, width=NOTEBOOK)
        return Live(
            console=console, refresh_per_second=4, transient=True, get_renderable=self._line,
            redirect_stdout=not notebook, redirect_stderr=not notebook,
        )  # fmt: skip

    def _show(self) -> None:
        with self.lock:
            if self.live is not None and not self.over:
                self.live.start()

    def _line(self) -> "Text":
        from rich.text import Text

        bar = ""
        if self.fraction is not None:
            filled = round(24 * min(max(self.fraction, 0.0), 1.0))
            bar = "━" * filled + "╌" * (24 - filled) + "  "
        return Text(f"{self.description}  {bar}{self.detail}  {time.perf_counter() - self.began:.0f} s")

    def describe(self, description: str) -> None:
        """Begin a new phase of the work with a new description."""
        self.description = description
        self.update("")

    def update(self, detail: str, fraction: float | None = None) -> None:
        """Show `detail`, and a bar if the fraction done is known."""
        self.detail, self.fraction = detail, fraction

    def done(self, done: int, total: int) -> None:
        """Show the number of items done and their total; a `Report`."""
        self.update(f"{done:,} of {total:,}", done / total)

    def nats(self, target: float) -> Callable[[int, float], None]:
        """Return a reporter for solves, which shows the KL bound to the exact posterior with a logarithmic bar."""
        first: list[float] = []

        def report(steps: int, nats: float) -> None:
            if nats > 0:
                first.append(max(nats, 10 * target))
                fraction = math.log(max(first) / nats) / math.log(max(first) / target)
                self.update(f"step {steps}, {nats:.2g} nats to go to {target:g}", fraction)

        return report
