"""A curve from 100 values and 20 slopes (section 5.3).

A random network with sinusoidal units on [-1, 1]; noise 0.05 on the values and 0.2 on the slopes; squared exponential
kernel, variance 0.5, lengthscale 0.1; 80 inducing points, full rank; PCG limited to 20 iterations, as in the paper. RMSE and
mean std at 100 test points, on the paper's own realisation, and averaged over random networks of the same recipe, so that it
is no accident. `off_exact_mean` is the largest distance from the exact GP's mean, in units of the exact GP's std. HIP-GP is
fitted in closed form, and by the paper's natural gradients with mini-batches of 40.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hipgp as hg
from hipgp import plots

from . import baselines, systems
from .outcome import Result

VARIANCE, LENGTHSCALE, INDUCING = 0.5, 0.1, 80
NOISE, SLOPE_NOISE = 0.05, 0.2
UNITS = 9
TANGENT = 0.02  # half the width of a drawn slope
PAPER = {"HIP-GP": (0.0192, 0.0198), "SVGP": (0.0192, 0.0206), "exact GP": (0.0192, 0.0198)}
LIMIT = 20  # PCG iterations
BATCH, EPOCHS = 40, 200
FULL: Any = {"family": "full", "max_iterations": LIMIT, "predict_max_iterations": LIMIT}
SYSTEMS = {
    "HIP-GP": systems.variational("HIP-GP", **FULL),
    "HIP-GP, natural gradients": systems.variational(
        "HIP-GP", "natural gradients", batch_size=BATCH, epochs=EPOCHS, **FULL
    ),
    "batch engine": hg.Batch(tolerance=1e-6),
    "SVGP": systems.variational("SVGP", family="full"),
    "exact GP": None,
}


class Problem(NamedTuple):
    """Noisy values and slopes, and the function itself at test places; places are (N, 1)."""

    x: np.ndarray
    y: np.ndarray
    slope_x: np.ndarray
    slope: np.ndarray
    test: np.ndarray
    truth: np.ndarray


def run(size: str, data: Path | None, folder: Path, progress: bool) -> Result:
    assert data is not None
    result = Result("Synthetic derivative observations")
    paper = load(data / "derivatives" / "derivatives.npz")
    table = result.table("The paper's realisation: RMSE and mean std at 100 test points", progress)
    for system in SYSTEMS:
        for slopes in (True, False):
            mean, std = predict(system, paper, slopes)
            known = PAPER.get(system.partition(",")[0], ("", "")) if slopes else ("", "")
            table.add(
                system=system, slopes=slopes, **summary(paper, mean, std), **off_exact(paper, mean, slopes),
                paper_RMSE=known[0], paper_std=known[1],
            )  # fmt: skip
    best = {r["system"]: r for r in table.rows if r["slopes"]}
    without = {r["system"]: r for r in table.rows if not r["slopes"]}
    for key, column in (("RMSE", 0), ("std", 1)):
        here = best["HIP-GP"][key]
        same = round(here, 4) == PAPER["HIP-GP"][column]
        result.conclude(f"{key} of HIP-GP with slopes", f"{PAPER['HIP-GP'][column]:.4f}", f"{here:.4f}", same)
    helped = without["HIP-GP"]["RMSE"], best["HIP-GP"]["RMSE"]
    result.conclude(
        "slopes improve the prediction",
        "yes",
        f"RMSE {helped[0]:.4f} to {helped[1]:.4f}",
        helped[1] < helped[0],
    )
    count = 3 if size == "small" else 30
    average = result.table(f"Mean over {count} random functions", progress)
    problems = [simulate(seed) for seed in range(count)]
    for system in SYSTEMS:
        for slopes in (True, False):
            found = [summary(p, *predict(system, p, slopes)) for p in problems]
            average.add(
                system=system, slopes=slopes, **{k: float(np.mean([f[k] for f in found])) for k in found[0]}
            )
    result.draw(observations(paper), folder / "figure-2a.png")
    result.draw(picture(paper), folder / "figure-2b.png")
    return result


def summary(problem: Problem, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    error = mean - problem.truth
    inside = np.abs(error) <= 1.959964 * std
    return {
        "RMSE": float(np.sqrt(np.mean(error**2))),
        "std": float(np.mean(std)),
        "coverage": float(np.mean(inside)),
    }


def off_exact(problem: Problem, mean: np.ndarray, slopes: bool) -> dict[str, float]:
    """How far a mean is from that of the exact GP at worst, in the exact GP's standard deviations."""
    exact, std = predict("exact GP", problem, slopes)
    return {"off_exact_mean": float(np.max(np.abs(mean - exact) / std))}


def load(path: Path) -> Problem:
    file = np.load(path)
    column = lambda name: file[name].astype(float)[:, None]
    flat = lambda name: file[name].astype(float)
    return Problem(
        column("x"), flat("y"), column("x_derivative"), flat("dy"), column("x_test"), flat("f_test")
    )


