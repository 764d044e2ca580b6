"""Kernels, in value, derivative and parameters, against those written by hand in dense_kernels.py."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dense
from hipgp.model import kernels as hk
from hipgp.model.kernel_words import describe
from hipgp.model.periodic import Periodic

PAIRS = {  # hipgp's and the reference's, made from a variance and a lengthscale
    "matern12": (hk.Matern12, dense.Matern12),
    "matern32": (hk.Matern32, dense.Matern32),
    "matern52": (hk.Matern52, dense.Matern52),
    "squared exponential": (hk.SquaredExponential, dense.SquaredExponential),
    "rational quadratic": (
        lambda v, ell: hk.RationalQuadratic(v, ell, alpha=0.7),
        lambda v, ell: dense.RationalQuadratic(v, ell, alpha=0.7),
    ),
    "gneiting 1": (
        lambda v, ell: hk.Gneiting(v, 4 * np.asarray(ell), alpha=1.0),
        lambda v, ell: dense.Gneiting(v, 4 * np.asarray(ell), alpha=1.0),
    ),
    "gneiting 1.5": (
        lambda v, ell: hk.Gneiting(v, 4 * np.asarray(ell), alpha=1.5),
        lambda v, ell: dense.Gneiting(v, 4 * np.asarray(ell), alpha=1.5),
    ),
    "gneiting 2": (
        lambda v, ell: hk.Gneiting(v, 4 * np.asarray(ell), alpha=2.0),
        lambda v, ell: dense.Gneiting(v, 4 * np.asarray(ell), alpha=2.0),
    ),
    "sum": (
        lambda v, ell: hk.Matern32(v, ell) + hk.SquaredExponential(0.3, 2.0),
        lambda v, ell: dense.Matern32(v, ell) + dense.SquaredExponential(0.3, 2.0),
    ),
    "product": (
        lambda v, ell: hk.Matern52(v, ell) * hk.Matern32(0.8, 1.5),
        lambda v, ell: dense.Matern52(v, ell) * dense.Matern32(0.8, 1.5),
    ),
    "periodic": (
        lambda v, ell: hk.Matern52(0.9, ell) * Periodic(v, 0.4, period=1.3, axis=0),
        lambda v, ell: dense.Matern52(0.9, ell) * dense.Periodic(v, 0.4, period=1.3, axis=0),
    ),
}
DERIVATIVES = {
    "matern12": 0,
    "matern32": 1,
    "matern52": 2,
    "gneiting 1": 0,
    "gneiting 1.5": 0,
    "gneiting 2": 1,
}
DERIVATIVES |= {
    "sum": 1,
    "product": 1,
    "periodic": 2,
    "squared exponential": hk.SMOOTH,
    "rational quadratic": hk.SMOOTH,
}
LENGTHSCALES = {1: 0.8, 2: (0.7, 1.3), 3: (0.7, 1.3, 0.9)}

every_kernel = pytest.mark.parametrize("name", PAIRS)
every_dimension = pytest.mark.parametrize("dimension", [1, 3])


def both(name, dimension):
    ours, reference = PAIRS[name]
    return ours(1.7, LENGTHSCALES[dimension]), reference(1.7, LENGTHSCALES[dimension])


@functools.cache
def derivatives(name, dimension):
    """Differences, the last of them zero, and our value, gradient and Hessian there, the latter in both modes."""
    ours, _ = both(name, dimension)
    delta = np.random.default_rng(0).normal(size=(30, dimension))
    delta[-1] = 0.0
    k = ours.evaluate
    everything = lambda d: (k(d), jax.grad(k)(d), jax.jacfwd(jax.jacfwd(k))(d), jax.jacrev(jax.jacfwd(k))(d))
    return delta, [np.asarray(a) for a in jax.jit(jax.vmap(everything))(delta)]


@every_kernel
@every_dimension
def test_values_and_derivatives_are_the_reference_s(name, dimension):
    """Rounding is 1e-15 of the values; slopes and curvatures are up to 10 / lengthscale^2 larger: 1e-13."""
    ours, reference = both(name, dimension)
    delta, (value, gradient, forward, reverse) = derivatives(name, dimension)
    np.testing.assert_allclose(value, reference.value(delta), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(gradient[:-1], reference.gradient(delta[:-1]), rtol=0, atol=1e-13)
    for hessian in (forward, reverse):
        np.testing.assert_allclose(hessian[:-1], reference.hessian(delta[:-1]), rtol=0, atol=1e-13)
    expected = reference.value(delta[:, None] - delta)
    np.testing.assert_allclose(ours(delta, delta), expected, rtol=1e-13, atol=1e-15)
    eigenvalues = np.linalg.eigvalsh(expected)
    assert eigenvalues[0] > -1e-13 * eigenvalues[-1]  # a covariance, to the rounding of a 30 x 30 matrix


@every_kernel
@every_dimension
def test_derivatives_at_distance_zero(name, dimension):
    """Right where the field has a derivative; never NaN, in forward or reverse mode, where it has none."""
    ours, reference = both(name, dimension)
    _, (_, gradient, forward, reverse) = derivatives(name, dimension)
    np.testing.assert_array_equal(gradient[-1], 0.0)
    for hessian in (forward[-1], reverse[-1]):
        assert np.all(np.isfinite(hessian))
        if ours.differentiable >= 1:
            np.testing.assert_allclose(
                hessian, reference.hessian(np.zeros((1, dimension)))[0], rtol=0, atol=1e-13
            )


@pytest.mark.parametrize("name", ["matern52", "squared exponential", "rational quadratic"])
def test_fourth_derivatives_at_distance_zero(name):
    """The gradient of a derivative observation's variance in its place needs them; for twice smooth fields."""
    ours, reference = both(name, 1)
    line = lambda t: ours.evaluate(jnp.array([t]))
    fourth = float(jax.jit(jax.jacfwd(jax.jacfwd(jax.jacfwd(jax.jacfwd(line)))))(0.0))
    h = 1e-3  # second differences of the exact curvature are off by about h / lengthscale
    second = lambda d: reference.hessian(np.array([[d]])).item()
    assert fourth == pytest.approx((second(h) - 2 * second(0.0) + second(-h)) / h**2, rel=0.01)


