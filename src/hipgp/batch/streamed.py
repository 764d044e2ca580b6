"""The posterior of points that are read once, batch by batch, and not kept: the batch engine's solve in grid space.

What the points tell of the grid is added up as they come (`weights/information.py`). The solve and its certificate need no more,
nor do draws: with u a draw of the prior and g one of N(0, G), G = W'N^-1 W, the field u - R Λ^-1 R'(G u + g) is one of the
posterior's deviation from its mean. Residual variances count as independent noise.
"""

import time
from collections.abc import Iterator
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.batch.grid_space import GridSystem, preconditioner_of_points
from hipgp.batch.simulation import warn_if_far
from hipgp.batch.systems import draws_at_once, solve
from hipgp.engines import Estimate, FittedPosterior, Method, as_key
from hipgp.model.arguments import check_whole
from hipgp.model.functional import Functional
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.packing import check_shapes
from hipgp.model.problem import Problem
from hipgp.model.stream import Stream
from hipgp.model.trend import Trend
from hipgp.predictions import DEFAULT_STD, Prediction, SampleOptions, StdOptions
from hipgp.runtime.arrays import on_device
from hipgp.runtime.lazy import Lazy
from hipgp.runtime.plain import Arrays, Json
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Progress, Report, silent
from hipgp.weights.information import (
    Information,
    accumulate,
    band_of,
    check_memory,
    draw_information,
    in_blocks,
    scattered,
)
from hipgp.weights.stencil_geometry import STENCIL, stencil_offsets
from hipgp.weights.stencils import local_weight_rows
from hipgp.weights.toeplitz import embed
from hipgp.weights.torus import WRAPPED, check_torus

VARIANCE_TOLERANCE = 1e-6  # nats of an exact variance's solve, over the functional's prior variance


class _StreamedSystem(GridSystem):
    """Λ = I + R' G R without the points; its data are what they tell of the grid, W'N^-1 y."""

    def from_data(self, z: Float[Array, "B M"]) -> Float[Array, "B n"]:
        return self.root_transpose(z)

    def alpha(self, z: Float[Array, "B M"], x: Float[Array, "B n"], field: Float[Array, "B M"]) -> Array:
        return z[:, :0]


@float64_available
def _system(kernel: Kernel, grid: Grid, p: int, gram: Float[Array, "M P P"]) -> _StreamedSystem:
    toeplitz = embed(kernel, grid, np.float64, WRAPPED).whole()
    band = band_of(grid, p, gram)
    row_sums = np.maximum(np.asarray(band.matmul(jnp.ones(grid.size))), 0.0)
    density, low = preconditioner_of_points(toeplitz, row_sums)
    return _StreamedSystem(
        toeplitz=toeplitz,
        weights=None,  # type: ignore[arg-type]
        noise=jnp.zeros(0),
        stencil=band,
        density=on_device(density, np.float64),
        low=low,
    )


