"""Log prices of houses by longitude and latitude (section 5.4).

Matern 5/2, blocks of 10 x 10, PCG limited to 20 iterations in training and 50 in prediction; RMSE on held-out sales as the
grid of inducing points grows, and against the limit of the PCG: means over three random splits, with standard errors. One
kernel for all systems and all M, so that M alone makes the difference: lengthscale 0.1 degrees, as the authors' script has
it, with the variance and the noise of best likelihood on a few thousand sales. On one grid HIP-GP is fitted in every way:
in closed form, by the paper's natural gradients (with the kernel as it is, and learned with q), and by dual ascent.

The extract is another one than the paper's flats of 2018: compare the shape, not the level.
"""

import itertools
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hipgp as hg
from hipgp import plots
from hipgp.model.labels import Labels

from . import baselines, systems
from .outcome import NOT_POSSIBLE, NOT_RUN, Result, machine, on_gpu, scores
from .pieces import Pieces

LABELS = Labels.of(2, ("Longitude", "Latitude"), "degrees", "log price", "")
BLOCK = (10, 10)
SPLITS = 3
LEARNING_EPOCHS = 5  # of the kernel with q, and then of q
SPREAD = ("RMSE", "log_likelihood")
LENGTHSCALE = 0.1  # degrees
PCG_LIMIT = 20
ON_TWO_CORES = 2e8  # observations x grid points that exact weights take in minutes without a GPU
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
    first: tuple[int, ...]  # sides whose dear fits are done before all others
    limits: tuple[int, ...]  # of the PCG
    limits_side: int
    minibatch: int
    epochs: int
    exact: int  # observations of the exact GP
    inducing: int  # of SGPR
    map_sales: int | None  # of figure 3; None: all
    map_side: int


SETTINGS = {
    "small": Setting(1000, 1000, 1000, (10, 16), (), (1, 5, 20), 16, 200, 20, 1000, 100, 10_000, 100),
    "paper": Setting(None, 20_000, 10_000, (100, 120, 140, 160, 180, 200, 500, 1000), (160, 140), (5, 10, 20, 50), 120, 1000, 5, 10_000, 512, None, 1000),
}  # fmt: skip