class Network(NamedTuple):
    """softplus(b + v . tanh(sin(w x + a))), with w and a drawn with std 9, v and b with 0.2."""

    w: np.ndarray
    a: np.ndarray
    v: np.ndarray
    b: float

    @staticmethod
    def draw(rng: np.random.Generator) -> "Network":
        return Network(*rng.normal(0, 9, (2, UNITS)), rng.normal(0, 0.2, UNITS), rng.normal(0, 0.2))

    def inner(self, x: np.ndarray) -> np.ndarray:
        return self.b + np.tanh(np.sin(x * self.w + self.a)) @ self.v

    def value(self, x: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, self.inner(x))

    def slope(self, x: np.ndarray) -> np.ndarray:
        angle = x * self.w + self.a
        inner = ((1 - np.tanh(np.sin(angle)) ** 2) * np.cos(angle) * self.w) @ self.v
        return inner / (1 + np.exp(-self.inner(x)))


def simulate(seed: int) -> Problem:
    """Another realisation of the recipe."""
    rng = np.random.default_rng(seed)
    f = Network.draw(rng)
    x, at, test = (rng.uniform(-1, 1, (n, 1)) for n in (100, 20, 100))
    noisy = f.value(x) + NOISE * rng.standard_normal(len(x))
    return Problem(
        x, noisy, at, f.slope(at) + SLOPE_NOISE * rng.standard_normal(len(at)), test, f.value(test)
    )


def predict(system: str, problem: Problem, slopes: bool) -> tuple[np.ndarray, np.ndarray]:
    return at(system, problem, slopes, problem.test)


def at(system: str, problem: Problem, slopes: bool, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std of the function at `places`."""
    if system == "exact GP":
        f = [baselines.points(problem.x)] + [baselines.derivatives(problem.slope_x)] * slopes
        y = np.concatenate([problem.y] + [problem.slope] * slopes)
        noise = np.repeat((NOISE, SLOPE_NOISE), (len(problem.x), len(y) - len(problem.x)))
        kernel = baselines.Kernel("squared exponential", VARIANCE, LENGTHSCALE)
        return baselines.exact_gp(kernel, f, y, noise, [baselines.points(places)])
    data: Any = hg.observe(hg.Points(problem.x), problem.y, NOISE)
    if slopes:
        data = data + hg.observe(hg.Derivatives(problem.slope_x, axis=0), problem.slope, SLOPE_NOISE)
    grid = hg.Grid.cover(-1.0, 1.0, shape=INDUCING)
    gp = hg.GP(hg.SquaredExponential(VARIANCE, LENGTHSCALE), grid)
    post = systems.conditioned(SYSTEMS[system], gp, data)
    if isinstance(SYSTEMS[system], hg.Batch):
        return post.predict(hg.Points(places), std="exact")[:2]
    return post.predict(hg.Points(places))[:2]


@plots.styled
def observations(problem: Problem) -> plots.Figure:
    """The paper's figure 2a: the function, its noisy values, and the measured slopes."""
    fig = plots.figure(8.6, 3.2)
    ax = fig.add_subplot()
    order = np.argsort(problem.test[:, 0])
    ax.plot(problem.test[order, 0], problem.truth[order], color=plots.INK, lw=1.2, label="function")
    ax.plot(problem.x[:, 0], problem.y, ".", color=plots.SECOND, ms=5, label="values, noise 0.05")
    value = np.interp(problem.slope_x[:, 0], problem.test[order, 0], problem.truth[order])
    for number, (at, level, rise) in enumerate(zip(problem.slope_x[:, 0], value, problem.slope, strict=True)):
        label = "slopes, noise 0.2" if number == 0 else None
        ax.plot([at - TANGENT, at + TANGENT], [level - TANGENT * rise, level + TANGENT * rise],
                color=plots.ACCENT, lw=2, label=label)  # fmt: skip
    ax.set(xlabel="x", ylabel="f(x)", ylim=(0.3, 1.35))
    ax.legend(fontsize=8, ncols=3, loc="upper left")
    return fig


@plots.styled
def picture(problem: Problem) -> plots.Figure:
    """The paper's figure 2b: HIP-GP with and without the slopes, bands of one std, red where a slope was measured."""
    fig, panels = plots.stacked(2, sharex=True)
    x = np.linspace(-1, 1, 400)
    order = np.argsort(problem.test[:, 0])
    for ax, slopes in zip(panels, (True, False), strict=True):
        mean, std = at("HIP-GP", problem, slopes, x[:, None])
        ax.fill_between(x, mean - std, mean + std, color=plots.SECOND, alpha=0.3, lw=0, label="1 std")
        ax.plot(x, mean, color=plots.SECOND, lw=1.5, label="posterior mean")
        ax.plot(
            problem.test[order, 0], problem.truth[order], color=plots.INK, lw=1, ls="--", label="function"
        )
        ax.set(ylabel="f(x)", title=f"HIP-GP {'with' if slopes else 'without'} the slopes", ylim=(0.3, 1.35))
        if slopes:
            value = np.interp(problem.slope_x[:, 0], problem.test[order, 0], problem.truth[order])
            ax.plot(problem.slope_x[:, 0], value, "o", color=plots.ACCENT, ms=4, label="slope measured here")
        ax.legend(fontsize=8, ncols=4, loc="upper left")
    panels[-1].set_xlabel("x")
    return fig