class Streamed(Method):
    """Settings of a fit to points that are read once; `GP.condition(observe_from(...))` makes them of those of `Batch`."""

    name: ClassVar[str] = "streamed"
    tolerance: float = eqx.field(static=True, default=0.01)
    max_iterations: int = eqx.field(static=True, default=1000)
    stencil: int = eqx.field(static=True, default=STENCIL)

    def check_memory(self, problem: Problem) -> None:
        check_torus(problem.kernel, problem.grid, WRAPPED)
        check_memory(problem.grid, self.stencil)

    @float64_available
    def condition(
        self,
        problem: Problem,
        progress: bool = True,
        checkpoint: Any = None,
        known: Information | None = None,
    ) -> "StreamedPosterior":
        """The posterior of a problem whose data are a stream, after what is `known` from earlier ones."""
        kernel, grid, _, noise, _ = problem
        self.check_memory(problem)
        began = time.perf_counter()
        with Progress("reading", progress) as bar:
            found = self._read(problem, bar)
            if known is not None:
                found = Information(*(new + on_device(old) for new, old in zip(found, known, strict=True)))
            read = time.perf_counter() - began
            bar.describe("setting up")
            pulled = scattered(grid, self.stencil, found.pulled)
            system = _system(kernel, grid, self.stencil, found.gram)
            ready = time.perf_counter() - began
            bar.describe("solving")
            report = bar.nats(self.tolerance)
            solved = solve(system, pulled[None], self.tolerance, self.max_iterations, report)
        nats, (count, _, residual, _) = float(solved.kl_bound[0]), np.asarray(found.totals)
        warn_if_far(nats, self.tolerance, solved.steps)
        info = {
            "engine": "batch", "observations": int(count), "grid": grid.shape, "grid_points": grid.size,
            "torus": system.toeplitz.torus.shape, "clipped_mass": float(system.toeplitz.clipped_mass),
            "space": "grid", "residual": "noise", "residual_to_noise": float(residual / count),
            "weights": f"local, stencil {self.stencil}, added up as the points were read",
            "preconditioner": f"{system.preconditioner_size} and a circulant", "dtype": "float64",
            "iterations": solved.steps, "kl_nats": nats, "tolerance_nats": self.tolerance,
            "converged": nats <= self.tolerance, "reading_seconds": read, "setup_seconds": ready - read,
            "solve_seconds": time.perf_counter() - began - ready,
        }  # fmt: skip
        model = kernel, grid, noise, self, info, np.dtype(float)
        lazy = Lazy(lambda: system, system)
        return StreamedPosterior(*model, field=solved.field[0], lazy=lazy, **found._asdict())

    def _read(self, problem: Problem, bar: Progress) -> Information:
        stream: Any = problem.data
        began, state = time.perf_counter(), {"batch": 0}

        def blocks() -> Iterator[Any]:
            done = 0
            for batch in stream.read():
                yield from in_blocks((batch.x, batch.y, _variance(batch, problem, state["batch"])))
                done, state["batch"] = done + len(batch.y), state["batch"] + 1
                spent = time.perf_counter() - began
                left = "" if not stream.rows else f", {spent * max(stream.rows / done - 1, 0):.0f} s to go"
                of_all = f" of {stream.rows:,}" if stream.rows else ""
                bar.update(
                    f"{done:,}{of_all} observations{left}", done / stream.rows if stream.rows else None
                )

        def check(totals: Float[np.ndarray, " 4"]) -> None:
            if totals[3] > 0:
                raise ValueError(
                    f"batches: expected finite values, positive noise, and places within the grid from {problem.grid.lower} "
                    f"to {problem.grid.upper}, got {int(totals[3]):,} others up to batch {state['batch']}; use a larger grid, "
                    "or leave them out"
                )

        found = accumulate(problem.kernel, problem.grid, self.stencil, blocks(), check)
        if float(found.totals[0]) == 0:
            raise ValueError(
                "batches: expected observations, got none; if it is an iterator, it may be used up"
            )
        return found

    def unpack(
        self, kernel: Kernel, grid: Grid, noise: float | None, arrays: Arrays, model: Json
    ) -> "StreamedPosterior":
        size = len(stencil_offsets(grid, self.stencil)[0])
        shapes = {"gram": (grid.size, size, size), "pulled": (grid.size, size), "totals": (4,)}
        check_shapes(arrays, shapes | {"field": (grid.size,)})
        lazy = Lazy(lambda: _system(kernel, grid, self.stencil, on_device(arrays["gram"])))
        arguments = kernel, grid, noise, self, model["diagnostics"], np.dtype(float)
        held: dict[str, Any] = {name: arrays[name] for name in ("field", *shapes)}
        return StreamedPosterior(*arguments, lazy=lazy, **held)


def _variance(batch: Any, problem: Problem, number: int) -> Any:
    """The noise variances of a batch."""
    if np.ndim(batch.x) != 2 or batch.x.shape[1] != problem.grid.ndim:
        raise ValueError(
            f"batches: expected places in {problem.grid.ndim} dimensions like the grid, got {batch.x.shape[1]} as number {number}"
        )
    if batch.noise is not None:
        return batch.noise**2
    if problem.noise is None:
        raise ValueError(
            "noise: expected the noise of every observation, got none; give noise= to observe_from or to GP"
        )
    return np.full(len(batch.y), float(problem.noise) ** 2)


