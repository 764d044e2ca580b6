"""Available memory, and estimates of what a problem needs, before large arrays are allocated.

Estimates are good to a factor of about two. A problem that clearly does not fit is refused, with the number of bytes.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import jax

ARRAYS = 8  # float64 arrays of the torus' size in memory at the peak of a solve; 7.5 to 8.2 were measured
OF_SLABS = 95.0  # bytes of each grid point and each eigenvalue of an orthant; 60 to 95 were measured
SHARE = 0.8  # fraction of the memory that a problem may take
CGROUPS = Path("/sys/fs/cgroup")


class DoesNotFit(ValueError):
    """A problem that needs more memory than there is."""


def _host_bytes() -> float:
    """Return the bytes that this process may use: the machine's memory, or less where a control group limits it."""
    machine = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min([machine, *_limits()])


def _control_groups() -> list[tuple[str, str]]:
    """Return the control groups of this process: their controllers and paths."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    return [(controllers, path) for _, controllers, path in (line.split(":", 2) for line in lines)]


def _limits() -> Iterator[float]:
    """Yield the memory limits of the control groups of this process; files that cannot be read set none."""
    for controllers, path in _control_groups():
        if controllers not in ("", "memory"):
            continue
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):  # inside a container its own group is the top one
            try:
                yield float((CGROUPS / controllers / folder / name).read_text())
            except (OSError, ValueError):  # "max" is no limit
                continue


def gpu_bytes() -> int | None:
    """Return the bytes that JAX may use on the GPU; None on a CPU."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def bytes_available() -> float:
    """Return the bytes of memory where JAX computes: the GPU's, or the host's."""
    return min(float(gpu_bytes() or math.inf), _host_bytes())


def torus_bytes(points: float) -> float:
    """Return the bytes that a solve on a torus of this many points takes at its peak."""
    return 8.0 * ARRAYS * float(points)


def slab_bytes(grid_points: float, orthant: float) -> float:
    """Return the bytes that a solve by slabs takes at its peak, with `orthant` eigenvalues in one orthant of the torus."""
    return OF_SLABS * (float(grid_points) + float(orthant))


def dense_bytes(rows: float, arrays: int) -> float:
    """Return the bytes of `arrays` square float64 matrices of `rows` rows."""
    return 8.0 * arrays * float(rows) ** 2


def numbers_at_once() -> int:
    """Return how many numbers an array may have in a computation that holds about ten such arrays at once.

    A GPU needs about a hundred million to be busy, and has the memory; on a CPU smaller arrays are as fast.
    """
    return max(2**24, (gpu_bytes() or 0) // 512)


def fits(needed: float) -> bool:
    """Tell whether `needed` bytes fit into the fraction of the memory that a problem may take."""
    return needed <= SHARE * bytes_available()


def check(argument: str, what: str, needed: float, advice: str) -> None:
    """Raise DoesNotFit, a ValueError, if `what` needs more bytes than there are."""
    if not fits(needed):
        raise DoesNotFit(
            f"{argument}: expected a problem that fits into memory, got {what}, which needs about {shown(needed)} "
            f"({needed:.3g} bytes), and there are {shown(bytes_available())}; {advice}"
        )


def shown(size: float) -> str:
    """Format a number of bytes in GiB."""
    return f"{size / 2**30:,.1f} GiB" if size < 2**40 else f"{size / 2**30:,.0f} GiB"
