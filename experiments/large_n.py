"""Half a million readings of the magnetic field from the air (in place of the 3droad of appendix C.3).

The anomaly of the total field over Great Britain, by place alone (its height is left out), Matern 3/2. A fifth is held out
in two ways: at random, and by whole flight lines, which is harder. One kernel and noise for all systems, learned from some of
the readings, so that the system and M alone make the difference.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hipgp as hg
from hipgp.apps import plots
from hipgp.files.labels import Labels

from . import baselines
from .outcome import NOT_RUN, Result, on_gpu, scores

LABELS = Labels.of(2, ("East", "North"), "degrees of latitude", "anomaly", "nT")
TARGETS = 20_000  # that the dense systems predict
ON_TWO_CORES = 1e8  # readings x grid points that exact weights take in minutes without a GPU
MOST_EXACT = 5e9  # readings x grid points beyond which local weights stand for exact ones


class Setting(NamedTuple):
    readings: int | None  # None: all
    learn_from: int
    systems: tuple[tuple[str, int], ...]  # and the side of the grid
    exact: int  # readings of the exact GP
    inducing: int  # of SGPR


SETTINGS = {
    "small": Setting(
        6000, 2000, (("HIP-GP", 16), ("SVGP", 16), ("batch engine", 16), ("batch engine", 64)), 2000, 200
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
    assert data is not None
    setting = SETTINGS[size]
    result = Result("Aeromagnetic readings")
    gp, best = None, None
    for split in ("at random", "by flight line"):
        readings = load(data / "gb_aeromagnetic" / "gb_aeromagnetic.npz", setting, split == "by flight line")
        if gp is None:
            gp = learned(readings, setting, progress)
            kernel: Any = gp.kernel
            result.table("The kernel and the noise", progress).add(
                variance=float(kernel.variance), lengthscale=float(kernel.lengthscale), noise=float(gp.noise or 0.0)
            )  # fmt: skip
        count, held = len(readings.y), len(readings.y_test)
        table = result.table(f"Held out {split}: {held:,} of {count + held:,}", progress)
        for system, side in setting.systems:
            row, post = fitted(system, gp, readings, side)
            table.add(system=system, M=side**2, **row)
            best = post if system == "batch engine" else best
        for row in dense(gp, readings, setting):
            table.add(**row)
    assert best is not None
    panels = {"posterior mean": best.mean, "std": best.std("vecchia")}
    title = f"Magnetic anomaly, batch engine, M = {best.grid.size:,}"
    result.figures.append(plots.save(plots.maps(panels, best.grid, LABELS, title=title), folder / "maps.png"))
    return result


def load(path: Path, setting: Setting, by_line: bool) -> Readings:
    """Readings about their mean, and those held out."""
    file = np.load(path)
    lon, lat = file["lon"].astype(float), file["lat"].astype(float)
    x = np.stack([lon * np.cos(np.radians(lat.mean())), lat], axis=1)
    y, line = file["tfa_nt"].astype(float), file["line"]
    rng = np.random.default_rng(0)
    some = rng.permutation(len(y))[: setting.readings]
    x, y, line = x[some], y[some], line[some]
    lines = np.unique(line)
    chosen = rng.permutation(lines)[: len(lines) // 5]
    test = np.isin(line, chosen) if by_line else rng.uniform(size=len(y)) < 0.2
    level = y[~test].mean()
    return Readings(x[~test], y[~test] - level, x[test], y[test] - level)


def learned(readings: Readings, setting: Setting, progress: bool) -> hg.GP:
    """Kernel and noise; on a grid that only bounds the lengthscale."""
    some = slice(0, setting.learn_from)
    data = hg.observe(hg.Points(readings.x[some]), readings.y[some])
    return hg.GP(hg.Matern32(), grid_of(readings, 200)).learn(data, progress=progress)


def grid_of(readings: Readings, side: int) -> hg.Grid:
    every = np.concatenate([readings.x, readings.x_test])
    return hg.Grid.cover(every.min(0), every.max(0), shape=(side, side))


def fitted(
    system: str, gp: hg.GP, readings: Readings, side: int
) -> tuple[dict[str, Any], hg.Posterior | None]:
    """Scores on what was held out with the seconds they took, and the posterior; or why there are none."""
    grid = grid_of(readings, side)
    if system != "batch engine" and len(readings.y) * grid.size > ON_TWO_CORES and not on_gpu():
        return {"RMSE": NOT_RUN, "NLL": NOT_RUN, "fit_seconds": NOT_RUN}, None
    whitening: Any = "cholesky" if system == "SVGP" else "toeplitz"
    weights: Any = "exact" if len(readings.y) * grid.size <= MOST_EXACT else "local"
    mean_field = hg.Variational("mean-field", None, 1000, 3, whitening=whitening, weights=weights)
    method = hg.Batch() if system == "batch engine" else mean_field
    data = hg.observe(hg.Points(readings.x), readings.y, noise=gp.noise)
    began = time.perf_counter()
    post = hg.GP(gp.kernel, grid).condition(data, method, progress=False)
    seconds = time.perf_counter() - began
    found = post.predict(hg.Points(readings.x_test))
    steps = post.diagnostics.get("iterations", "")
    return scored(readings, found.mean, found.std, gp.noise or 0.0) | {
        "fit_seconds": seconds,
        "steps": steps,
    }, post


def scored(readings: Readings, mean: np.ndarray, std: np.ndarray, noise: float) -> dict[str, Any]:
    found = scores(readings.y_test, mean, np.hypot(std, noise))
    return {"RMSE": found["RMSE"], "NLL": -found["log_likelihood"]}


def dense(gp: hg.GP, readings: Readings, setting: Setting) -> list[dict[str, Any]]:
    """The exact GP on as many readings as memory allows, and SGPR with random inducing points on all of them."""
    theirs: Any = gp.kernel
    kernel = baselines.Kernel("matern32", float(theirs.variance), float(theirs.lengthscale))
    noise = float(gp.noise or 0.0)
    inducing = readings.x[np.random.default_rng(1).choice(len(readings.x), setting.inducing, replace=False)]
    rows, asked = [], slice(0, TARGETS)
    few = readings._replace(y_test=readings.y_test[asked])
    for name, system, count, m in (
        (
            "exact GP",
            baselines.exact_gp,
            min(setting.exact, len(readings.y)),
            f"{setting.exact:,} readings, exact",
        ),
        ("SGPR", lambda k, *rest: baselines.sgpr(k, inducing, *rest), len(readings.y), setting.inducing),
    ):
        began = time.perf_counter()
        f, y = [baselines.points(readings.x[:count])], readings.y[:count]
        mean, std = system(kernel, f, y, np.full(count, noise), [baselines.points(readings.x_test[asked])])
        row = scored(few, mean, std, noise)
        rows.append({"system": name, "M": m, **row, "fit_seconds": time.perf_counter() - began})
    return rows