class StreamedPosterior(FittedPosterior):
    """The posterior given points that were not kept."""

    method: Streamed
    field: Float[Any, " M"]
    gram: Float[Any, "M P P"]  # this and what follows: the sums over the points
    pulled: Float[Any, "M P"]
    totals: Float[Any, " 4"]
    lazy: Lazy[_StreamedSystem] = eqx.field(static=True)

    def grid_mean(self) -> Float[np.ndarray, "..."]:
        return np.asarray(self.field).reshape(self.grid.shape)

    def grid_std(self, how: StdOptions = DEFAULT_STD) -> tuple[np.ndarray, np.ndarray | None]:
        if how.method not in ("auto", "samples"):
            raise ValueError(
                f'std: expected "auto" or "samples" on a grid of a fit to a stream, got {how.method!r}; exact ones at some '
                'places come from predict(places, "exact")'
            )
        std, error = self._sampled(lambda field: field, how)
        return std.reshape(self.grid.shape), error.reshape(self.grid.shape)

    def predict(self, functional: Functional, how: StdOptions = DEFAULT_STD) -> Prediction:
        rows = self._rows(functional)
        mean, residual = rows.matrix @ np.asarray(self.field), np.asarray(rows.residual)
        method = how.method
        if method == "auto":
            method = "exact" if len(functional) <= how.samples else "samples"
        if method == "exact":
            return Prediction(mean, np.sqrt(self._exact(rows.matrix, how.report) + residual))
        if method != "samples":
            raise ValueError(
                f'std: expected "auto", "samples" or "exact" of a fit to a stream, which has no observations near a '
                f"place, got {method!r}"
            )
        std, error = self._sampled(lambda field: (rows.matrix @ field.T).T, how)
        total = np.sqrt(std**2 + residual)
        return Prediction(mean, total, error * std / total)

    def mean(self, functional: Functional) -> Float[np.ndarray, " T"]:
        """The mean of functionals, without standard deviations."""
        return self._rows(functional).matrix @ np.asarray(self.field)

    def sample(self, how: SampleOptions, functional: Functional | None = None) -> np.ndarray:
        drawn = np.concatenate(list(self._deviations(how.count, how.key, how.report))) + np.asarray(
            self.field
        )
        if functional is None:
            return drawn.reshape(how.count, *self.grid.shape)
        rows = self._rows(functional)
        white = np.asarray(
            jax.random.normal(jax.random.fold_in(how.key, 2**30), (how.count, len(functional)))
        )
        return (rows.matrix @ drawn.T).T + np.sqrt(rows.residual) * white

    @float64_available
    def _rows(self, functional: Functional) -> Any:
        self.method.check(self.kernel, self.grid, functional)  # nothing is known beyond the grid
        return local_weight_rows(self.kernel, self.grid, [functional], self.method.stencil)

    @float64_available
    def _deviations(self, count: int, key: Any, report: Report = silent) -> Iterator[np.ndarray]:
        """Yield draws on the grid less the mean, some at a time."""
        system, p = self.lazy.get(), self.method.stencil
        for begin in range(0, count, size := draws_at_once(system)):
            part = jax.random.split(jax.random.fold_in(as_key(key), begin))
            yield self._some(system, p, part, min(size, count - begin))
            report(min(begin + size, count), count)

    @float64_available
    def _some(self, system: _StreamedSystem, p: int, keys: Array, count: int) -> np.ndarray:
        prior = system.toeplitz.flat_draw(keys[0], count)
        information = system.information(prior) + draw_information(
            self.grid, p, on_device(self.gram), keys[1], count
        )
        solved = solve(system, -information, self.method.tolerance, self.method.max_iterations)
        warn_if_far(float(np.max(solved.kl_bound)), self.method.tolerance, solved.steps)
        return np.asarray(prior + solved.field)

    def _sampled(self, of: Any, how: StdOptions) -> tuple[np.ndarray, np.ndarray]:
        """Standard deviations from draws, and their Monte Carlo errors."""
        check_whole("samples", how.samples, 2)
        squares = [
            np.sum(of(part) ** 2, axis=0) for part in self._deviations(how.samples, how.key, how.report)
        ]
        std = np.sqrt(np.sum(squares, axis=0) / how.samples)  # the mean is known
        return std, std / np.sqrt(2 * how.samples)

    @float64_available
    def _exact(self, matrix: Any, report: Report) -> Float[np.ndarray, " T"]:
        """w'R Λ^-1 R'w for each row w of a matrix, by solves."""
        system, found = self.lazy.get(), []
        for begin in range(0, matrix.shape[0], size := draws_at_once(system)):
            w = jnp.asarray(matrix[begin : begin + size].toarray())
            prior = jnp.sum(system.root_transpose(w) ** 2, axis=1)
            target = VARIANCE_TOLERANCE * np.asarray(prior)
            solved = solve(system, w, target, self.method.max_iterations)
            found.append(np.asarray(jnp.sum(w * solved.field, axis=1)))
            report(min(begin + size, matrix.shape[0]), matrix.shape[0])
        return np.maximum(np.concatenate(found), 0.0)

    def log_evidence(self, probes: int, key: Any) -> Estimate:
        raise ValueError(
            self._refusal("the log evidence", "Batch() with observations in memory, made by observe(...)")
        )

    def pack(self) -> tuple[Arrays, Json]:
        return {name: np.asarray(getattr(self, name)) for name in ("field", *Information._fields)}, {}

    def with_more(self, stream: Any, progress: bool = True) -> "StreamedPosterior":
        problem: Any = Problem(self.kernel, self.grid, stream, self.noise, Trend(None))  # type: ignore[arg-type]
        known = Information(self.gram, self.pulled, self.totals)
        return self.method.condition(problem, progress, known=known)


def condition_on_stream(problem: Problem, link: Any, method: Any, progress: bool) -> StreamedPosterior:
    """The posterior given a stream, with the settings of a `Batch`, or those by default for None."""
    stream: Stream = problem.data  # type: ignore[assignment]
    asked = "observe_from(...)"
    if problem.grid is None:
        raise ValueError(
            f"grid: expected one with {asked}, whose extent is not known beforehand, got None; use GP(kernel, grid)"
        )
    if not link.identity or problem.trend.kind is not None:
        raise ValueError(
            f"link, trend: expected none with {asked}, got one; use observe(...) for a part of the data"
        )
    problem.kernel.check_dimension(problem.grid.ndim)
    settings = {}
    if method is not None and getattr(method, "name", "") != "batch" and method != "auto":
        raise ValueError(
            f"method: expected Batch(...) or None with {asked}, got {type(method).__name__}; leave it out"
        )
    if method not in (None, "auto"):
        if method.space == "data" or method.weights != "local":
            raise ValueError(
                f'method: expected Batch(space="auto", weights="local") with {asked}, got {method!r}'
            )
        stencil = STENCIL if method.stencil is None else method.stencil
        settings = {
            "tolerance": method.tolerance,
            "max_iterations": method.max_iterations,
            "stencil": stencil,
        }
    assert isinstance(stream, Stream)
    return Streamed(**settings).condition(problem, progress)
