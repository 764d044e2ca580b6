"""K by slabs is K of the whole torus, whatever the slabs, and its draws are those of the prior, whatever the slabs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dense
from hipgp.model import kernels as hk
from hipgp.model.grid import Grid
from hipgp.weights import slabs, toeplitz
from hipgp.weights.slabs import LARGEST_TRANSFORM, in_slabs, slabs_of
from hipgp.weights.toeplitz import SlabToeplitz, TorusToeplitz, check_first_column, embed

GRIDS = {
    1: Grid(-1.0, 0.25, 17),
    2: Grid((0.0, 5.0), (0.5, 2.0), (7, 5)),
    3: Grid(0.0, (1.0, 0.7, 0.3), (4, 3, 5)),
    4: Grid(0.0, (1.0, 2.0, 0.5, 1.0), (3, 2, 2, 2)),
}
SIZES = (1, 40, 10**6)  # elements transformed together: one plane or line, some that do not divide, all
every = pytest.mark.parametrize(("dimension", "most"), [(d, most) for d in GRIDS for most in SIZES])


def kernels(grid):
    scale = 0.4 * np.maximum(np.array(grid.upper) - np.array(grid.lower), np.array(grid.spacing))
    return hk.Matern32(1.7, scale), dense.Matern32(1.7, scale)


def by_slabs(grid, monkeypatch, most, dtype=np.float64):
    """K by slabs, however small it is."""
    monkeypatch.setattr(toeplitz, "in_slabs", lambda *_: (True, ""))
    monkeypatch.setattr(slabs, "CACHED", most)
    monkeypatch.setattr(slabs, "ON_GPU", most)
    return embed(kernels(grid)[0], grid, dtype)


@every
def test_products_are_those_of_the_dense_matrix(dimension, most, monkeypatch):
    """Against a kernel written by hand; an FFT's rounding is some eps of the largest entry."""
    grid = GRIDS[dimension]
    k = by_slabs(grid, monkeypatch, most)
    assert isinstance(k, SlabToeplitz) and k.clipped_mass < 1e-12
    x = grid.coordinates()
    expected = dense.covariance(kernels(grid)[1], dense.points(x), dense.points(x))
    units = jnp.eye(grid.size).reshape(-1, *grid.shape)
    np.testing.assert_allclose(k.matmul(units).reshape(grid.size, -1), expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(k.flat_matmul(jnp.ones(grid.size)), expected.sum(1), rtol=1e-12)


@every
def test_the_eigenvalues_are_those_of_the_whole_torus(dimension, most, monkeypatch):
    k = by_slabs(GRIDS[dimension], monkeypatch, most)
    row = jnp.fft.irfftn(k.whole().eigenvalues, s=k.torus.shape)
    lags = np.stack(np.meshgrid(*k.torus.lags(k.torus.flattened), indexing="ij"))
    np.testing.assert_allclose(row, kernels(GRIDS[dimension])[0].evaluate(lags), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(k.eigenvalues, k.whole().eigenvalues)


@every
def test_a_draw_depends_neither_on_the_slabs_nor_on_the_form(dimension, most, monkeypatch):
    key = jax.random.key(3)
    k = by_slabs(GRIDS[dimension], monkeypatch, most)
    one = k.draw(key, 3)
    assert one.shape == (3, *GRIDS[dimension].shape)
    monkeypatch.setattr(slabs, "CACHED", 2**18)
    monkeypatch.setattr(slabs, "ON_GPU", 2**18)
    np.testing.assert_allclose(k.draw(key, 3), one, rtol=0, atol=1e-13)
    np.testing.assert_allclose(k.whole().draw(key, 2), one[:2], rtol=0, atol=1e-13)


@pytest.mark.parametrize(("dimension", "most"), [(1, 40), (2, 40), (3, 10**6)])
def test_the_root_times_its_transpose_is_the_covariance(dimension, most, monkeypatch):
    """R R' u = K u, R e of drawn modes is a draw, and <R e, u> = <e, R'u>, plane by plane."""
    grid = GRIDS[dimension]
    k = by_slabs(grid, monkeypatch, most)
    cut, amplitudes, rng = k.slabs, jnp.sqrt(k.orthant), np.random.default_rng(0)
    u = jnp.asarray(rng.normal(size=grid.shape))
    pulled = cut.root_transpose(amplitudes, cut.to_planes(u))
    again = cut.from_planes(cut.root(amplitudes, pulled))
    np.testing.assert_allclose(again, k.matmul(u), rtol=0, atol=1e-13 * float(jnp.max(jnp.abs(again))))
    e = rng.normal(size=pulled.shape) + 1j * rng.normal(size=pulled.shape)
    drawn = cut.from_planes(cut.root(amplitudes, jnp.asarray(e)))
    np.testing.assert_allclose(jnp.sum(drawn * u), jnp.sum((e.conj() * pulled).real), rtol=1e-12)


@pytest.mark.parametrize("dimension", GRIDS)
def test_draws_have_the_covariance_of_the_prior(dimension, monkeypatch):
    """Within 5 standard errors of 5,000 draws, 7 percent of a variance: a wrong share of any frequency is more."""
    grid = GRIDS[dimension]
    k = by_slabs(grid, monkeypatch, 40)
    draws = np.asarray(k.draw(jax.random.key(0), 5_000)).reshape(5_000, -1)
    x = grid.coordinates()
    expected = dense.covariance(kernels(grid)[1], dense.points(x), dense.points(x))
    error = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / 5_000)
    assert np.max(np.abs(draws.T @ draws / 5_000 - expected) / error) < 5.0


def test_no_transform_is_too_large_for_a_gpu():
    """The rule alone: at 1280^3 the torus has 1.7e10 points, eight times what one transform may have."""
    for n, most in ((1024, None), (1280, 2**40), (1280, 2**31), (1280, 2**27), (4, 1)):
        cut = slabs_of((n,) * 3, (2 * n,) * 3, most)
        assert 1 <= cut.planes <= cut.frequencies and 1 <= cut.lines <= n * n
        assert cut.planes * (2 * n) ** 2 <= LARGEST_TRANSFORM and cut.lines * 2 * n <= LARGEST_TRANSFORM
    with pytest.raises(ValueError, match=r"^grid: expected at most 2,147,483,647 points in a plane"):
        slabs_of((3, 30_000, 30_000), (4, 60_000, 60_000))


def test_the_device_and_the_memory_decide_on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(slabs.memory, "bytes_available", lambda: 2.0**40)
    assert in_slabs((512,) * 3, (1024,) * 3) == (
        False,
        "the whole torus at once: the torus has 1,073,741,824 points, which fit into memory",
    )
    assert in_slabs((1024,) * 3, (2048,) * 3)[0]
    monkeypatch.setattr(slabs.memory, "bytes_available", lambda: 2.0**34)
    chosen, why = in_slabs((512,) * 3, (1024,) * 3)
    assert chosen and "does not fit into memory" in why


def test_small_tori_and_single_axes_are_transformed_at_once():
    assert not in_slabs((10**6,), (2 * 10**6,))[0]
    if jax.default_backend() == "cpu":
        assert isinstance(embed(hk.Matern32(1.0, 2.0), Grid(0.0, (1.0, 1.0), (10, 10))), TorusToeplitz)
        assert isinstance(embed(hk.Matern32(1.0, 2.0), Grid(0.0, (1.0, 1.0), (64, 64))), SlabToeplitz)


@pytest.mark.parametrize("form", [SlabToeplitz.whole, lambda k: k])
def test_transforms_that_go_wrong_are_found(form, monkeypatch):
    """As a GPU's did: an inverse transform that forgets to divide by its length."""
    grid = Grid(0.0, (1.0, 1.0), (11, 9) if form is SlabToeplitz.whole else (9, 11))  # programs of its own
    k = form(by_slabs(grid, monkeypatch, 40))
    check_first_column(kernels(grid)[0], k, np.float64)
    irfft, irfftn = jnp.fft.irfft, jnp.fft.irfftn
    monkeypatch.setattr(jnp.fft, "irfft", lambda a, n, axis: n * irfft(a, n=n, axis=axis))
    monkeypatch.setattr(jnp.fft, "irfftn", lambda a, s, axes: np.prod(s) * irfftn(a, s=s, axes=axes))
    monkeypatch.setattr(slabs, "CACHED", 60)
    monkeypatch.setattr(slabs, "ON_GPU", 60)
    with pytest.raises(
        RuntimeError, match=r"^K: expected 1.7 between grid points 0 and \[0, 0\], got .*JAX_PLATFORMS"
    ):
        check_first_column(kernels(grid)[0], k, np.float64)


@pytest.mark.parametrize("dimension", [2, 3])
def test_float32_is_followed_and_good_to_its_digits(dimension, monkeypatch):
    grid = GRIDS[dimension]
    single = by_slabs(grid, monkeypatch, 40, np.float32)
    v = np.random.default_rng(0).normal(size=grid.shape)
    got = single.matmul(v.astype(np.float32))
    assert got.dtype == np.float32 and single.draw(jax.random.key(0), 1).dtype == np.float32
    want = single.astype(np.float64).matmul(v)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.max(np.abs(want)))
