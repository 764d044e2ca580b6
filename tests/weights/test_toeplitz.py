"""The Toeplitz algebra as dense matrices: R R' = K, adjoints, the first row, what is clipped, and units."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hipgp.linalg.krylov import conjugate_gradients
from hipgp.model import kernels as hk
from hipgp.model.grid import Grid
from hipgp.weights.toeplitz import CLIP_TOLERANCE, embed, toeplitz_on_torus

GRIDS = {
    1: Grid(-1.0, 0.25, 17),
    2: Grid((0.0, 5.0), (0.5, 2.0), (6, 5)),
    3: Grid(0.0, (1.0, 0.7, 0.3), (4, 3, 5)),
    4: Grid(0.0, (1.0, 2.0, 0.5, 1.0), (3, 2, 3, 2)),
}
KERNELS = {
    "ordinary": {
        "matern12": lambda size: hk.Matern12(1.7, 0.5 * size),
        "matern32": lambda size: hk.Matern32(1.7, 0.25 * size),
        "matern52": lambda size: hk.Matern52(1.7, 0.15 * size),
        "squared exponential": lambda size: hk.SquaredExponential(1.7, 0.1 * size),
        "sum": lambda size: hk.Matern12(0.3, 0.3 * size) + hk.Matern32(1.0, 0.1 * size),
    },
    "long": {  # as long as the grid: the torus must grow
        "matern32": lambda size: hk.Matern32(1.7, size),
        "squared exponential": lambda size: hk.SquaredExponential(1.7, size),
    },
    "clipped": {  # far longer than the grid: no torus that may be grown is positive
        "squared exponential": lambda size: hk.SquaredExponential(1.7, 8.0 * size),
        "rational quadratic": lambda size: hk.RationalQuadratic(1.7, 8.0 * size, alpha=0.2),
    },
}
every_grid = pytest.mark.parametrize("dimension", GRIDS)
EVERY = [(d, kind, name) for d in GRIDS for kind, names in KERNELS.items() for name in names]
large = lambda d, name: pytest.mark.slow if (d, name) == (3, "rational quadratic") else ()
CASES = [pytest.param(d, kind, name, marks=large(d, name)) for d, kind, name in EVERY]


def extent(grid):
    return np.array(grid.upper) - np.array(grid.lower)


def make(dimension, kind, name):
    grid = GRIDS[dimension]
    return KERNELS[kind][name](extent(grid)), grid


@functools.cache
def matrices(dimension, kind, name):
    """K, R and C^-1's corner as dense matrices, from unit vectors in one batch (R's rows are R' of them)."""
    kernel, grid = make(dimension, kind, name)
    toeplitz = embed(kernel, grid)
    units = np.eye(grid.size).reshape(-1, *grid.shape)
    flat = lambda a: np.asarray(a).reshape(grid.size, -1)
    applied = (toeplitz.matmul(units), toeplitz.root_transpose(units), toeplitz.circulant_inverse(units))
    return toeplitz, *[flat(a) for a in applied]


@pytest.mark.parametrize(("dimension", "kind", "name"), CASES)
def test_roots_and_products_are_consistent(dimension, kind, name):
    """R R' = K to rounding, clipped or not; an FFT's is a few eps of the largest entry."""
    toeplitz, k, r, inverse = matrices(dimension, kind, name)
    scale = 1e-14 * np.max(np.abs(k))
    np.testing.assert_allclose(r @ r.T, k, rtol=0, atol=10 * scale)  # a sum over the torus
    e = np.random.default_rng(0).normal(size=(3, *toeplitz.torus.shape))
    np.testing.assert_allclose(
        toeplitz.root(e).reshape(3, -1), e.reshape(3, -1) @ r.T, rtol=0, atol=100 * scale
    )
    np.testing.assert_allclose(k, k.T, rtol=0, atol=scale)
    eigenvalues = np.linalg.eigvalsh(k)
    assert eigenvalues[0] > -1e-13 * eigenvalues[-1]
    assert np.linalg.eigvalsh((inverse + inverse.T) / 2)[0] > 0
    np.testing.assert_allclose(inverse, inverse.T, rtol=0, atol=1e-13 * np.max(np.abs(inverse)))


