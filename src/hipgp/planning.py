"""What a fit will take, before it begins: memory and expected seconds of each part, and whether it fits."""

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from hipgp.runtime import memory
from hipgp.runtime.shown import Shown

if TYPE_CHECKING:
    from hipgp.linalg.rates import Rates

PROGRAM_BYTES = 4.4 * 2**20  # that a compiled program, and what compiles it, leave behind
ACCURACY = "memory is good to a factor of about two, seconds to one of about three"


class Part(NamedTuple):
    """One part of a fit, or of a later request such as draws.

    `bytes` are those that it takes beside what earlier parts keep, `kept` those that stay, and `work` says in words what
    is computed. A part that is `optional` comes after the fit, if it is asked for.
    """

    name: str
    bytes: float
    kept: float
    seconds: float
    work: str
    optional: bool = False


def compilation(programs: int, rates: "Rates") -> Part:
    """The part of a plan for compiling `programs` programs, each as long as those whose compilation is timed."""
    size = programs * PROGRAM_BYTES
    return Part(
        "compilation", size, size, programs / rates.compiled, "once in a process for each shape of a fit"
    )


@dataclasses.dataclass(frozen=True, repr=False)
class Plan(Shown):
    """What a fit will take on this device, from `GP.plan(data)`; nothing of it has been computed.

    `parts` lists the parts of the fit and what may follow. `bytes` is the fit's memory at its peak and `seconds` its time,
    the compilation of its programs included. `refusal` holds the words with which `GP.condition` would refuse the fit, or
    None, and `reasons` the reasons for the choice of engine and grid.
    """

    engine: str
    grid: tuple[int, ...] | None
    parts: tuple[Part, ...]
    refusal: str | None
    reasons: dict[str, str]
    bytes_available: float

    @property
    def bytes(self) -> float:
        """The bytes of memory that the fit takes at its peak."""
        kept, peak = 0.0, 0.0
        for part in self.parts:
            if not part.optional:
                peak, kept = max(peak, kept + part.bytes), kept + part.kept
        return peak

    @property
    def seconds(self) -> float:
        """The seconds that the fit is expected to take."""
        return sum(part.seconds for part in self.parts if not part.optional)

    @property
    def fits(self) -> bool:
        """Whether the fit is not refused, and its parts together fit into memory."""
        return self.refusal is None and self.bytes <= memory.SHARE * self.bytes_available

    def _shown(self) -> tuple[str, dict[str, str]]:
        grid = "" if self.grid is None else f" on a grid of {' x '.join(map(str, self.grid))}"
        rows = dict(self.reasons)
        for part in self.parts:
            name = f"then, if asked for, {part.name}" if part.optional else part.name
            rows[name] = f"{_size(part.bytes)}, {_time(part.seconds)}: {part.work}"
        rows["the fit in all"] = (
            f"{_size(self.bytes)} of {_size(self.bytes_available)}, {_time(self.seconds)}"
        )
        rows["fits"] = (
            "yes" if self.fits else f"no: {self.refusal or 'its parts together need too much memory'}"
        )
        rows["how sure"] = ACCURACY
        return f"Plan of the {self.engine} engine{grid}", rows


def _size(size: float) -> str:
    return memory.shown(size) if size >= 2**30 else f"{max(size / 2**20, 0.1):,.1f} MiB"


def _time(seconds: float) -> str:
    if seconds < 0.1:
        return "less than 0.1 s"
    if seconds < 120:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.2g} minutes" if seconds < 7200 else f"{seconds / 3600:,.2g} hours"
