"""Log prices of houses by longitude and latitude (section 5.4).

Matern 5/2, blocks of 10 x 10, PCG limited to 20 iterations in training and 50 in prediction; RMSE on held-out sales as the
grid of inducing points grows, and against the limit of the PCG. One kernel for all systems and all M, so that M alone makes
the difference: lengthscale 0.1 degrees, as the authors' script has it, with the variance and the noise of best likelihood
on a few thousand sales.

The extract is another one than the paper's flats of 2018: compare the shape, not the level.
"""

import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hipgp as hg
from hipgp.apps import plots
from hipgp.files.labels import Labels

from . import baselines
from .outcome import NOT_POSSIBLE, NOT_RUN, Result, on_gpu, scores

LABELS = Labels.of(2, ("Longitude", "Latitude"), "degrees", "log price", "")
BLOCK = (10, 10)
MINIBATCH, EPOCHS = 1000, 5
LENGTHSCALE = 0.1  # degrees
ON_TWO_CORES = 2e8  # observations x grid points that exact weights take in minutes without a GPU
LARGEST_CHOLESKY = 2**14
PAPER = {  # M: RMSE of HIP-GP and SVGP, seconds an epoch of HIP-GP and SVGP, on their data and a V100
    10_000: (0.411, 0.412, 91.2, 193.6),
    14_400: (0.409, 0.409, 115.7, 406.3),
    19_600: (0.400, 0.398, 119.8, 668.1),
    25_600: (0.397, 0.396, 130.7, 898.2),
    32_400: (0.393, NOT_POSSIBLE, 129.5, NOT_POSSIBLE),
    40_000: (0.389, NOT_POSSIBLE, 133.2, NOT_POSSIBLE),
}


class Setting(NamedTuple):
    train: int | None  # None: all
    test: int
    learn_from: int
    sides: tuple[int, ...]  # of the grids
    limits: tuple[int, ...]  # of the PCG
    limits_side: int
    exact: int  # observations of the exact GP
    inducing: int  # of SGPR


SETTINGS = {
    "small": Setting(2000, 1000, 2000, (12, 20), (1, 5, 20), 20, 2000, 200),
    "paper": Setting(None, 20_000, 10_000, (100, 120, 140, 160, 180, 200, 500, 1000), (5, 10, 20, 50), 120, 10_000, 512),
}  # fmt: skip