@pytest.mark.parametrize(("dimension", "kind", "name"), CASES)
def test_k_is_the_kernel_matrix_up_to_the_clipped_mass(dimension, kind, name):
    """Lifting negative eigenvalues to zero moves no entry by more than their mean size, which clipped_mass gives."""
    kernel, grid = make(dimension, kind, name)
    toeplitz, k, *_ = matrices(dimension, kind, name)
    mass = float(toeplitz.clipped_mass)
    moved = mass / (1 - 2 * mass) * np.max(k)
    x = grid.coordinates()
    np.testing.assert_allclose(k, kernel(x, x), rtol=0, atol=moved + 1e-14 * grid.size)
    assert np.all(np.asarray(toeplitz.eigenvalues) >= 0)
    assert all(m >= 2 * (n - 1) for m, n in zip(toeplitz.torus.shape, grid.shape, strict=True))
    if kind == "clipped":
        assert mass > CLIP_TOLERANCE or dimension == 1  # reported, and the case is what it says it is
    else:
        assert mass < CLIP_TOLERANCE


@pytest.mark.parametrize("kind", [hk.Matern12, hk.Matern32, hk.SquaredExponential])
def test_a_kernel_that_dies_away_needs_less_than_twice_the_grid(kind):
    """On the long axis; the short one, four lengthscales, needs all of it."""
    kernel, grid = kind(0.7, 1.5), Grid(0.0, 1.0, (90, 6))
    small, usual = embed(kernel, grid, wrap=1e-9), embed(kernel, grid)
    assert small.torus.shape[0] < 0.8 * usual.torus.shape[0] and small.torus.shape[1] == usual.torus.shape[1]
    assert usual.torus.shape[0] >= 2 * 89
    v = np.random.default_rng(0).normal(size=grid.shape)
    x = grid.coordinates()
    expected = (kernel(x, x) @ v.ravel()).reshape(grid.shape)
    np.testing.assert_allclose(small.matmul(jnp.asarray(v)), expected, rtol=0, atol=1e-6)
    assert small.clipped_mass < CLIP_TOLERANCE


@every_grid
def test_answers_do_not_depend_on_units(dimension):
    """Metres or millimetres: the same torus, and the same eigenvalues to rounding."""
    grid = GRIDS[dimension]
    one = embed(hk.Matern32(2.0, 0.4 * extent(grid)), grid)
    scaled = Grid(np.array(grid.origin) * 1e-3, np.array(grid.spacing) * 1e-3, grid.shape)
    other = embed(hk.Matern32(2.0e6, 0.4e-3 * extent(grid)), scaled)
    assert one.torus.shape == other.torus.shape
    largest = float(np.max(one.eigenvalues))
    np.testing.assert_allclose(other.eigenvalues / 1e6, one.eigenvalues, rtol=0, atol=1e-13 * largest)


def test_batches_go_in_front():
    toeplitz, k, r, _ = matrices(2, "ordinary", "matern32")
    v = np.random.default_rng(0).normal(size=(2, 3, *toeplitz.shape))
    e = np.random.default_rng(1).normal(size=(2, 3, *toeplitz.torus.shape))
    np.testing.assert_allclose(toeplitz.matmul(v).reshape(6, -1), v.reshape(6, -1) @ k, rtol=0, atol=1e-13)
    np.testing.assert_allclose(toeplitz.root(e).reshape(6, -1), e.reshape(6, -1) @ r.T, rtol=0, atol=1e-13)
    back = toeplitz.root_transpose(v)
    assert back.shape == e.shape
    np.testing.assert_allclose(np.sum(back * e), np.sum(v * toeplitz.root(e)), rtol=1e-13)


