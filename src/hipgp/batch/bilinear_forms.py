"""Derivatives of bilinear forms a' A b, A = W K W' + N, in the kernel's parameters, for the gradient of the evidence.

With the fields u_a = K W'a and u_b = K W'b held fixed, d(a' A b) = (W'a)' dK (W'b) + a' dW u_b + b' dW u_a +
sum a_n b_n dv_n (or other multiples of dv_n, if residual variances are not part of N). The first term is differentiated
through the torus' eigenvalues, the others by node, in chunks, through the stencils' weights. Where residuals are joint,
a' dV b takes the place of the last term, block by block. No entry of A is formed, and only fields on the grid are stored.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hipgp.model.differences import differences
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.runtime.buckets import round_up_to_power_of_two
from hipgp.runtime.programs import bounded_jit
from hipgp.weights.joint_residuals import CellBlocks
from hipgp.weights.operator import Weights
from hipgp.weights.stencil_geometry import locate_stencils, stencil_offsets
from hipgp.weights.stencils import node_chunk_size, stencil_weights
from hipgp.weights.toeplitz import TorusToeplitz, toeplitz_on_torus

if TYPE_CHECKING:
    from hipgp.batch.systems import System
    from hipgp.model.problem import Problem


class Forms(eqx.Module):
    """A weighted sum of bilinear forms, sum over i of weight_i a_i' A b_i."""

    a: Float[Array, "F N"]
    b: Float[Array, "F N"]
    weight: Float[Array, " F"]

    def diagonal(self) -> Float[Array, " N"]:
        """The factor of each diagonal entry of A in the sum."""
        return self.weight @ (self.a * self.b)


class _Piece(eqx.Module):
    """The nodes of a chunk of functionals one after the other, padded with nodes of weight zero, and what each functional has."""

    offset: Float[Array, "n D"]
    value: Float[Array, " n"] | None
    direction: Float[Array, "n D"] | None
    share: Float[Array, " n"]  # the nodes' weights
    start: Int[Array, " n"]  # the stencils' first grid points
    owner: Int[Array, " n"]  # the number of each node's functional
    residual: Float[Array, " n"]  # of each functional, which are no more than the nodes
    of_residual: Float[Array, " n"]  # the factor of each residual variance
    forms: Forms


def kernel_gradient(
    problem: "Problem", p: int, system: "System", forms: Forms, of_residual: Float[Array, " N"]
) -> Kernel:
    """The gradient of the forms in the kernel's parameters, through K and through W with stencils of p points per axis.

    `of_residual` is the factor of each residual variance.
    """
    kernel, grid, weights = jax.tree.map(jnp.asarray, problem.kernel), problem.grid, system.weights
    total, fields = _through_grid(kernel, system.toeplitz.whole(), weights, forms)
    begin = 0
    for block in problem.data.blocks:
        for rows in block.functional.pieces(grid.spacing, node_chunk_size()):
            part = block.functional.nodes_of(rows, grid.spacing)
            piece = _piece(grid, p, part, begin + rows, weights.residual, of_residual, forms)
            total = jax.tree.map(jnp.add, total, _through_weights(kernel, grid, p, piece, *fields))
        begin += len(block.y)
    return total


def joint_residual_gradient(cells: CellBlocks, forms: Forms) -> Kernel:
    """The gradient of the forms in the kernel's parameters through V, the covariance of joint residuals."""
    kernel, grid = jax.tree.map(jnp.asarray, cells.kernel), cells.grid
    total = jax.tree.map(jnp.zeros_like, kernel)
    for members, used in cells.padded_members(node_chunk_size()):
        offset = locate_stencils(grid, cells.data.x[members.ravel()], cells.p)[1]
        some = lambda v, at=members, on=used: jnp.where(on, v[:, at], 0.0)
        pull = jnp.einsum("f,fni,fnj->nij", forms.weight, some(forms.a), some(forms.b))
        found = _through_joint_residuals(kernel, grid, cells.p, offset.reshape(*members.shape, -1), pull)
        total = jax.tree.map(jnp.add, total, found)
    return total


