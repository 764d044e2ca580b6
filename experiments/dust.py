"""What the dust experiments have in common: stars around the Sun, the systems, and how they are scored."""

import functools
import gc
import time
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np

import hipgp as hg
from hipgp.apps.simulate import interpolate
from hipgp.linalg.preconditioner import Preconditioner
from hipgp.model.labels import Labels
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend
from hipgp.runtime.precision import float64_available
from hipgp.variational.data_space import Held, data_preconditioner
from hipgp.variational.minibatch_weights import (
    SolveSummary,
    StoredWeights,
    are_stored,
    exact_source,
    stored_exact,
)
from hipgp.variational.whitening import Whitening, whiten
from hipgp.weights.covariance import prior_variances

from . import baselines, systems
from .outcome import NOT_POSSIBLE, NOT_RUN, on_gpu, scores

SUN = np.zeros(3)
BLOCK = (2, 2, 2)
LABELS = Labels.of(3, ("X", "Y", "Z"), "kpc", "dust density", "")
ON_TWO_CORES = 2e7  # stars x grid points that exact weights take in minutes without a GPU
MOST_EXACT = 50_000  # stars with a solve for each one's weights
SAMPLES = 32
MANY, MANY_AT_ONCE = 2000, 250  # stars from which mini-batches are larger, and of how many
STEPS = 50.0  # step times mini-batches of natural gradients, as docs/paper_engine.md recommends
HELD_EPOCHS = 10  # where the weights of very many stars are held, unless a row says otherwise
LIMITS = (
    20,
    50,
)  # PCG iterations in training and prediction where every star has a solve of its own in every epoch
HELD_LIMITS = (5, 8)  # where weights are held, and PCG begins at local ones of STENCIL points an axis
STENCIL = 4
COARSE, AT_ONCE = 16, 20_000  # nodes of a line for its variance alone, and lines at once
LEARNING_LIMITS = (
    40,
    40,
)  # where kernel and q are learned together: the solves of the gradient begin at zero
EPOCHS = {
    "best": 10, "natural gradients": 40, "natural gradients, kernel learned": 4, "dual ascent": 10
}  # fmt: skip


class Way(NamedTuple):
    """How HIP-GP or SVGP is fitted, in the words of the tables."""

    fit: systems.Fit = "best"
    family: str = "block"
    rule: str = "gauss"  # of the covariances of line integrals
    epochs: int | None = None  # None: as EPOCHS and HELD_EPOCHS have it

    @property
    def low_precision(self) -> bool:
        """Whether the row is one of very many stars, or of some of them: in float32, with PCG beginning at local weights."""
        return self.epochs is not None

    @property
    def covariances(self) -> str:
        return {"gauss": "Gauss-Legendre", "monte-carlo": "Monte Carlo"}[self.rule]


BEST = Way()


class Stars(NamedTuple):
    """Measured extinctions with their errors; true ones of stars held out; true densities at some places."""

    ends: np.ndarray
    measured: np.ndarray
    noise: np.ndarray
    held_out: np.ndarray
    truth: np.ndarray
    places: np.ndarray
    density: np.ndarray
    to_scale: bool  # whether the densities are in the unit of the extinctions per length

    def few(self, count: int) -> "Stars":
        """The first `count` of the stars seen, and all others."""
        return self._replace(ends=self.ends[:count], measured=self.measured[:count], noise=self.noise[:count])

    def observed(self, rule: Any, dtype: Any) -> Any:
        """The extinctions as integrals by this rule of quadrature, in this precision."""
        ends, measured, noise = (a.astype(dtype) for a in (self.ends, self.measured, self.noise))
        return hg.observe(hg.LineIntegrals(SUN.astype(dtype), ends, rule=rule), measured, noise)