def test_float32_is_followed_and_good_to_its_digits():
    """eps = 1.2e-7; an FFT of 144 points loses a few of them."""
    toeplitz, *_ = matrices(2, "ordinary", "matern32")
    single = embed(*make(2, "ordinary", "matern32"), dtype=np.float32)
    v = np.random.default_rng(0).normal(size=toeplitz.shape)
    for name in ("matmul", "root_transpose", "circulant_inverse"):
        got = getattr(single, name)(v.astype(np.float32))
        want = getattr(toeplitz, name)(v)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.max(np.abs(want)))
    assert single.astype(np.float64).eigenvalues.dtype == np.float64


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for d, kind, name in EVERY if d == 2])
def test_tracing_on_a_given_torus_gives_the_same(kind, name):
    kernel, _ = make(2, kind, name)
    toeplitz = matrices(2, kind, name)[0]
    traced = eqx.filter_jit(toeplitz_on_torus)(kernel, toeplitz.torus)
    largest = float(np.max(toeplitz.eigenvalues))
    np.testing.assert_allclose(traced.eigenvalues, toeplitz.eigenvalues, rtol=0, atol=1e-14 * largest)
    assert float(traced.clipped_mass) == pytest.approx(toeplitz.clipped_mass, abs=1e-15)


@every_grid
def test_gradient_of_the_product_in_the_kernel(dimension):
    """d(a'K b)/d(lengthscale, variance) against the dense matrix's central differences (step 1e-5: 1e-9)."""
    grid = GRIDS[dimension]
    torus = matrices(dimension, "ordinary", "matern32")[0].torus
    a, b = np.random.default_rng(2).normal(size=(2, *grid.shape))
    x = grid.coordinates()
    size = extent(grid)

    def form(p):
        return jnp.sum(a * toeplitz_on_torus(hk.Matern32(p[0], p[1] * size), torus).matmul(b))

    dense_form = lambda p: a.ravel() @ hk.Matern32(p[0], p[1] * size)(x, x) @ b.ravel()
    p = np.array([1.7, 0.25])
    gradient = jax.jit(jax.grad(form))(p)
    moves = 1e-5 * np.eye(2)
    expected = [(dense_form(p + m) - dense_form(p - m)) / 2e-5 for m in moves]
    np.testing.assert_allclose(gradient, expected, rtol=1e-7)


@pytest.mark.parametrize("m", [10, 20, 50])
def test_the_circulant_inverse_never_costs_iterations(m):
    """Appendix C.1's hardest row: a squared exponential a quarter as long as the grid, singular from M = 18 on.

    k* at random places has a solution all the same; with C's smallest eigenvalues left in it took up to 9 times more.
    """
    kernel, grid = hk.SquaredExponential(1.0, 0.5), Grid.cover(0.0, 2.0, shape=m)
    toeplitz = embed(kernel, grid)
    b = kernel(np.random.default_rng(4).uniform(0, 2, (10, 1)), grid.coordinates())
    plain = conjugate_gradients(toeplitz.matmul, b)
    helped = conjugate_gradients(toeplitz.matmul, b, precondition=toeplitz.circulant_inverse)
    assert np.all(plain.converged) and np.all(helped.converged)
    assert np.mean(helped.iterations) < np.mean(plain.iterations)


@pytest.mark.parametrize("name", ["matern12", "matern32", "matern52"])
def test_the_circulant_inverse_saves_iterations(name):
    """Section 5.1 in small: experiments/preconditioner.py has it whole."""
    grid = Grid((0.0, 0.0), 1.0, (16, 16))
    toeplitz = embed(
        {"matern12": hk.Matern12, "matern32": hk.Matern32, "matern52": hk.Matern52}[name](1.0, 2.5), grid
    )
    b = np.random.default_rng(3).normal(size=(5, grid.size))
    flat = lambda f: lambda v: f(v.reshape(-1, *grid.shape)).reshape(v.shape)
    plain = conjugate_gradients(flat(toeplitz.matmul), b)
    helped = conjugate_gradients(flat(toeplitz.matmul), b, precondition=flat(toeplitz.circulant_inverse))
    assert np.all(plain.converged) and np.all(helped.converged)
    assert np.max(helped.iterations) < 0.5 * np.min(plain.iterations)
    np.testing.assert_allclose(helped.value, plain.value, rtol=1e-5, atol=1e-5 * np.max(np.abs(plain.value)))