@every_kernel
def test_differentiable_says_how_often(name):
    assert both(name, 2)[0].differentiable == DERIVATIVES[name]


@every_kernel
def test_gradients_in_every_parameter_are_finite_differences(name):
    """Central differences with step 1e-6: truncation 1e-12, rounding 1e-10."""
    ours, _ = both(name, 2)
    delta = jnp.asarray(np.random.default_rng(1).normal(size=(2, 30))).at[:, 0].set(0.0)
    total = eqx.filter_jit(lambda k: jnp.sum(jnp.cos(jnp.arange(30.0)) * k.evaluate(delta)))
    leaves, tree = jax.tree.flatten(jax.tree.map(jnp.asarray, ours))
    gradient = jax.tree.leaves(eqx.filter_grad(total)(jax.tree.unflatten(tree, leaves)))
    assert len(leaves) == len(gradient) >= 2
    for i, leaf in enumerate(leaves):
        for j in range(np.size(leaf)):
            move = np.zeros(np.size(leaf))
            move[j] = 1e-6
            moved = [
                total(
                    jax.tree.unflatten(
                        tree, [*leaves[:i], leaf + s * move.reshape(leaf.shape), *leaves[i + 1 :]]
                    )
                )
                for s in (1, -1)
            ]
            assert np.ravel(gradient[i])[j] == pytest.approx(float(moved[0] - moved[1]) / 2e-6, abs=1e-8)


def test_materns_are_not_separable():
    """In two dimensions a Matern is not the product of two one-dimensional ones (except on the axes)."""
    line, plane = hk.Matern32(), hk.Matern32()
    at = lambda k, *d: float(k.evaluate(jnp.array(d)))
    assert at(plane, 0.7, 0.0) == pytest.approx(at(line, 0.7))
    assert abs(at(plane, 0.7, 0.7) - at(line, 0.7) ** 2) > 0.01


def test_one_lengthscale_is_the_same_for_all_axes():
    x = np.random.default_rng(3).normal(size=(5, 3))
    np.testing.assert_array_equal(hk.Matern52(2.0, 0.4)(x, x), hk.Matern52(2.0, (0.4, 0.4, 0.4))(x, x))


def test_sums_and_products_nest_and_list_their_parts():
    kernel = (hk.Matern12() + hk.Matern32()) * hk.SquaredExponential()
    assert [type(p).__name__ for p in kernel.parts] == ["Matern12", "Matern32", "SquaredExponential"]
    x = np.random.default_rng(4).normal(size=(4, 2))
    expected = (hk.Matern12()(x, x) + hk.Matern32()(x, x)) * hk.SquaredExponential()(x, x)
    np.testing.assert_allclose(kernel(x, x), expected, rtol=1e-15)


def test_the_dtype_of_the_input_is_kept():
    x = np.random.default_rng(5).normal(size=(6, 2))
    for name in PAIRS:
        ours, _ = both(name, 2)
        assert ours(x, x).dtype == np.float64
        single = ours(x.astype(np.float32), x.astype(np.float32))
        assert single.dtype == np.float32
        np.testing.assert_allclose(
            single, ours(x, x), rtol=2e-5, atol=1e-6
        )  # differences of float32 coordinates


def test_float64_survives_a_user_s_32_bit_configuration():
    x = np.random.default_rng(6).normal(size=(6, 2))
    expected = hk.Matern52()(x, x)
    with jax.enable_x64(False):
        again = hk.Matern52()(x, x)
    assert again.dtype == np.float64
    np.testing.assert_array_equal(again, expected)


def test_a_kernel_in_words_has_the_units_of_its_axes():
    kernel = (hk.Matern12(1.5, 2.0) + hk.Matern32(2.0, (0.5, 1.0))) * hk.SquaredExponential()
    assert describe(kernel, ("kpc", "kpc")) == (
        "(Matern12(variance 1.5, lengthscale 2 kpc) + Matern32(variance 2, lengthscale 0.5 kpc, 1 kpc))"
        " * SquaredExponential(variance 1, lengthscale 1 kpc)"
    )
    assert describe(hk.Matern12(1.5, 2.0), ("kpc", "s")) == "Matern12(variance 1.5, lengthscale 2)"
