"""Conjugate gradients and Lanczos against dense linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hipgp.linalg import krylov as solvers
from hipgp.linalg.krylov import conjugate_gradients

SIZE = 24


def matrix(condition=100.0, seed=0, size=SIZE):
    """A symmetric matrix with eigenvalues from 1 / condition to 1."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return (q * np.geomspace(1 / condition, 1.0, size)) @ q.T


def product(a):
    return lambda v: jnp.matmul(
        v, jnp.asarray(a), precision="highest"
    )  # on a GPU the default has three digits


def relative_residual(a, x, b):
    return np.linalg.norm(b - x @ a, axis=-1) / np.linalg.norm(b, axis=-1)


def test_every_side_converges_by_itself():
    """An eigenvector takes one step, nothing at all none, and a plain side many; none disturbs another."""
    a = matrix()
    values, vectors = np.linalg.eigh(a)
    b = np.stack([1e6 * vectors[:, 3], np.zeros(SIZE), np.random.default_rng(1).normal(size=SIZE)])
    solution = conjugate_gradients(product(a), b)
    assert solution.iterations[:2].tolist() == [1, 0]
    assert solution.iterations[2] > 10
    assert np.all(solution.converged)
    np.testing.assert_array_equal(solution.value[1], 0.0)
    assert solution.error[1] == 0.0
    np.testing.assert_allclose(solution.value[0], b[0] / values[3], rtol=1e-8, atol=1e-6)
    # error <= condition x tolerance
    np.testing.assert_allclose(
        solution.value[2], np.linalg.solve(a, b[2]), rtol=0, atol=1e-8 * np.linalg.norm(b[2])
    )
    alone = conjugate_gradients(product(a), b[2:])
    # both are 1e-10 solves of the same system, summed in another order
    np.testing.assert_allclose(solution.value[2], alone.value[0], rtol=0, atol=1e-8 * np.linalg.norm(b[2]))


@pytest.mark.parametrize("tolerance", [1e-3, 1e-8])
def test_the_error_stated_is_the_residual(tolerance):
    a, b = matrix(), np.random.default_rng(2).normal(size=(4, SIZE))
    solution = conjugate_gradients(product(a), b, tolerance=tolerance)
    actual = relative_residual(a, np.asarray(solution.value), b)
    np.testing.assert_allclose(solution.error, actual, rtol=1e-6, atol=1e-14)  # rounding of b - A x
    assert np.all(actual <= tolerance * (1 + 1e-6))
    assert np.all(actual > 1e-6 * tolerance)  # it stopped, and did not simply run on


def test_a_limit_on_iterations_says_not_converged():
    a, b = matrix(), np.random.default_rng(2).normal(size=(3, SIZE))
    solution = conjugate_gradients(product(a), b, max_iterations=4)
    assert solution.iterations.tolist() == [4, 4, 4]
    assert not np.any(solution.converged)
    np.testing.assert_allclose(
        solution.error, relative_residual(a, np.asarray(solution.value), b), rtol=1e-12
    )


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_answers_do_not_depend_on_the_scale_of_the_right_hand_side(scale, dtype):
    """Squares of 1e-30 vanish in float32, and those of 1e30 overflow."""
    a, b = matrix(), np.random.default_rng(3).normal(size=(2, SIZE))
    solution = conjugate_gradients(product(a.astype(dtype)), (scale * b).astype(dtype), tolerance=1e-4)
    assert solution.value.dtype == dtype
    assert np.all(solution.converged)
    np.testing.assert_allclose(
        solution.value / scale, np.linalg.solve(a, b.T).T, rtol=0, atol=1e-2 * np.linalg.norm(b[0])
    )


def test_float32_does_not_claim_digits_it_has_not():
    """A tolerance of 1e-10 is beyond float32: it stops by itself near eps x condition, and says so."""
    a, b = matrix(1e4).astype(np.float32), np.random.default_rng(4).normal(size=(3, SIZE)).astype(np.float32)
    solution = conjugate_gradients(product(a), b, tolerance=1e-10, max_iterations=2000)
    actual = relative_residual(a.astype(float), np.asarray(solution.value, float), b.astype(float))
    assert not np.any(solution.converged)
    assert np.all(solution.iterations < 500)
    np.testing.assert_allclose(solution.error, actual, rtol=0.5)  # both are rounding errors
    assert np.all(actual < 1e-2)  # eps |A| |x| / |b| is up to 1e-7 x 1e4
    good = conjugate_gradients(product(a), b, tolerance=3e-3, max_iterations=2000)
    assert np.all(good.converged)
    assert np.all(relative_residual(a.astype(float), np.asarray(good.value, float), b) < 4e-3)


