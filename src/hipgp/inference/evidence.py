"""The collapsed bound: how probable the data are under the model, from the same system as the posterior; its gradient.

    log p(y) = -(y' A^-1 y + log|A| + N log 2 pi) / 2, less sum v_n / (2 s_n^2) where the residual is only in the bound.

log|A| = log|P| + tr log(S A S') with P^-1 = S'S the preconditioner, whose own determinant is known; the rest is small,
and estimated by stochastic Lanczos quadrature with its Monte Carlo error. The same steps give (S A S')^-1 e for each
probe e, and with h = S'e, g = S' (S A S')^-1 e the gradient's trace, tr(A^-1 dA) = E g' dA h; its fit is
-alpha' dA alpha. So all of the gradient is that of a few forms a' A b in the kernel's parameters: through the torus'
eigenvalues, through W, and through the residual variances.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.data import Data
from hipgp.functionals import Nodes
from hipgp.grid import Grid
from hipgp.inference.batch import Batch, BatchPosterior
from hipgp.inference.parameters import Layout
from hipgp.inference.systems import DataSystem, GridSystem, System
from hipgp.kernels import Kernel
from hipgp.precision import float64_available
from hipgp.solvers import Probed, probe, quadratic_form
from hipgp.sparse import Blocks
from hipgp.toeplitz import on_torus
from hipgp.trend import Trend
from hipgp.weights import nodes_at_once, place, stencil_steps, stencil_weights

STEPS = 100  # of Lanczos, at most
TOLERANCE = 1e-3  # of the probes' solves
LOG_2PI = float(np.log(2 * np.pi))


class Estimate(NamedTuple):
    """A value and its Monte Carlo standard error."""

    value: float
    error: float


class Slope(NamedTuple):
    """log p(y), and its gradient in a layout's vector."""

    evidence: Estimate
    gradient: Float[np.ndarray, " p"]


class Forms(NamedTuple):
    """sum over i of weight_i a_i' A b_i."""

    a: Float[Array, "F N"]
    b: Float[Array, "F N"]
    weight: Float[Array, " F"]


@float64_available
def log_evidence(post: BatchPosterior, probes: int, key: Array) -> Estimate:
    """The log-probability of the data, the trend's coefficients at their best."""
    if probes < 2:
        raise ValueError(f"probes: expected at least 2 to tell an error from, got {probes}")
    return _evidence(post, _logarithms(post.system, _signs(post.system, probes, key))[0])


@float64_available
def log_evidence_slope(
    vector: Float[np.ndarray, " p"],
    layout: Layout,
    grid: Grid,
    data: Data,
    trend: Trend,
    noise: float | None,
    probes: int,
    key: Array,
) -> Slope:
    """The collapsed bound at a layout's vector, with its gradient; `noise` where the layout has none of its own."""
    kernel, found = layout.unpack(jnp.asarray(vector))
    kernel = jax.tree.map(np.asarray, kernel)
    post = Batch(space="data").fit(
        kernel, grid, data, noise if found is None else float(found), trend, progress=False
    )
    signs = _signs(post.system, probes, key)
    return _slope(vector, layout, post, signs)


@float64_available
def _slope(
    vector: Any,
    layout: Layout,
    post: BatchPosterior,
    signs: Float[Array, "B n"],
    tolerance: float = TOLERANCE,
) -> Slope:
    system = post.system
    assert isinstance(system, DataSystem)
    logs, probed = _logarithms(system, signs, tolerance)
    forms = _forms(system, post.alpha, signs, probed.value)
    of_kernel = _kernel_gradient(post, system, forms)
    diagonal = forms.weight @ (forms.a * forms.b)

    def total(v: Array) -> Array:
        kernel, noise = layout.unpack(v)
        pull = jax.tree.map(lambda g, leaf: jnp.sum(g * leaf), of_kernel, kernel)
        unknown = jnp.asarray(~post.data.noise_known)
        extra = 0.0 if noise is None else noise**2 * jnp.sum(jnp.where(unknown, diagonal, 0.0))
        return sum(jax.tree.leaves(pull)) + extra

    return Slope(_evidence(post, logs), -0.5 * np.asarray(jax.grad(total)(jnp.asarray(vector))))


