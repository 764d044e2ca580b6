"""Derivatives of kernels in the logarithms of their parameters, against finite differences in each parameter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hipgp as hg
from hipgp.model.kernel_slopes import WithSlopes
from hipgp.model.kernels import Stationary
from hipgp.model.nodes import Nodes
from hipgp.vecchia.group_covariances import field_covariances


class Own(Stationary):
    """A kernel of a user, whose covariance is not a function of a scaled distance alone."""

    differentiable = 0

    def profile(self, s):
        return jnp.exp(-s)

    def evaluate(self, difference):
        return self.variance * jnp.exp(-jnp.sum(jnp.abs(difference), axis=0) / self.lengthscale)


KERNELS = {
    "isotropic": hg.Matern12(1.3, 0.7),
    "per axis": hg.Matern52(0.4, (0.7, 1.9)),
    "further parameters": hg.RationalQuadratic(1.1, (0.7, 0.2), 1.7),
    "sum": hg.Matern32(1.3, 0.7) + hg.SquaredExponential(0.2, (0.4, 2.0)),
    "product of sums": (hg.Matern32(1.3, 0.7) + hg.Matern12(0.2, 0.4)) * hg.Matern52(0.8, (3.0, 2.0)),
    "periodic": hg.Periodic(0.9, 0.6, 1.3, axis=1) * hg.Matern32(1.0, 2.0),
    "own": Own(1.3, 0.7),
}
X = jnp.asarray(np.random.default_rng(0).uniform(0, 1, (2, 9))).at[:, 0].set(0.0)


def apart(function, kernel, step=1e-5):
    """The derivatives of function(kernel) in the logarithm of each entry of each leaf, by central differences."""
    leaves, structure = jax.tree.flatten(kernel)
    out = []
    for number, leaf in enumerate(leaves):
        for entry in range(jnp.size(leaf)):
            by = jnp.ones(jnp.size(leaf)).at[entry].set(jnp.exp(step)).reshape(jnp.shape(leaf))
            at = lambda factor, n=number: function(
                jax.tree.unflatten(structure, [*leaves[:n], leaves[n] * factor, *leaves[n + 1 :]])
            )
            out.append((at(by) - at(1 / by)) / (2 * step))
    return out


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_derivatives_in_each_parameter(kernel):
    value, *slopes = WithSlopes(kernel).evaluate(X)
    np.testing.assert_allclose(value, kernel.evaluate(X), rtol=1e-14)
    expected = apart(lambda k: k.evaluate(X), kernel)
    assert len(slopes) == len(expected)
    for found, one in zip(slopes, expected, strict=True):
        np.testing.assert_allclose(found, one, atol=1e-8)


@pytest.mark.parametrize("directed", [False, True])
def test_derivatives_of_covariances_of_functionals(directed):
    rng = np.random.default_rng(1)
    x, weights = rng.uniform(0, 1, (6, 3, 2)), rng.normal(size=(6, 3))
    direction = (np.full(6, 0.5), rng.normal(size=(6, 2))) if directed else (None, None)
    nodes = jax.tree.map(jnp.asarray, Nodes(x, weights, *direction))
    index, used = jnp.arange(6).reshape(2, 3), jnp.array([[True] * 3, [True, False, True]])
    kernel, covariance = (
        hg.Matern52(1.3, (0.7, 1.1)),
        jax.jit(lambda k: field_covariances(k, nodes, index, used)),
    )
    matrix, *slopes = jax.jit(lambda k: field_covariances(WithSlopes(k), nodes, index, used))(kernel)
    np.testing.assert_allclose(matrix, covariance(kernel), rtol=1e-12)
    expected = apart(covariance, kernel)
    for found, one in zip(slopes, expected, strict=True):
        np.testing.assert_allclose(found, one, atol=1e-7)
