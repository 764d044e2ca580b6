"""Fits of new data of one shape: programs are compiled once, not for each, and memory does not grow."""

import ctypes
import gc
import os
from pathlib import Path

import numpy as np
import pytest

import hipgp as hg

GRID = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(20, 22))
ROUGH = hg.Matern12(lengthscale=0.5)  # on this grid, with residuals that are held jointly
SMOOTH = hg.Matern52(lengthscale=0.3)

pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")  # grids here are small on purpose


def points(rng: np.random.Generator, count: int, noise: float = 0.1) -> hg.Data:
    x = rng.uniform(size=(count, 2))
    return hg.observe(hg.Points(x), np.sin(5 * x[:, 0]) + noise * rng.standard_normal(count), noise=noise)


def noisy(rng: np.random.Generator, count: int) -> hg.Data:
    """Points for which the grid is fine enough even for the rough kernel: to search for a finer one takes seconds."""
    return points(rng, count, noise=0.5)


def lines(rng: np.random.Generator, count: int) -> hg.Data:
    start, end = rng.uniform(size=(2, count, 2))
    return hg.observe(hg.LineIntegrals(start, end), rng.standard_normal(count), noise=0.3)


def slopes(rng: np.random.Generator, count: int) -> hg.Data:
    x = rng.uniform(size=(count, 2))
    return hg.observe(hg.Derivatives(x, axis=0), rng.standard_normal(count), noise=0.5)


def mixed(rng: np.random.Generator, count: int) -> hg.Data:
    return points(rng, count // 2) + slopes(rng, count // 2)


CASES = {
    "points": (points, SMOOTH, hg.Batch(space="data")),
    "crowded points": (points, SMOOTH, hg.Batch(space="data", stencil=2)),
    "points on the grid": (points, SMOOTH, hg.Batch(space="grid")),
    "joint residuals": (noisy, ROUGH, hg.Batch()),
    "lines": (lines, SMOOTH, hg.Batch(space="data")),
    "slopes": (slopes, SMOOTH, hg.Batch(space="data")),
    "mixed": (mixed, SMOOTH, hg.Batch(space="data")),
}
QUICK = ("joint residuals",)


def fit(case: str, seed: int, count: int) -> None:
    make, kernel, method = CASES[case]
    rng = np.random.default_rng(seed)
    post = hg.GP(kernel, GRID).condition(make(rng, count), method, progress=False)
    assert (post.diagnostics["residual"] == "joint") == (case == "joint residuals")
    places = hg.Points(rng.uniform(size=(20, 2)))
    post.predict(places, std="vecchia", progress=False)
    post.sample(2, key=seed, at=places, progress=False)


@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_new_data_of_one_shape_find_their_programs_compiled(case: str, compilations: list[str]):
    """After ten fits of other data, ten more with their predictions and draws compile nothing."""
    for seed in range(10):
        fit(case, seed, 400)
    assert compilations
    compilations.clear()
    for seed in range(10, 20):
        fit(case, seed, 400)
    assert not compilations


def resident() -> int:
    """Bytes of this process in memory, without those that the C library keeps for later."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("case", ["points", "lines"])
def test_memory_is_flat_over_two_hundred_fits(case: str):
    for seed in range(10):
        fit(case, seed, 1500)
    before = resident()
    for seed in range(10, 200):
        fit(case, seed, 1500)
    assert resident() < 1.05 * before
