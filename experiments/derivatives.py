"""A curve from 100 values and 20 slopes (section 5.3).

A random network with sinusoidal units on [-1, 1]; noise 0.05 on the values and 0.2 on the slopes; squared exponential
kernel, variance 0.5, lengthscale 0.1; 80 inducing points, full rank. RMSE and mean std at 100 test points, on the paper's
own realisation, and averaged over random networks of the same recipe, so that it is no accident.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hipgp as hg
from hipgp.apps import plots

from . import baselines
from .outcome import Result

VARIANCE, LENGTHSCALE, INDUCING = 0.5, 0.1, 80
NOISE, SLOPE_NOISE = 0.05, 0.2
UNITS = 9
PAPER = {"HIP-GP": (0.0192, 0.0198), "SVGP": (0.0192, 0.0206), "exact GP": (0.0192, 0.0198)}
SYSTEMS = {
    "HIP-GP": hg.Variational("full"),
    "batch engine": hg.Batch(tolerance=1e-6),
    "SVGP": hg.Variational("full", whitening="cholesky"),
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
            known = PAPER.get(system, ("", "")) if slopes else ("", "")
            table.add(
                system=system, slopes=slopes, **summary(paper, mean, std), paper_RMSE=known[0], paper_std=known[1]
            )  # fmt: skip
    count = 3 if size == "small" else 30
    average = result.table(f"Mean over {count} random functions", progress)
    problems = [simulate(seed) for seed in range(count)]
    for system in SYSTEMS:
        for slopes in (True, False):
            found = [summary(p, *predict(system, p, slopes)) for p in problems]
            average.add(
                system=system, slopes=slopes, **{k: float(np.mean([f[k] for f in found])) for k in found[0]}
            )
    result.figures.append(plots.save(picture(paper), folder / "derivatives.png"))
    return result


def summary(problem: Problem, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    error = mean - problem.truth
    inside = np.abs(error) <= 1.959964 * std
    return {
        "RMSE": float(np.sqrt(np.mean(error**2))),
        "std": float(np.mean(std)),
        "coverage": float(np.mean(inside)),
    }


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
    post = gp.condition(data, SYSTEMS[system], progress=False)
    if isinstance(SYSTEMS[system], hg.Batch):
        return post.predict(hg.Points(places), std="exact")[:2]
    return post.predict(hg.Points(places))[:2]


@plots.styled
def picture(problem: Problem) -> plots.Figure:
    """The data, and HIP-GP with and without the slopes."""
    fig, panels = plots.stacked(2, sharex=True)
    x = np.linspace(-1, 1, 400)
    order = np.argsort(problem.test[:, 0])
    for ax, slopes in zip(panels, (True, False), strict=True):
        mean, std = at("HIP-GP", problem, slopes, x[:, None])
        named = "with the slopes" if slopes else "without the slopes"
        plots.profile(
            x, mean, std, xlabel="x" if not slopes else "", ylabel="f(x)", title=f"HIP-GP {named}", ax=ax,
            points=(problem.x[:, 0], problem.y),
        )  # fmt: skip
        ax.plot(
            problem.test[order, 0], problem.truth[order], color=plots.ACCENT, lw=1, ls="--", label="truth"
        )
        if slopes:
            dx = 0.02
            value = np.interp(problem.slope_x[:, 0], x, mean)
            for place, level, rise in zip(problem.slope_x[:, 0], value, problem.slope, strict=True):
                ends = [level - dx * rise, level + dx * rise]
                drawn = ax.plot([place - dx, place + dx], ends, color=plots.INK, lw=2)
            drawn[0].set_label("measured slopes")
        ax.legend(fontsize=8, ncols=5, loc="upper left")
        ax.set_ylim(0.3, 1.35)
    return fig