class Sales(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def run(size: str, data: Path | None, folder: Path, progress: bool) -> Result:
    assert data is not None
    setting = SETTINGS[size]
    sales, level = load(data / "uk_house_prices" / "uk_prices_2018_update.npz", setting)
    result = Result("UK housing prices")
    gp = learned(sales, setting, progress)
    kernel: Any = gp.kernel
    facts = result.table("The kernel and the noise", progress)
    facts.add(
        observations=len(sales.y), held_out=len(sales.y_test), variance=float(kernel.variance),
        lengthscale=float(kernel.lengthscale), noise=float(gp.noise or 0.0), mean=level,
        learning_seconds=float(gp.learned.seconds if gp.learned else 0.0),
    )  # fmt: skip
    table = result.table("RMSE and seconds by the number of inducing points", progress)
    best = None
    for side in setting.sides:
        for system in ("HIP-GP", "SVGP", "batch engine"):
            row, post = fitted(system, gp, sales, side)
            table.add(system=system, M=side**2, **row, **from_paper(system, side**2))
            best = post if system == "batch engine" else best
    for row in dense(gp, sales, setting):
        table.add(**row)
    limits = result.table("RMSE by the limit of the PCG iterations", progress)
    for limit in setting.limits:
        row, _ = fitted("HIP-GP", gp, sales, setting.limits_side, limit)
        limits.add(M=setting.limits_side**2, PCG_iterations_at_most=limit, **row)
    assert best is not None
    panels = {"posterior mean": best.mean, "std": best.std("vecchia")}
    title = f"Log prices above their mean, {len(sales.y):,} sales, batch engine, M = {best.grid.size:,}"
    result.figures.append(plots.save(plots.maps(panels, best.grid, LABELS, title=title), folder / "maps.png"))
    result.figures.append(plots.save(picture(table.rows), folder / "rmse.png"))
    return result


def load(path: Path, setting: Setting) -> tuple[Sales, float]:
    """Log prices less their mean, which is returned too."""
    file = np.load(path)
    x = np.stack([file["lon"], file["lat"]], axis=1).astype(float)
    y = np.log(file["price"]).astype(float)
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[: setting.test], order[setting.test :][: setting.train]
    level = float(np.mean(y[train]))
    return Sales(x[train], y[train] - level, x[test], y[test] - level), level


def grid_of(sales: Sales, side: int) -> hg.Grid:
    every = np.concatenate([sales.x, sales.x_test])
    return hg.Grid.cover(every.min(0), every.max(0), shape=(side, side))


def learned(sales: Sales, setting: Setting, progress: bool) -> hg.GP:
    """Variance and noise at the given lengthscale."""
    x, y = sales.x[: setting.learn_from], sales.y[: setting.learn_from]
    gp = hg.GP(hg.Matern52(0.3, LENGTHSCALE), grid_of(sales, max(setting.sides)))
    held = {"lengthscale": (LENGTHSCALE, LENGTHSCALE * 1.001)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the lengthscale ends at a bound, as it must
        return gp.learn(hg.observe(hg.Points(x), y), start="kernel", bounds=held, progress=progress)


def fitted(
    system: str, gp: hg.GP, sales: Sales, side: int, limit: int = 20
) -> tuple[dict[str, Any], hg.Posterior | None]:
    """Scores on the held-out sales with the seconds they took, and the posterior; or why there are none."""
    grid, method = grid_of(sales, side), method_of(system, limit)
    if system == "SVGP" and grid.size > LARGEST_CHOLESKY:
        return nothing(NOT_POSSIBLE), None
    if system != "batch engine" and len(sales.y) * grid.size > ON_TWO_CORES and not on_gpu():
        return nothing(NOT_RUN), None
    data = hg.observe(hg.Points(sales.x), sales.y, noise=gp.noise)
    began = time.perf_counter()
    post = hg.GP(gp.kernel, grid).condition(data, method, progress=False)
    seconds = time.perf_counter() - began
    row = scored(sales, *post.predict(hg.Points(sales.x_test))[:2], gp.noise or 0.0)
    epochs = post.diagnostics.get("epochs", 0)
    row |= {"fit_seconds": seconds, "seconds_an_epoch": seconds / epochs if epochs else ""}
    return row, post


def nothing(why: str) -> dict[str, Any]:
    return {"RMSE": why, "log_likelihood": why, "fit_seconds": why, "seconds_an_epoch": why}


def scored(sales: Sales, mean: np.ndarray, std: np.ndarray, noise: float) -> dict[str, Any]:
    found = scores(sales.y_test, mean, np.hypot(std, noise))
    return {k: found[k] for k in ("RMSE", "log_likelihood")}


def method_of(system: str, limit: int) -> Any:
    if system == "batch engine":
        return hg.Batch(residual="bound")  # the paper's model, so that engines alone differ
    whitening: Any = "cholesky" if system == "SVGP" else "toeplitz"
    return hg.Variational(
        "block", BLOCK, MINIBATCH, EPOCHS, whitening=whitening, max_iterations=limit,
        predict_max_iterations=max(50, limit),
    )  # fmt: skip


def dense(gp: hg.GP, sales: Sales, setting: Setting) -> list[dict[str, Any]]:
    """The exact GP on as many sales as memory allows, and SGPR with random inducing points on all of them."""
    theirs: Any = gp.kernel
    kernel = baselines.Kernel("matern52", float(theirs.variance), float(theirs.lengthscale))
    noise, target = float(gp.noise or 0.0), [baselines.points(sales.x_test)]
    rows = []
    some = slice(0, min(setting.exact, len(sales.y)))
    inducing = sales.x[np.random.default_rng(1).choice(len(sales.x), setting.inducing, replace=False)]
    for name, system, count in (
        ("exact GP", baselines.exact_gp, some.stop),
        ("SGPR", lambda k, *rest: baselines.sgpr(k, inducing, *rest), len(sales.y)),
    ):
        f, y = [baselines.points(sales.x[:count])], sales.y[:count]
        began = time.perf_counter()
        mean, std = system(kernel, f, y, np.full(count, noise), target)
        seconds = time.perf_counter() - began
        m: Any = setting.inducing if name == "SGPR" else f"{count:,} sales, all exact"
        rows.append({"system": name, "M": m, **scored(sales, mean, std, noise), "fit_seconds": seconds})
    return rows


def from_paper(system: str, m: int) -> dict[str, Any]:
    if m not in PAPER or system == "batch engine":
        return {"paper_RMSE": "", "paper_seconds_an_epoch": ""}
    rmse, svgp_rmse, seconds, svgp_seconds = PAPER[m]
    ours = system == "HIP-GP"
    return {
        "paper_RMSE": rmse if ours else svgp_rmse,
        "paper_seconds_an_epoch": seconds if ours else svgp_seconds,
    }


@plots.styled
def picture(rows: list[dict[str, Any]]) -> plots.Figure:
    """RMSE against M."""
    fig = plots.figure(6.4, 3.8)
    ax = fig.add_subplot()
    styles = {
        "HIP-GP": (plots.SECOND, "o-"),
        "SVGP": (plots.ACCENT, "s--"),
        "batch engine": (plots.INK, "^-"),
    }
    for system, (colour, style) in styles.items():
        known = [(r["M"], r["RMSE"]) for r in rows if r["system"] == system and isinstance(r["RMSE"], float)]
        if known:
            ax.semilogx(*np.array(known).T, style, color=colour, ms=5, label=system)
    ax.set(xlabel="inducing points M", ylabel="RMSE of the log price, held out")
    ax.legend(fontsize=9)
    return fig