@bounded_jit()
def _through_grid(
    kernel: Kernel, toeplitz: TorusToeplitz, weights: Weights, forms: Forms
) -> tuple[Kernel, tuple[Array, Array]]:
    """The derivative through K with W held fixed, and the fields K W'a and K W'b."""
    modes = lambda v: toeplitz.modes(weights.transpose_matmul(v).reshape(toeplitz.shape))
    field = lambda m: toeplitz.from_modes(toeplitz.eigenvalues * m).ravel()

    def one(total: Array, form: Forms) -> tuple[Array, tuple[Array, Array]]:
        of_a, of_b = modes(form.a), modes(form.b)
        return total + form.weight * (jnp.conj(of_a) * of_b).real, (field(of_a), field(of_b))

    spectrum, fields = jax.lax.scan(one, jnp.zeros_like(toeplitz.eigenvalues), forms)
    pull = spectrum * toeplitz.torus.multiplicity() / toeplitz.torus.size
    return jax.grad(lambda k: jnp.sum(pull * toeplitz_on_torus(k, toeplitz.torus).eigenvalues))(
        kernel
    ), fields


def _piece(
    grid: Grid, p: int, part: Nodes, numbers: np.ndarray, residual: Array, of_residual: Array, forms: Forms
) -> _Piece:
    """The piece of some nodes; its sizes are those of few programs, whatever the nodes of each functional are."""
    count, nodes_each = part.x.shape[:2]
    size = count * nodes_each
    missing = round_up_to_power_of_two(size) - size
    start, offset = locate_stencils(grid, np.asarray(part.x, float).reshape(size, grid.ndim), p)

    def full(v: Any, mode: Any = "edge") -> Array:
        v = np.asarray(v)
        return jnp.asarray(np.pad(v, [(0, missing)] + [(0, 0)] * (v.ndim - 1), mode=mode))

    node = lambda v: None if v is None else full(np.repeat(np.asarray(v, float), nodes_each, axis=0))
    at = jnp.asarray(np.pad(numbers, (0, size + missing - count), mode="edge"))
    return _Piece(
        full(offset),
        node(part.value),
        node(part.direction),
        full(np.asarray(part.weights, float).reshape(size), "constant"),
        full(start),
        full(np.repeat(np.arange(count), nodes_each)),
        residual[at],
        of_residual[at],
        Forms(forms.a[:, at], forms.b[:, at], forms.weight),
    )


@eqx.filter_jit
def _through_weights(
    kernel: Kernel, grid: Grid, p: int, piece: _Piece, field_a: Array, field_b: Array
) -> Kernel:
    """The derivative through W and the residual variances of some functionals, with the fields on the grid held fixed."""
    places = piece.start[:, None] + jnp.asarray(stencil_offsets(grid, p)[1])

    def add(total: Array, form: tuple[Forms, Array, Array]) -> tuple[Array, None]:
        one, of_a, of_b = form
        a, b = one.a[piece.owner][:, None], one.b[piece.owner][:, None]
        return total + one.weight * (a * of_b[places] + b * of_a[places]), None

    gathered = jax.lax.scan(add, jnp.zeros(places.shape), (piece.forms, field_a, field_b))[0]
    pull = piece.share[:, None] * gathered  # the factor of each weight

    def value(k: Kernel) -> Array:
        w, v = stencil_weights(k, grid, p, piece.offset, piece.value, piece.direction)
        alone = jax.ops.segment_sum(v * piece.share**2, piece.owner, num_segments=len(piece.share))
        # v of a sum of nodes is `alone`, v of independent nodes, times a ratio that is held fixed
        now = jax.lax.stop_gradient(alone)
        ratio = jnp.where(now > 0, piece.residual / jnp.where(now > 0, now, 1.0), 0.0)
        return jnp.sum(pull * w) + jnp.sum(piece.of_residual * ratio * alone)

    return jax.grad(value)(kernel)


@eqx.filter_jit
def _through_joint_residuals(
    kernel: Kernel, grid: Grid, p: int, offset: Float[np.ndarray, "n s D"], pull: Float[Array, "n s s"]
) -> Kernel:
    """The derivative through the covariances of the residuals of n blocks of s points, `pull` the factor of each."""
    spacing = jnp.asarray(grid.spacing)
    stencil = (jnp.asarray(stencil_offsets(grid, p)[0]) * spacing).T
    x = jnp.moveaxis(offset * spacing, -1, 0)

    def value(k: Kernel) -> Array:
        w, _ = stencil_weights(k, grid, p, offset.reshape(-1, grid.ndim), None, None)
        w = w.reshape(*pull.shape[:2], -1)
        k_stencil = k.evaluate(differences(stencil[:, :, None], stencil[:, None, :]))
        explained = jnp.einsum("nip,pq,njq->nij", w, k_stencil, w)
        return jnp.sum(pull * (k.evaluate(differences(x[..., None], x[..., None, :])) - explained))

    return jax.grad(value)(kernel)
