"""The paper's bound: its gradients are those of finite differences and of the dense bound, and learning raises it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dense
from hipgp.model.data import observe
from hipgp.model.functionals import Points
from hipgp.model.kernels import Matern32
from hipgp.variational.bound import WhitenedProblem
from hipgp.variational.engine import Variational
from hipgp.variational.hyperparameters import LogParameters, expected_log_likelihood
from hipgp.variational.minibatch_weights import exact_source, local_source
from hipgp.weights.exact import solve_grid
from hipgp.weights.toeplitz import embed, toeplitz_on_torus
from variational_problem import (
    CASES,
    GRIDS,
    LENGTHSCALE,
    VARIANCE,
    close,
    every_dimension,
    gp_problem,
    kernels,
    observed,
    slow,
)


def differentiable_problem(dimension, residual="bound", weights="exact"):
    """All data in one selection, q at the full-rank optimum, and the noise of the points unknown."""
    grid, (kernel, _) = GRIDS[dimension], kernels(dimension)
    data, f = observed(dimension)
    data = observe(data.blocks[0].functional, data.blocks[0].y) + type(data)(data.blocks[1:])
    functionals = [b.functional for b in data.blocks]
    post = Variational("full", residual=residual).fit(gp_problem(kernel, grid, data, 0.25))
    source = (
        exact_source(
            kernel, grid, functionals, 1e-13, 1000, np.float64, 4 if weights == "exact, from local" else None
        )
        if weights.startswith("exact")
        else local_source(grid, functionals, 4)
    )
    problem = WhitenedProblem.of(
        source, kernel, post.whitening, data, data.noise_std(0.25), residual, len(data)
    )
    selection = next(problem.minibatches())

    def bound(logs):
        return expected_log_likelihood(logs, post.q, problem, jnp.asarray(data.noise_known), selection)[0]

    return jax.jit(bound), LogParameters.of(kernel, 0.25), data, f


def as_vector(logs):
    """Variance, lengthscales and noise in one array, and back."""
    leaves, tree = jax.tree.flatten(logs)
    sizes = np.cumsum([np.size(a) for a in leaves])[:-1]
    vector = np.concatenate([np.ravel(a) for a in leaves])

    def back(v):
        pieces = [p.reshape(np.shape(a)) for p, a in zip(np.split(v, sizes), leaves, strict=True)]
        return jax.tree.unflatten(tree, [jnp.asarray(p) for p in pieces])

    return vector, back


def differences(function, x, step=1e-5):
    return np.array([(function(x + e) - function(x - e)) / (2 * step) for e in step * np.eye(len(x))])


@pytest.mark.parametrize(
    ("dimension", "weights"),
    [
        (1, "local"),
        pytest.param(2, "exact", marks=slow),
        pytest.param(3, "exact", marks=slow),
        pytest.param(1, "exact", marks=slow),
        pytest.param(2, "exact, from local", marks=slow),
    ],
)
def test_gradients_are_finite_differences(dimension, weights):
    bound, logs, _, _ = differentiable_problem(dimension, weights=weights)
    vector, back = as_vector(logs)
    assert len(vector) == dimension + 2
    found = as_vector(jax.grad(bound)(logs))[0]
    expected = differences(lambda v: float(bound(back(v))), vector)
    close(found, expected, 1e-5)


@pytest.mark.parametrize(("dimension", "residual"), CASES)
def test_gradients_at_the_optimum_are_those_of_the_dense_bound(dimension, residual):
    """The bound is stationary in q there, so its gradient is that of the collapsed one, which knows no torus."""
    bound, logs, data, f = differentiable_problem(dimension, residual)
    grid = GRIDS[dimension]

    def collapsed(v):
        variance, lengthscale, noise = np.exp(v[0]), np.exp(v[1:-1]), np.exp(v[-1])
        kernel = dense.Matern32(variance, lengthscale)
        return dense.svgp(kernel, grid.coordinates(), f, data.y, data.noise_std(noise), f, residual).objective

    vector, _ = as_vector(logs)
    close(as_vector(jax.grad(bound)(logs))[0], differences(collapsed, vector), 1e-5)


@every_dimension
def test_gradient_of_the_solve_is_the_dense_one(dimension):
    grid, (kernel, _) = GRIDS[dimension], kernels(dimension)
    torus = embed(kernel, grid).torus
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(2, grid.size))

    def by_pcg(k):
        return jnp.asarray(a) @ solve_grid(toeplitz_on_torus(k, torus), jnp.asarray(b)[None], 1e-13).value[0]

    def by_hand(v):
        gram = dense.covariance(dense.Matern32(v[0], v[1:]), *[dense.points(grid.coordinates())] * 2)
        return a @ np.linalg.solve(gram, b)

    found = jax.grad(by_pcg)(jax.tree.map(jnp.asarray, kernel))
    expected = differences(by_hand, np.array([VARIANCE, *LENGTHSCALE[dimension]]), 1e-6)
    close(np.array([found.variance, *found.lengthscale]), expected, 1e-5)


@pytest.mark.parametrize(
    ("weights", "whitening"),
    [
        pytest.param("exact", "toeplitz", marks=slow),
        ("local", "toeplitz"),
        pytest.param("exact", "cholesky", marks=slow),
    ],
)
def test_learning_raises_the_bound(weights, whitening):
    """From a poor start; the noise of one part is unknown, that of the other stays as it was given."""
    grid = GRIDS[1]
    rng = np.random.default_rng(7)
    x = rng.uniform(0, 1, 150)
    y = np.sin(9 * x) + 0.1 * rng.normal(size=150)
    data = observe(Points(x), y) + observe(Points(x[:10]), y[:10], noise=0.3)
    kernel, settings = Matern32(0.3, 0.1), {"weights": weights, "whitening": whitening}
    learner = Variational("full", learn=True, epochs=30, batch_size=50, learning_rate=0.05, **settings)
    post = learner.fit(gp_problem(kernel, grid, data, 0.5), progress=False)
    before = Variational("full", batch_size=50, **settings).fit(gp_problem(kernel, grid, data, 0.5))
    assert post.elbo() > before.elbo() + 50
    assert post.noise == pytest.approx(0.1, rel=0.35)
    np.testing.assert_allclose(post.problem.variance[-10:], 0.09)
    assert len(post.diagnostics["learning_trace"]) == 31