def learned(kernel: Any, grid: hg.Grid, stars: Stars, count: int, progress: bool, hold: bool = False) -> Any:
    """The kernel from the first `count` stars: plenty for a few numbers, and learning from rays is dear.

    With `hold` the lengthscale stays as it is, and only the variance is learned.
    """
    few = hg.observe(hg.LineIntegrals(SUN, stars.ends[:count]), stars.measured[:count], stars.noise[:count])
    polish = None if count >= 1000 else False  # in small: compiling it takes longer than all else
    if not hold:
        return hg.GP(kernel, grid).learn(few, polish=polish, progress=progress).kernel
    length = float(kernel.lengthscale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the lengthscale ends at a bound, as it must
        bounds = {"lengthscale": (length, 1.001 * length)}
        gp = hg.GP(kernel, grid)
        return gp.learn(few, start="kernel", bounds=bounds, polish=polish, progress=progress).kernel


class HeldWeights:
    """The exact weights of the stars seen and of those held out, found once for many fits with one kernel, grid and rule.

    With them are kept a preconditioner of the optimal mean, found before the weights fill the memory, and that mean, once a
    fit in closed form has found it.
    """

    key: Any
    seen: Held | None
    held_out: StoredWeights | None
    facts: dict[str, Any]

    def __init__(self) -> None:
        self.release()

    def release(self) -> None:
        """Drop the weights, and what of earlier posteriors still refers to them."""
        self.key, self.seen, self.held_out, self.facts = None, None, None, {}
        gc.collect()

    @staticmethod
    def serve(system: str, way: Way, stars: Stars, grid: hg.Grid) -> bool:
        """Tell whether HIP-GP's weights are to be held: of very many stars with a fixed kernel, where they fit into memory."""
        many = system == "HIP-GP" and not way.fit.endswith("learned") and len(stars.ends) > MOST_EXACT
        return many and are_stored(len(stars.ends) + len(stars.held_out), grid.size, np.float32)

    def fitted(
        self, method: hg.Variational, kernel: Any, grid: hg.Grid, stars: Stars, rule: Any
    ) -> tuple[hg.Posterior, hg.Prediction, dict[str, Any]]:
        """The posterior, the extinctions of the stars held out, and the seconds of the fit and of the weights."""
        problem = Problem(kernel, grid, stars.observed(rule, np.float32), None, Trend(None))
        self._find(method, problem, stars, rule)
        began = time.perf_counter()
        found = method.fit(problem, False, held=self.seen)
        told = {"fit_seconds": time.perf_counter() - began, **self.facts}
        if found.diagnostics["direct"] and found.diagnostics["mean_gap_nats"] < 1 and self.seen is not None:
            self.seen = self.seen._replace(best_mean=found.q.mean)
        lines = hg.LineIntegrals(SUN, stars.held_out, rule=rule)
        return hg.Posterior(found), found.predict(lines, weights=self.held_out), told

    @float64_available
    def _find(self, method: hg.Variational, problem: Problem, stars: Stars, rule: Any) -> None:
        """Find the weights, unless they are those found last."""
        kernel, grid = problem.kernel, problem.grid
        limits = method.max_iterations, method.predict_max_iterations
        key = (float(kernel.variance), float(kernel.lengthscale), grid.shape, rule, limits, len(stars.ends))
        if key == self.key:
            return
        self.release()
        began = time.perf_counter()
        preconditioner = preconditioner_of(problem, stars, rule)
        jax.block_until_ready(preconditioner)
        self.facts = {"preconditioner_seconds": time.perf_counter() - began}
        whitening = whiten(kernel, grid, method.whitening)
        find = functools.partial(self._weights, kernel, whitening, grid, method, rule)
        seen, solves = find("seen", stars.ends, limits[0])
        self.held_out, _ = find("held_out", stars.held_out, limits[1])
        self.key, self.seen = key, Held(seen, solves, preconditioner)

    def _weights(
        self, kernel: Any, whitening: Whitening, grid: hg.Grid, method: Any, rule: Any, name: str, ends: Any, limit: int
    ) -> tuple[StoredWeights, SolveSummary]:  # fmt: skip
        began = time.perf_counter()
        lines = hg.LineIntegrals(SUN.astype(np.float32), ends.astype(np.float32), rule=rule)
        source = exact_source(
            kernel, grid, [lines], method.tolerance, limit, np.float32, method.first_stencil
        )
        found, solves = stored_exact(
            source, kernel, whitening, (len(ends),), -(-len(ends) // method.batch_size)
        )
        seconds = time.perf_counter() - began
        self.facts |= {f"weights_seconds_{name}": seconds, f"PCG_error_{name}": float(solves.error)}
        return found, solves


def preconditioner_of(problem: Problem, stars: Stars, rule: str) -> Preconditioner:
    """The Vecchia factor of the optimal mean's system.

    That of integrals by random nodes is the factor of the integrals themselves, with the variance of the random errors, which
    are independent from star to star, added to the noise: (l^2 s^2 - k**) / Q for Q nodes on a line of length l.
    """
    if rule != "monte-carlo":
        return data_preconditioner(problem, np.float32)
    length = np.linalg.norm(stars.ends - SUN, axis=1)
    longest = hg.LineIntegrals(SUN, stars.ends[[np.argmax(length)]], rule="monte-carlo")
    nodes = longest.nodes(problem.grid.spacing).rule_size
    lines = hg.LineIntegrals(SUN, stars.ends, nodes_per_ray=COARSE).nodes(problem.grid.spacing)
    kernel, variance = problem.kernel, []
    for part in np.array_split(np.arange(len(stars.ends)), -(-len(stars.ends) // AT_ONCE)):
        variance.append(np.asarray(prior_variances(kernel, lines[part])))
    added = (length**2 * float(kernel.variance) - np.concatenate(variance)) / nodes
    whole = problem._replace(data=stars.observed("gauss", np.float32))
    return data_preconditioner(whole, np.float32, np.maximum(added, 0.0))


def fitted(
    system: str,
    kernel: Any,
    grid: hg.Grid,
    stars: Stars,
    way: Way = BEST,
    checkpoint: Any = None,
    held: HeldWeights | None = None,
) -> tuple[dict[str, Any], hg.Posterior | None]:
    """Scores and seconds with the posterior, or why there are none. Mini-batch fits go on from `checkpoint`.

    With `held` HIP-GP has the exact weights found there, so that PCG runs once for all rows of a table.
    """
    if not systems.fits_memory(system, grid):
        return nothing(NOT_POSSIBLE), None
    if system != "batch engine" and len(stars.ends) * grid.size > ON_TWO_CORES and not on_gpu():
        return nothing(NOT_RUN), None
    if held is not None and HeldWeights.serve(system, way, stars, grid):
        method = method_of(system, len(stars.ends), way, held=True)
        post, (mean, std, _), facts = held.fitted(method, kernel, grid, stars, way.rule)
    else:
        if held is not None:
            held.release()  # the memory is needed
        method = method_of(system, len(stars.ends), way)
        post, (mean, std, _), facts = conditioned(method, kernel, grid, stars, way, checkpoint)
    latent = interpolate(grid.axes, post.mean, stars.places)
    told = {"fitted_by": systems.fitted_by(post), **labels(method, way)}
    told |= {"epochs": post.diagnostics.get("epochs") or "", "steps": steps_of(post)}
    told |= {**scored(stars, mean, std, latent), **facts}
    return told | {"nats_short_in_the_mean": post.diagnostics.get("mean_gap_nats", "")}, post


def conditioned(
    method: Any, kernel: Any, grid: hg.Grid, stars: Stars, way: Way, checkpoint: Any
) -> tuple[hg.Posterior, hg.Prediction, dict[str, Any]]:
    """The posterior, the extinctions of the stars held out, and the seconds."""
    streamed = way.fit != "best" and len(stars.ends) > MOST_EXACT  # a solve for each star in each epoch
    dtype = np.float32 if streamed or way.low_precision else np.float64
    data, began = stars.observed(way.rule, dtype), time.perf_counter()
    kept = {"checkpoint": checkpoint} if streamed else {}
    post = systems.conditioned(method, hg.GP(kernel, grid), data, **kept)
    seconds = post.diagnostics["seconds"] if streamed else time.perf_counter() - began
    drawn: Any = {"samples": SAMPLES} if isinstance(method, hg.Batch) else {}
    rule: Any = way.rule
    found = post.predict(hg.LineIntegrals(SUN, stars.held_out, rule=rule), **drawn)
    return post, found, {"fit_seconds": seconds}


def steps_of(post: hg.Posterior) -> Any:
    """The steps of conjugate gradients that the mean took, where one solve found it."""
    facts = post.diagnostics
    return facts.get("iterations") or facts.get("mean_iterations") or ""


def labels(method: Any, way: Way) -> dict[str, Any]:
    """What else tells rows of one system apart."""
    if isinstance(method, hg.Batch):
        return {"family": "", "weights": "", "covariances": way.covariances}
    limit = f"{method.weights}, {method.max_iterations} iterations" if method.weights == "exact" else "local"
    if method.start == "local":
        limit += f" from local ones of {method.stencil} points an axis"
    return {"family": method.family, "weights": limit, "covariances": way.covariances}


def method_of(system: str, count: int, way: Way = BEST, held: bool = False) -> Any:
    """The paper's settings: blocks of 2 x 2 x 2 (or none), PCG limited to 200 and 500 iterations.

    In closed form, unless another fit is asked for; of very many stars with local weights. By mini-batches every star has
    its exact weights; of very many, with PCG limited to LIMITS, for as many epochs as natural gradients need.
    With `held` weights all fits have them, and PCG begins at local weights.
    """
    if system == "batch engine":
        return hg.Batch()
    how: dict[str, Any] = {"direct": True} if way.fit == "best" else {}
    local = way.fit == "best" and count > MOST_EXACT and not held
    limits = LIMITS if count > MOST_EXACT and not local else (200, 500)
    if near := held or way.low_precision:
        limits = LEARNING_LIMITS if way.fit.endswith("learned") else HELD_LIMITS
    batch = 100 if count < MANY else MANY_AT_ONCE
    epochs = way.epochs or (HELD_EPOCHS if held else EPOCHS[way.fit])
    if way.epochs is None and count >= MANY and way.fit.startswith("natural") and not held:
        epochs = int(np.ceil(STEPS / systems.STEP / np.ceil(count / batch)))
    return systems.variational(
        system, way.fit, family=way.family, block_shape=BLOCK, batch_size=batch, epochs=epochs,
        weights="local" if local else "exact", stencil=STENCIL if near else 2, start="local" if near else "zero",
        max_iterations=limits[0],
        predict_max_iterations=limits[1], **how,
    )  # fmt: skip


def dense(name: str, kernel: Any, stars: Stars, inducing: int) -> dict[str, Any]:
    """The exact GP, or SGPR with random inducing points in the box that the stars fill."""
    theirs = baselines.Kernel("matern32", float(kernel.variance), float(kernel.lengthscale))
    targets = [baselines.line_integrals(SUN, stars.held_out), baselines.points(stars.places)]
    given = [baselines.line_integrals(SUN, stars.ends)], stars.measured, stars.noise, targets
    began = time.perf_counter()
    if name == "exact GP":
        mean, std = baselines.exact_gp(theirs, *given)
    else:
        low, high = stars.ends.min(0), stars.ends.max(0)
        where = np.random.default_rng(1).uniform(low, high, (inducing, 3))
        mean, std = baselines.sgpr(theirs, where, *given)
    count = len(stars.held_out)
    row = scored(stars, mean[:count], std[:count], mean[count:])
    return row | {"fit_seconds": time.perf_counter() - began}


def scored(stars: Stars, mean: np.ndarray, std: np.ndarray, latent: np.ndarray) -> dict[str, Any]:
    found = scores(stars.truth, mean, std)
    keep = {k: found[k] for k in ("MAE", "MSE", "log_likelihood", "coverage_of_95%")}
    off = float(np.sqrt(np.mean((latent - stars.density) ** 2))) if stars.to_scale else ""
    return keep | {
        "density_RMSE": off,
        "density_correlation": float(np.corrcoef(latent, stars.density)[0, 1]),
    }


def nothing(why: str) -> dict[str, Any]:
    names = (
        "fitted_by",
        "family",
        "weights",
        "covariances",
        "MAE",
        "MSE",
        "log_likelihood",
        "coverage_of_95%",
        "density_RMSE",
        "density_correlation",
        "fit_seconds",
    )
    return dict.fromkeys(names, why) | dict.fromkeys(names[:4], "")


def shape_of(grid: hg.Grid) -> str:
    return " x ".join(str(n) for n in grid.shape)