def _evidence(post: BatchPosterior, logs: Float[np.ndarray, " B"]) -> Estimate:
    system, count = post.system, len(post.data)
    rest = np.asarray(post.data.y, float) - post.trend.of_data(post.data, post.grid) @ post.beta
    fit = float(rest @ np.asarray(post.alpha, float))
    value = -0.5 * (fit + _known(system) + logs.mean() + count * LOG_2PI)
    if post.method.residual == "bound":
        value -= 0.5 * float(jnp.sum(system.weights.residual / system.noise))  # type: ignore[attr-defined]
    return Estimate(value, 0.5 * float(logs.std(ddof=1)) / np.sqrt(len(logs)))


def _known(system: System) -> float:
    """The part of log|A| that is known."""
    vecchia = getattr(system, "vecchia", None)
    return float(jnp.sum(jnp.log(system.noise)) if vecchia is None else vecchia.log_determinant)  # type: ignore[attr-defined]


def _signs(system: System, probes: int, key: Array) -> Float[Array, "B n"]:
    """Random signs for every row of S that is real; in grid space, for every point of the torus."""
    if isinstance(system, GridSystem):
        rows = jnp.ones(system.toeplitz.torus.size)
    else:
        assert isinstance(system, DataSystem)
        rows = jnp.ones_like(system.noise)
        if system.vecchia is not None and isinstance(system.vecchia.factor, Blocks):
            rows = jnp.any(system.vecchia.factor.values != 0, axis=2).ravel().astype(rows.dtype)
    return jax.random.rademacher(key, (probes, len(rows)), rows.dtype) * rows


def _logarithms(
    system: System, signs: Float[Array, "B n"], tolerance: float = TOLERANCE
) -> tuple[Float[np.ndarray, " B"], Probed]:
    """Each probe's estimate of the part of log|A| that is not known."""
    logs, probed = _quadrature(system, signs, jnp.asarray(tolerance))
    return np.asarray(logs, float), probed


@eqx.filter_jit
def _quadrature(
    system: System, signs: Float[Array, "B n"], tolerance: Array
) -> tuple[Float[Array, " B"], Probed]:
    probed = probe(lambda v: _whitened(system, v), signs, STEPS, tolerance)
    return quadratic_form(probed.coefficients, signs, jnp.log), probed


def _whitened(system: System, v: Float[Array, "B n"]) -> Float[Array, "B n"]:
    """S A S' v; in grid space L v, whose determinant is that of N^-1 A."""
    if isinstance(system, GridSystem):
        return system.matmul(v)
    assert isinstance(system, DataSystem)
    return _root(system, system.matmul(_root_transpose(system, v)))


def _root(system: DataSystem, v: Float[Array, "B N"]) -> Float[Array, "B n"]:
    return v / jnp.sqrt(system.noise) if system.vecchia is None else system.vecchia.factor.matmul(v)


def _root_transpose(system: DataSystem, v: Float[Array, "B n"]) -> Float[Array, "B N"]:
    return v / jnp.sqrt(system.noise) if system.vecchia is None else system.vecchia.factor.transpose_matmul(v)


@eqx.filter_jit
def _forms(
    system: DataSystem, alpha: Float[Array, " N"], signs: Float[Array, "B n"], solved: Float[Array, "B n"]
) -> Forms:
    """Whose gradient is twice that of -log p."""
    g, h = _root_transpose(system, solved), _root_transpose(system, signs)
    weight = jnp.concatenate([-jnp.ones(1), jnp.full(len(signs), 1 / len(signs))])
    return Forms(jnp.concatenate([alpha[None], g]), jnp.concatenate([alpha[None], h]), weight)


# --- the gradient of a form in the kernel -----------------------------------------------------------------------------


def _kernel_gradient(post: BatchPosterior, system: DataSystem, forms: Forms) -> Kernel:
    """Of the forms, at the posterior's own kernel: through K, W and the residual variances."""
    kernel = jax.tree.map(jnp.asarray, post.kernel)
    total, fields = _through_grid(kernel, system, forms)
    residual = np.asarray(system.weights.residual, float)
    diagonal = np.asarray(forms.weight @ (forms.a * forms.b), float)
    a, b = (np.asarray(v, float) for v in (forms.a, forms.b))
    begin, p = 0, post.method.points_per_axis(post.data)
    for block in post.data.blocks:
        for rows, part in block.functional.pieces(post.grid.spacing, nodes_at_once()):
            own = begin + rows
            sizes = residual[own], diagonal[own], a[:, own], b[:, own]
            piece = _through_weights(kernel, post.grid, p, part, *sizes, forms.weight, *fields)
            total = jax.tree.map(jnp.add, total, piece)
        begin += len(block.y)
    return total