def test_a_singular_matrix_ends_without_a_claim():
    """b has a part outside A's range: there is no solution, and no number of steps may pretend otherwise."""
    a = matrix(1e6)
    values, vectors = np.linalg.eigh(a)
    values[:6] = 0.0
    a = (vectors * values) @ vectors.T
    solution = conjugate_gradients(
        product(a), np.random.default_rng(5).normal(size=(4, SIZE)), max_iterations=5000
    )
    assert not np.any(solution.converged)
    assert np.all(np.isfinite(solution.value))
    assert np.all(solution.error > 1e-3)
    inside = conjugate_gradients(product(a), np.asarray(np.random.default_rng(5).normal(size=(4, SIZE)) @ a))
    assert np.all(inside.converged)  # and within its range there is one


def test_nan_is_not_convergence():
    b = np.random.default_rng(6).normal(size=(2, SIZE))
    b[0, 0] = np.nan
    solution = conjugate_gradients(product(matrix()), b)
    assert solution.converged.tolist() == [False, True]


def test_a_preconditioner_changes_the_steps_and_not_the_answer():
    a, b = matrix(1e5), np.random.default_rng(7).normal(size=(3, SIZE))
    plain = conjugate_gradients(product(a), b)
    exact = conjugate_gradients(product(a), b, precondition=product(np.linalg.inv(a)))
    assert np.all(exact.iterations <= 3) and np.all(plain.iterations > 20)
    truth = np.linalg.solve(a, b.T).T
    for solution in (plain, exact):  # 1e-10 of |b|, times the condition number
        np.testing.assert_allclose(solution.value, truth, rtol=0, atol=1e-5 * np.linalg.norm(b[0]))


def test_resuming_is_the_same_as_going_on():
    a, b = matrix(), np.random.default_rng(8).normal(size=(3, SIZE))
    matmul, inverse = product(a), lambda r: r / np.diag(a)
    target = 1e-16 * solvers.squared_norm(b)
    go = lambda state, steps: solvers.cg_advance(matmul, inverse, solvers.squared_norm, target, state, steps)
    begin = solvers.cg_start(jnp.asarray(b), solvers.squared_norm)
    whole = go(begin, 100)
    parts = go(go(go(begin, 5), 7), 100)
    assert 12 < int(whole.iterations[0]) < 100
    for x, y in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(x, y)


def test_lanczos_finds_the_log_determinant():
    """With every unit vector as probe and steps enough it is exact, to rounding; and so is the inverse."""
    a = matrix(1e3)
    probes = jnp.eye(SIZE)
    found = solvers.lanczos_solve(product(a), probes, 3 * SIZE, 1e-12)
    np.testing.assert_allclose(found.value, np.linalg.inv(a), rtol=1e-7, atol=1e-9)
    coefficients = found.coefficients
    total = float(jnp.sum(solvers.lanczos_quadrature(coefficients, probes, jnp.log)))
    assert total == pytest.approx(np.linalg.slogdet(a)[1], rel=1e-10)
    trace = float(jnp.sum(solvers.lanczos_quadrature(coefficients, probes, lambda x: 1 / x)))
    assert trace == pytest.approx(np.trace(np.linalg.inv(a)), rel=1e-9)


def test_stochastic_lanczos_is_unbiased_and_converges_in_its_steps():
    """Rademacher probes: 4 standard errors of their mean; and 12 steps of 24 do for a condition number of 10."""
    a = matrix(10.0)
    probes = jnp.asarray(np.random.default_rng(9).choice([-1.0, 1.0], size=(400, SIZE)))
    forms = {
        k: solvers.lanczos_quadrature(
            solvers.lanczos_solve(product(a), probes, k, 1e-9).coefficients, probes, jnp.log
        )
        for k in (3, 12)
    }
    values, vectors = np.linalg.eigh(a)
    exact = ((np.asarray(probes) @ vectors) ** 2) @ np.log(values)
    errors = {k: float(np.max(np.abs(f - exact))) for k, f in forms.items()}
    assert errors[12] < 1e-5 < errors[3] < 1.0
    standard_error = float(np.std(exact)) / np.sqrt(400)
    assert abs(float(jnp.mean(forms[12])) - np.linalg.slogdet(a)[1]) < 4 * standard_error


def test_lanczos_survives_an_early_end():
    """Three distinct eigenvalues: the Krylov space ends after three steps, and the rest must not matter."""
    q, _ = np.linalg.qr(np.random.default_rng(10).normal(size=(SIZE, SIZE)))
    a = (q * np.repeat([0.5, 1.0, 4.0], SIZE // 3)) @ q.T
    probes = jnp.asarray(np.random.default_rng(11).normal(size=(5, SIZE)))
    form = lambda p: solvers.lanczos_quadrature(
        solvers.lanczos_solve(product(a), p, 10, 1e-12).coefficients, p, jnp.log
    )
    got = jax.jit(form)(probes)
    exact = np.asarray(probes) @ (q * np.log(np.repeat([0.5, 1.0, 4.0], SIZE // 3))) @ q.T
    np.testing.assert_allclose(got, np.sum(exact * probes, axis=1), rtol=1e-9)
