"""A progress line on the terminal for anything that takes over two seconds; silence otherwise."""

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

PATIENCE = 2.0  # seconds before anything is shown


class Progress:
    """Shows `description` with the seconds spent, once PATIENCE has passed. Use it as a context manager."""

    def __init__(self, description: str, shown: bool):
        self.description = description
        self.shown = shown
        self.began = time.perf_counter()
        self.live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    def describe(self, description: str) -> None:
        self.description = description
        self.update("")

    def update(self, detail: str, fraction: float | None = None) -> None:
        """Show `detail`, and a bar where the fraction done is known."""
        spent = time.perf_counter() - self.began
        if not self.shown or spent < PATIENCE:
            return
        if self.live is None:
            self.live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self.live.start()
        bar = ""
        if fraction is not None:
            filled = round(24 * min(max(fraction, 0.0), 1.0))
            bar = "━" * filled + "╌" * (24 - filled) + "  "
        self.live.update(Text(f"{self.description}  {bar}{detail}  {spent:.0f} s"))

    def nats(self, target: float) -> Callable[[int, float], None]:
        """A reporter for solves: how far from the exact posterior, on a logarithmic bar."""
        first: list[float] = []

        def report(steps: int, nats: float) -> None:
            if nats > 0:
                first.append(max(nats, 10 * target))
                fraction = math.log(max(first) / nats) / math.log(max(first) / target)
                self.update(f"step {steps}, {nats:.2g} nats to go to {target:g}", fraction)

        return report