@eqx.filter_jit
def _through_grid(kernel: Kernel, system: DataSystem, forms: Forms) -> tuple[Kernel, tuple[Array, Array]]:
    """The part through K with W held, and K W' of both sides for the part through W."""
    toeplitz = system.toeplitz
    down = lambda v: system.weights.transpose_matmul(v).reshape(-1, *toeplitz.shape)
    spectrum = jnp.zeros_like(toeplitz.eigenvalues)
    axes = tuple(range(-len(toeplitz.shape), 0))

    def one(total: Array, form: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        a, b, weight = form
        modes = [jnp.fft.rfftn(down(v[None]), s=toeplitz.torus.shape, axes=axes)[0] for v in (a, b)]
        fields = [
            jnp.fft.irfftn(toeplitz.eigenvalues * m, s=toeplitz.torus.shape)[
                tuple(slice(0, n) for n in toeplitz.shape)
            ].ravel()
            for m in modes
        ]
        return total + weight * (jnp.conj(modes[0]) * modes[1]).real, (fields[0], fields[1])

    spectrum, fields = jax.lax.scan(one, spectrum, (forms.a, forms.b, forms.weight))
    last = toeplitz.torus.shape[-1]
    twice = jnp.full(spectrum.shape[-1], 2.0).at[0].set(1.0)
    if last % 2 == 0:
        twice = twice.at[-1].set(1.0)
    pull = spectrum * twice / toeplitz.torus.size
    value = lambda k: jnp.sum(pull * on_torus(k, toeplitz.torus).eigenvalues)
    return jax.grad(value)(kernel), fields


def _through_weights(
    kernel: Kernel,
    grid: Grid,
    p: int,
    part: Nodes,
    residual: np.ndarray,
    diagonal: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    weight: Array,
    field_a: Array,
    field_b: Array,
) -> Kernel:
    """The part through W and the residual variances of some functionals, the grid's fields held."""
    count, per = part.x.shape[:2]
    first, offset = place(grid, np.asarray(part.x, float).reshape(-1, grid.ndim), p)
    start = np.asarray(np.ravel_multi_index(tuple(first.T), grid.shape)).reshape(count, per)
    full = 1 << (count - 1).bit_length()  # few shapes: few compilations
    pad = lambda v, axis=0: np.pad(
        v, [(0, full - count if i == axis else 0) for i in range(np.ndim(v))], mode="edge"
    )
    zero = lambda v, axis=0: np.pad(v, [(0, full - count if i == axis else 0) for i in range(np.ndim(v))])
    spread = lambda v: None if v is None else np.repeat(pad(np.asarray(v, float)), per, axis=0)
    nodes = (
        pad(offset.reshape(count, per, -1)).reshape(full * per, -1),
        spread(part.value),
        spread(part.direction),
    )
    share = zero(np.asarray(part.weights, float))
    return _weights_gradient(
        kernel,
        grid,
        p,
        nodes,
        share,
        pad(start),
        pad(residual),
        zero(diagonal),
        zero(a, 1),
        zero(b, 1),
        weight,
        field_a,
        field_b,
    )


@eqx.filter_jit
def _weights_gradient(
    kernel: Kernel,
    grid: Grid,
    p: int,
    nodes: tuple[Any, Any, Any],
    share: Array,
    start: Array,
    residual: Array,
    diagonal: Array,
    a: Array,
    b: Array,
    weight: Array,
    field_a: Array,
    field_b: Array,
) -> Kernel:
    places = jnp.asarray(start)[..., None] + jnp.asarray(stencil_steps(grid, p)[1])

    def add(total: Array, form: tuple[Array, ...]) -> tuple[Array, None]:
        one_a, one_b, one_weight, fa, fb = form
        seen = one_a[:, None, None] * fb[places] + one_b[:, None, None] * fa[places]
        return total + one_weight * seen, None

    begin = jnp.zeros(places.shape)
    seen = jax.lax.scan(add, begin, (a, b, weight, field_a, field_b))[0]  # what each weight is multiplied by
    pull = (jnp.asarray(share)[..., None] * seen).reshape(-1, seen.shape[-1])

    def value(k: Kernel) -> Array:
        w, v = stencil_weights(k, grid, p, *nodes)
        alone = jnp.sum(v.reshape(share.shape) * jnp.asarray(share) ** 2, axis=1)
        # v of a sum of nodes is `alone` times what their correlation makes of it, and that is held
        now = jax.lax.stop_gradient(alone)
        ratio = jnp.where(now > 0, residual / jnp.where(now > 0, now, 1.0), 0.0)
        return jnp.sum(pull * w) + jnp.sum(diagonal * ratio * alone)

    return jax.grad(value)(kernel)
