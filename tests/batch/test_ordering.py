"""Data along a curve: the same data, and the same posterior."""

import numpy as np

import hipgp as hg
from hipgp.batch.ordering import in_order

GRID = hg.Grid.cover((0, 0), (1, 1), shape=(12, 12))


def mixed(rng):
    x, start, end = rng.uniform(size=(3, 50, 2))
    values = hg.observe(hg.Points(x), x[:, 0], rng.uniform(0.1, 0.5, 50))
    return values + hg.observe(hg.LineIntegrals(start, end), start[:, 1])


def test_each_observation_keeps_its_place_value_and_noise():
    data = mixed(np.random.default_rng(0))
    found, order = in_order(data)
    assert not np.array_equal(order, np.arange(100)) and np.array_equal(np.sort(order), np.arange(100))
    np.testing.assert_array_equal(found.y, data.y[order])
    np.testing.assert_array_equal(found.noise_std(0.3), data.noise_std(0.3)[order])
    for block, of in zip(found.blocks, ("x", "start"), strict=True):
        np.testing.assert_array_equal(block.y, block.functional.places()[:, 0, 0 if of == "x" else 1])


def test_neighbours_in_memory_are_neighbours_in_space():
    x = np.random.default_rng(1).uniform(size=(1000, 2))
    found = in_order(hg.observe(hg.Points(x), x[:, 0]))[0].blocks[0].functional.places()[:, 0]
    apart = lambda at: np.median(np.linalg.norm(np.diff(at, axis=0), axis=1))
    assert apart(found) < 0.1 * apart(x)


def test_the_posterior_does_not_depend_on_the_order_of_the_data():
    """With noise and trend columns of each observation's own."""
    rng = np.random.default_rng(2)
    x, noise, columns = rng.uniform(size=(60, 2)), rng.uniform(0.1, 0.5, 60), rng.normal(size=(60, 2))
    y = np.sin(5 * x[:, 0]) + columns @ [2.0, -1.0] + noise * rng.standard_normal(60)
    found = []
    for order in (np.arange(60), rng.permutation(60)):
        data = hg.observe(hg.Points(x[order]), y[order], noise[order])
        gp = hg.GP(hg.Matern32(1.0, 0.3), GRID, trend=columns[order])
        found.append(gp.condition(data, hg.Batch(tolerance=1e-10)))
    np.testing.assert_allclose(found[0].mean, found[1].mean, atol=1e-6)
    np.testing.assert_allclose(found[0].engine.beta, found[1].engine.beta, atol=1e-6)


def test_a_kind_that_cannot_reorder_itself_stays_as_it_is():
    class Mine(hg.Points):
        pass

    x = np.random.default_rng(3).uniform(size=(20, 2))
    found, order = in_order(hg.observe(Mine(x), x[:, 0]))
    assert type(found.blocks[0].functional) is Mine
    np.testing.assert_array_equal(order, np.arange(20))
