"""Half a million readings of the magnetic field from the air (in place of the 3droad of appendix C.3).

The anomaly of the total field over Great Britain, by place alone (its height is left out), Matern 3/2. A fifth is held out
in two ways: at random, and by whole flight lines, which is harder; means over three splits of each, with standard errors, as
the paper's are. One kernel and noise for all systems, learned from some of the readings, so that the system and M alone make
the difference.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hipgp as hg
from hipgp import plots
from hipgp.model.labels import Labels

from . import baselines, systems
from .outcome import NOT_RUN, Result, machine, on_gpu, scores
from .pieces import Pieces

LABELS = Labels.of(2, ("East", "North"), "degrees of latitude", "anomaly", "nT")
SPLITS = 3
SPREAD = ("RMSE", "NLL")
TARGETS = 20_000  # that the dense systems predict
ON_TWO_CORES = 5e8  # readings x grid points that exact weights take in minutes without a GPU
MOST_EXACT = 5e9  # readings x grid points beyond which local weights stand for exact ones


class Setting(NamedTuple):
    readings: int | None  # None: all
    learn_from: int
    systems: tuple[tuple[str, int], ...]  # and the side of the grid
    exact: int  # readings of the exact GP
    inducing: int  # of SGPR


SETTINGS = {
    "small": Setting(
        2000,
        1000,
        (("HIP-GP", 24), ("SVGP", 10), ("batch engine", 24)),
        1000,
        64,
    ),
    "paper": Setting(
        None,
        20_000,
        (
            ("HIP-GP", 190),
            ("SVGP", 32),
            ("batch engine", 32),
            ("batch engine", 190),
            ("batch engine", 500),
            ("batch engine", 1000),
            ("batch engine", 2000),
        ),
        10_000,
        512,
    ),
}


class Readings(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def run(size: str, data: Path | None, folder: Path, progress: bool) -> Result:
    """In pieces: what an earlier run of this size has done in this folder is not done again."""
    assert data is not None
    setting, pieces = SETTINGS[size], Pieces(folder / f"pieces-{size}")
    result = Result("Aeromagnetic readings")
    path = data / "gb_aeromagnetic" / "gb_aeromagnetic.npz"
    gp = None
    for kind in ("at random", "by flight line"):
        splits = alike([load(path, setting, kind == "by flight line", seed) for seed in range(SPLITS)])
        if gp is None:
            first = splits[0]
            known = pieces.kept("kernel", lambda _, first=first: learned(first, setting, progress))
            kernel = hg.Matern32(known["variance"], known["lengthscale"])
            gp = hg.GP(kernel, grid_of(first, 200), noise=known["noise"])
            result.table("The kernel and the noise", progress).add(**known)
        count = len(splits[0].y) + len(splits[0].y_test)
        table = result.table(f"A fifth of {count:,} held out {kind}, {SPLITS} splits", progress)
        for system, side in setting.systems:
            make = functools.partial(fitted, system, gp, side)
            row = each(pieces, f"{kind} {system} {side}", splits, lambda r, make=make: {"row": make(r)})[
                "row"
            ]
            table.add(held_out=kind, system=system, M=side**2, **row)
        for row in each(pieces, f"{kind} dense", splits, lambda r, gp=gp: dense(gp, r, setting)).values():
            table.add(held_out=kind, **row)
        conclude(result, kind, table.rows)
    assert gp is not None
    best = conditioned("batch engine", gp, splits[0], setting.systems[-1][1])[0]
    panels = {"posterior mean": best.mean, "std": best.std("vecchia")}
    title = f"Magnetic anomaly, batch engine, M = {best.grid.size:,}"
    result.draw(plots.maps(panels, best.grid, LABELS, title=title), folder / "large-n-maps.png")
    pieces.done()
    return result


def each(
    pieces: Pieces, name: str, splits: list[Readings], make: Callable[[Readings], dict[str, dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """The rows that `make` has for each split, as means over the splits."""
    found = [pieces.kept(f"{name} split {n}", lambda _, s=s: make(s)) for n, s in enumerate(splits)]
    return {key: systems.averaged([f[key] for f in found], SPREAD) for key in found[0]}


def conclude(result: Result, kind: str, rows: list[dict[str, Any]]) -> None:
    found = {r["system"]: r for r in rows if isinstance(r["RMSE"], float)}
    others = [s for s in ("SGPR", "SVGP") if s in found]
    if "HIP-GP" not in found or not others:
        return
    for key, paper in (("RMSE", "0.189; 0.661, 0.481"), ("NLL", "-0.171; 0.943, 0.697")):
        here = "; ".join(f"{s} {found[s][key]:.4g}" for s in ("HIP-GP", *others))
        better = all(found["HIP-GP"][key] < found[s][key] for s in others)
        what = f"HIP-GP's {key} is below SGPR's and SVGP's ({kind})"
        result.conclude(what, paper, f"{here} (other data)", better)


def load(path: Path, setting: Setting, by_line: bool, seed: int = 0) -> Readings:
    """Readings about their mean, and those held out: a fifth at random, or a fifth of the flight lines."""
    file = np.load(path)
    lon, lat = file["lon"].astype(float), file["lat"].astype(float)
    x = np.stack([lon * np.cos(np.radians(lat.mean())), lat], axis=1)
    y, line = file["tfa_nt"].astype(float), file["line"]
    rng = np.random.default_rng(seed)
    some = rng.permutation(len(y))[: setting.readings]
    x, y, line = x[some], y[some], line[some]
    lines = np.unique(line)
    chosen = rng.permutation(lines)[: len(lines) // 5]
    test = np.isin(line, chosen) if by_line else rng.uniform(size=len(y)) < 0.2
    level = y[~test].mean()
    return Readings(x[~test], y[~test] - level, x[test], y[test] - level)


def alike(splits: list[Readings]) -> list[Readings]:
    """All splits cut to the least counts among them, so that programs are compiled once."""
    seen, held = min(len(s.y) for s in splits), min(len(s.y_test) for s in splits)
    return [Readings(s.x[:seen], s.y[:seen], s.x_test[:held], s.y_test[:held]) for s in splits]


def learned(readings: Readings, setting: Setting, progress: bool) -> dict[str, float]:
    """Kernel and noise; on a grid that only bounds the lengthscale."""
    some = slice(0, setting.learn_from)
    data = hg.observe(hg.Points(readings.x[some]), readings.y[some])
    polish = None if setting.readings is None else False  # in small: compiling it takes longer than all else
    gp = hg.GP(hg.Matern32(), grid_of(readings, 200)).learn(data, polish=polish, progress=progress)
    kernel: Any = gp.kernel
    found = {"variance": float(kernel.variance), "lengthscale": float(kernel.lengthscale)}
    return found | {"noise": float(gp.noise or 0.0)}


def grid_of(readings: Readings, side: int) -> hg.Grid:
    every = np.concatenate([readings.x, readings.x_test])
    return hg.Grid.cover(every.min(0), every.max(0), shape=(side, side))


def fitted(system: str, gp: hg.GP, side: int, readings: Readings) -> dict[str, Any]:
    """Scores on what was held out with the seconds they took; or why there are none."""
    points = side**2
    if system != "batch engine" and len(readings.y) * points > ON_TWO_CORES and not on_gpu():
        return {"fitted_by": "", "weights": "", "RMSE": NOT_RUN, "NLL": NOT_RUN, "fit_seconds": NOT_RUN}
    began = time.perf_counter()
    post, weights = conditioned(system, gp, readings, side)
    seconds = time.perf_counter() - began
    found = post.predict(hg.Points(readings.x_test))
    how = {"fitted_by": systems.fitted_by(post), "weights": weights, "device": machine()["device"]}
    return how | scored(readings, found.mean, found.std, gp.noise or 0.0) | {"fit_seconds": seconds}


def conditioned(system: str, gp: hg.GP, readings: Readings, side: int) -> tuple[hg.Posterior, str]:
    """The posterior, and which weights it has."""
    grid = grid_of(readings, side)
    weights = "exact" if len(readings.y) * grid.size <= MOST_EXACT else "local"
    method: Any = systems.variational(system, family="mean-field", batch_size=1000, epochs=3, weights=weights)
    if system == "batch engine":
        method, weights = hg.Batch(), "local"
    data = hg.observe(hg.Points(readings.x), readings.y, noise=gp.noise)
    return systems.conditioned(method, hg.GP(gp.kernel, grid), data), weights


def scored(readings: Readings, mean: np.ndarray, std: np.ndarray, noise: float) -> dict[str, Any]:
    found = scores(readings.y_test, mean, np.hypot(std, noise))
    return {"RMSE": found["RMSE"], "NLL": -found["log_likelihood"]}


def dense(gp: hg.GP, readings: Readings, setting: Setting) -> dict[str, dict[str, Any]]:
    """The exact GP on as many readings as memory allows, and SGPR with random inducing points on all of them."""
    theirs: Any = gp.kernel
    kernel = baselines.Kernel("matern32", float(theirs.variance), float(theirs.lengthscale))
    noise = float(gp.noise or 0.0)
    few = readings._replace(x_test=readings.x_test[:TARGETS], y_test=readings.y_test[:TARGETS])
    count = min(setting.exact, len(readings.y))
    began = time.perf_counter()
    data = hg.observe(hg.Points(readings.x[:count]), readings.y[:count], noise=noise)
    post = hg.GP(gp.kernel, grid_of(readings, 2)).condition(data, hg.Exact(), progress=False)
    exact = scored(few, *post.predict(hg.Points(few.x_test))[:2], noise)
    exact |= {"fit_seconds": time.perf_counter() - began}
    inducing = readings.x[np.random.default_rng(1).choice(len(readings.x), setting.inducing, replace=False)]
    f, std = [baselines.points(readings.x)], np.full(len(readings.y), noise)
    began = time.perf_counter()
    found = scored(
        few, *baselines.sgpr(kernel, inducing, f, readings.y, std, [baselines.points(few.x_test)]), noise
    )
    found |= {"fit_seconds": time.perf_counter() - began}
    return {
        "exact GP": {"system": "exact GP", "M": f"{count:,} readings, exact", **exact},
        "SGPR": {"system": "SGPR", "M": setting.inducing, **found},
    }