class Sales(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def run(size: str, data: Path | None, folder: Path, progress: bool) -> Result:
    """In pieces: what an earlier run of this size has done in this folder is not done again."""
    assert data is not None
    setting, path = SETTINGS[size], data / "uk_house_prices" / "uk_prices_2018_update.npz"
    splits = [load(path, setting, seed) for seed in range(SPLITS)]
    result, pieces = Result("UK housing prices"), Pieces(folder / f"pieces-{size}")
    (sales, level), sides = splits[0], setting.sides
    known = pieces.kept("kernel", lambda _: learned(sales, setting, progress))
    gp = hg.GP(
        hg.Matern52(known["variance"], known["lengthscale"]), grid_of(sales, max(sides)), noise=known["noise"]
    )
    facts = result.table("The kernel and the noise", progress)
    facts.add(observations=len(sales.y), held_out=len(sales.y_test), mean=level, **known)
    fits = Fits(gp, [s for s, _ in splits], setting, pieces)
    for seed, side, system in itertools.product(range(SPLITS), setting.first, ("SVGP", "HIP-GP")):
        fits.one(seed, system, "best", side)
    table = result.table(f"RMSE and seconds by the number of inducing points, {SPLITS} splits", progress)
    for side in sides:
        for system, fit in jobs(side == setting.limits_side, size == "small"):
            row = fits.averaged(system, fit, side)
            table.add(system=system, M=side**2, **row, **from_paper(system, side**2))
    for row in fits.dense():
        table.add(**row)
    limits = result.table(f"RMSE by the limit of the PCG iterations, {SPLITS} splits", progress)
    for limit in setting.limits:
        row = fits.averaged("HIP-GP", "best", setting.limits_side, limit)
        limits.add(M=setting.limits_side**2, PCG_iterations_at_most=limit, **row)
    conclude(result, table.rows, limits.rows)
    result.draw(maps(gp, path, setting), folder / "figure-3.png")
    result.draw(picture(table.rows), folder / "housing-rmse.png")
    result.draw(by_limit(limits.rows), folder / "figure-4.png")
    pieces.done()
    return result


class Fits(NamedTuple):
    """The fits of all systems to all splits, each done once."""

    gp: hg.GP
    splits: list[Sales]
    setting: Setting
    pieces: Pieces

    def one(
        self, seed: int, system: str, fit: systems.Fit, side: int, limit: int = PCG_LIMIT
    ) -> dict[str, Any]:
        """The row of one fit to one split."""
        make = lambda _: fitted(system, fit, self.gp, self.splits[seed], self.setting, side, limit)
        return self.pieces.kept(f"{system} {fit} {side} limit {limit} split {seed}", make)

    def averaged(self, system: str, fit: systems.Fit, side: int, limit: int = PCG_LIMIT) -> dict[str, Any]:
        """The mean over the splits."""
        rows = [self.one(seed, system, fit, side, limit) for seed in range(len(self.splits))]
        return systems.averaged(rows, SPREAD)

    def dense(self) -> list[dict[str, Any]]:
        """The exact GP's row and SGPR's, as means over the splits."""
        rows = [
            self.pieces.kept(f"dense split {n}", lambda _, s=s: dense(self.gp, s, self.setting))
            for n, s in enumerate(self.splits)
        ]
        return [systems.averaged([r[name] for r in rows], SPREAD) for name in rows[0]]


def conclude(result: Result, rows: list[dict[str, Any]], limits: list[dict[str, Any]]) -> None:
    found = {(r["system"], r["M"]): r for r in reversed(rows) if isinstance(r["RMSE"], float)}
    ours = {m: found["HIP-GP", m]["RMSE"] for s, m in found if s == "HIP-GP"}
    if len(ours) > 1:
        few, many = min(ours), max(ours)
        here = f"{ours[few]:.4f} (M = {few:,}) to {ours[many]:.4f} (M = {many:,})"
        result.conclude("RMSE falls as M grows", "0.411 to 0.389", here, ours[many] < ours[few])
    apart = [abs(ours[m] - found["SVGP", m]["RMSE"]) for m in ours if ("SVGP", m) in found]
    if apart:
        here = f"at most {max(apart):.1g} apart"
        result.conclude("HIP-GP and SVGP have one RMSE at equal M", "0.002 apart", here, max(apart) <= 0.002)
    errors = [r["RMSE"] for r in limits if isinstance(r["RMSE"], float)]
    if errors:
        here = f"{min(errors):.4f} to {max(errors):.4f}"
        result.conclude(
            "RMSE is robust to the limit of the PCG", "yes", here, max(errors) < 1.01 * min(errors)
        )


def maps(gp: hg.GP, path: Path, setting: Setting) -> plots.Figure:
    """The paper's figure 3: posterior mean and std by the batch engine, on many sales and a fine grid."""
    sales, _ = load(path, setting._replace(train=setting.map_sales))
    data = hg.observe(hg.Points(sales.x), sales.y, noise=gp.noise)
    post = systems.conditioned(hg.Batch(), hg.GP(gp.kernel, grid_of(sales, setting.map_side)), data)
    panels = {"posterior mean": post.mean, "posterior std": post.std("vecchia")}
    title = f"Log prices above their mean, {len(sales.y):,} sales, batch engine, M = {post.grid.size:,}"
    return plots.maps(panels, post.grid, LABELS, spread=("posterior std",), title=title)


def jobs(every_way: bool, few: bool) -> list[tuple[str, systems.Fit]]:
    """The systems of one grid; where HIP-GP is fitted in every way, those too; elsewhere in small, HIP-GP alone."""
    others: list[tuple[str, systems.Fit]] = [("SVGP", "best"), ("batch engine", "best")]
    if every_way:
        return [*(("HIP-GP", fit) for fit in systems.EVERY_WAY), *others]
    return [("HIP-GP", "best"), *([] if few else others)]


def load(path: Path, setting: Setting, seed: int = 0) -> tuple[Sales, float]:
    """A random split of the log prices, less the mean of those seen, which is returned too."""
    file = np.load(path)
    x = np.stack([file["lon"], file["lat"]], axis=1).astype(float)
    y = np.log(file["price"]).astype(float)
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = order[: setting.test], order[setting.test :][: setting.train]
    level = float(np.mean(y[train]))
    return Sales(x[train], y[train] - level, x[test], y[test] - level), level


def grid_of(sales: Sales, side: int) -> hg.Grid:
    every = np.concatenate([sales.x, sales.x_test])
    return hg.Grid.cover(every.min(0), every.max(0), shape=(side, side))


def learned(sales: Sales, setting: Setting, progress: bool) -> dict[str, float]:
    """Variance and noise at the given lengthscale."""
    x, y = sales.x[: setting.learn_from], sales.y[: setting.learn_from]
    gp = hg.GP(hg.Matern52(0.3, LENGTHSCALE), grid_of(sales, max(setting.sides)))
    held = {"lengthscale": (LENGTHSCALE, LENGTHSCALE * 1.001)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the lengthscale ends at a bound, as it must
        polish = None if setting.train is None else False  # in small: compiling it takes longer than all else
        data = hg.observe(hg.Points(x), y)
        gp = gp.learn(data, start="kernel", bounds=held, polish=polish, progress=progress)
    kernel: Any = gp.kernel
    found = {"variance": float(kernel.variance), "lengthscale": float(kernel.lengthscale)}
    seconds = float(gp.learned.seconds if gp.learned else 0.0)
    return found | {"noise": float(gp.noise or 0.0), "learning_seconds": seconds}


def fitted(
    system: str, fit: systems.Fit, gp: hg.GP, sales: Sales, setting: Setting, side: int, limit: int
) -> dict[str, Any]:
    """Scores on the held-out sales with the seconds they took; or why there are none."""
    grid = grid_of(sales, side)
    if not systems.fits_memory(system, grid):
        return nothing(NOT_POSSIBLE)
    if system != "batch engine" and len(sales.y) * grid.size > ON_TWO_CORES and not on_gpu():
        return nothing(NOT_RUN)
    method = method_of(system, fit, setting, limit)
    learns = fit.endswith("learned")  # then the noise is learned too
    data = hg.observe(hg.Points(sales.x), sales.y, noise=None if learns else gp.noise)
    began = time.perf_counter()
    post = systems.conditioned(method, hg.GP(gp.kernel, grid, noise=gp.noise if learns else None), data)
    seconds = time.perf_counter() - began
    row = scored(sales, *post.predict(hg.Points(sales.x_test))[:2], post.noise or gp.noise or 0.0)
    epochs = post.diagnostics.get("epochs", 0)
    gap = post.diagnostics.get("mean_gap_nats", "")
    row |= {"fit_seconds": seconds, "seconds_an_epoch": seconds / epochs if epochs else ""}
    how = {"fitted_by": systems.fitted_by(post), **row, "nats_short_in_the_mean": gap}
    return how | {"device": machine()["device"]}


def nothing(why: str) -> dict[str, Any]:
    return {"fitted_by": "", "RMSE": why, "log_likelihood": why, "fit_seconds": why, "seconds_an_epoch": why}


def scored(sales: Sales, mean: np.ndarray, std: np.ndarray, noise: float) -> dict[str, Any]:
    found = scores(sales.y_test, mean, np.hypot(std, noise))
    return {k: found[k] for k in ("RMSE", "log_likelihood")}


def method_of(system: str, fit: systems.Fit, setting: Setting, limit: int) -> Any:
    if system == "batch engine":
        return hg.Batch(residual="bound")  # the paper's model, so that engines alone differ
    most = LEARNING_EPOCHS if setting.train is None else 3
    epochs = min(setting.epochs, most) if fit.endswith("learned") else setting.epochs
    return systems.variational(
        system, fit, family="block", block_shape=BLOCK, batch_size=setting.minibatch, epochs=epochs,
        max_iterations=limit, predict_max_iterations=max(50, limit),
    )  # fmt: skip


def dense(gp: hg.GP, sales: Sales, setting: Setting) -> dict[str, dict[str, Any]]:
    """The exact GP on as many sales as memory allows, and SGPR with random inducing points on all of them."""
    theirs: Any = gp.kernel
    kernel = baselines.Kernel("matern52", float(theirs.variance), float(theirs.lengthscale))
    noise, target = float(gp.noise or 0.0), [baselines.points(sales.x_test)]
    count = min(setting.exact, len(sales.y))
    began = time.perf_counter()
    data = hg.observe(hg.Points(sales.x[:count]), sales.y[:count], noise=noise)
    post = hg.GP(gp.kernel, grid_of(sales, 2)).condition(data, hg.Exact(), progress=False)
    exact = scored(sales, *post.predict(hg.Points(sales.x_test))[:2], noise)
    exact |= {"fit_seconds": time.perf_counter() - began}
    inducing = sales.x[np.random.default_rng(1).choice(len(sales.x), setting.inducing, replace=False)]
    f, std = [baselines.points(sales.x)], np.full(len(sales.y), noise)
    began = time.perf_counter()
    found = scored(sales, *baselines.sgpr(kernel, inducing, f, sales.y, std, target), noise)
    found |= {"fit_seconds": time.perf_counter() - began}
    return {
        "exact GP": {"system": "exact GP", "M": f"{count:,} sales, all exact", **exact},
        "SGPR": {"system": "SGPR", "M": setting.inducing, **found},
    }


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
        ours = [r for r in rows if r["system"] == system and isinstance(r["RMSE"], float)]
        known = {r["M"]: (r["RMSE"], r["RMSE_error"]) for r in reversed(ours)}  # of each M the first row
        if known:
            value, error = np.array([known[m] for m in sorted(known)]).T
            ax.errorbar(sorted(known), value, error, fmt=style, color=colour, ms=5, capsize=3, label=system)
    ax.set_xscale("log")
    ax.set(xlabel="inducing points M", ylabel="RMSE of the log price, held out")
    ax.legend(fontsize=9)
    return fig


@plots.styled
def by_limit(rows: list[dict[str, Any]]) -> plots.Figure:
    """The paper's figure 4: RMSE against the limit of the PCG iterations."""
    fig = plots.figure(6.4, 3.4)
    ax = fig.add_subplot()
    limits, value, error = np.array(
        [(r["PCG_iterations_at_most"], r["RMSE"], r["RMSE_error"]) for r in rows]
    ).T
    ax.errorbar(limits, value, error, fmt="o-", color=plots.SECOND, ms=5, capsize=3)
    ax.set(
        title=f"HIP-GP, M = {rows[0]['M']:,}; bars: standard error over {SPLITS} splits",
        xlabel="PCG iterations at most", ylabel="RMSE of the log price, held out",
        ylim=(0.9 * value.min(), 1.1 * value.max()),
    )  # fmt: skip
    return fig
