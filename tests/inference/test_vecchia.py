"""Nearest-neighbour conditionals: exact with all predecessors, the right neighbours, and gradients written by hand."""

import batch_problem as problem
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batch_problem import DENSE_KERNEL, KERNEL

import dense
from hipgp import neighbours, vecchia
from hipgp.covariance import gram
from hipgp.functionals import LineIntegrals, Nodes, Points
from hipgp.kernels import Matern12, Matern32, RationalQuadratic


@pytest.mark.parametrize("group", [1, 5])
@pytest.mark.parametrize("kinds", [("points",), ("points", "derivatives", "rays", "own")])
def test_all_predecessors_make_the_factor_exact(kinds, group):
    data, f, _, std = problem.mixture(kinds, count=12)
    exact = dense.covariance(DENSE_KERNEL, f, f) + np.diag(std**2)
    found = vecchia.preconditioner(KERNEL, data, std**2, k=len(data) - 1, group=group)
    s = np.asarray(found.factor.matmul(jnp.eye(len(data)))).T
    s = s[np.any(s != 0, axis=1)]  # without those that fill up a group
    assert s.shape == exact.shape
    np.testing.assert_allclose(s @ exact @ s.T, np.eye(len(data)), atol=0.03)  # few nodes to a ray: nearly
    assert abs(found.log_determinant - np.linalg.slogdet(exact)[1]) < 0.03
    if kinds == ("points",):
        np.testing.assert_allclose(s.T @ s, np.linalg.inv(exact), rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.precondition(jnp.asarray(exact)), np.eye(len(data)), atol=1e-9)


@pytest.mark.parametrize(("count", "k"), [(1, 5), (2, 5), (5, 10), (300, 1), (300, 7)])
def test_predecessors_are_the_nearest_of_those_before(count, k):
    rng = np.random.default_rng(count)
    places, order = rng.normal(size=(count, 2)), rng.permutation(count)
    found = neighbours.predecessors(places, order, k)
    for rank, i in enumerate(order):
        before = order[:rank]
        distance = np.sort(np.linalg.norm(places[before] - places[i], axis=1))[:k]
        mine = found.index[i][found.used[i]]
        assert set(mine) <= set(before) and len(mine) == len(distance) == len(set(mine))
        np.testing.assert_allclose(np.sort(np.linalg.norm(places[mine] - places[i], axis=1)), distance)


@pytest.mark.parametrize("size", [1, 4, 7])
def test_groups_hold_everyone_once_after_those_they_are_conditioned_on(size):
    rng = np.random.default_rng(size)
    ends = rng.uniform(size=(150, 2))
    nodes = LineIntegrals(np.zeros(2), ends).nodes(1.0)
    found = neighbours.in_groups(nodes, ends, size, 10)
    own, mine = found.index[:, -found.own :], found.used[:, -found.own :]
    assert found.own == size and np.array_equal(np.sort(own[mine]), np.arange(150))
    seen, length = np.zeros(150, bool), np.linalg.norm(ends, axis=1)
    means = [length[row[used]].mean() for row, used in zip(own, mine, strict=True)]
    assert np.all(np.diff(means) >= 0)
    for g, row in enumerate(own):
        near = found.index[g, : -found.own][found.used[g, : -found.own]]
        assert np.all(seen[near]) and len(set(near)) == len(near) == min(10, seen.sum())
        middle = ends[row[mine[g]]].mean(axis=0)
        distance = np.sort(np.linalg.norm(ends[seen] - middle, axis=1))[:10]
        np.testing.assert_allclose(np.sort(np.linalg.norm(ends[near] - middle, axis=1)), distance)
        seen[row[mine[g]]] = True


def test_many_observations_at_one_place_have_distinct_predecessors():
    places = np.concatenate([np.zeros((200, 2)), np.ones((200, 2))])
    found = neighbours.predecessors(places, np.random.default_rng(0).permutation(400), 10)
    assert all(len(set(row[used])) == used.sum() for row, used in zip(found.index, found.used, strict=True))


def test_rays_of_two_sets_are_found_by_their_ends():
    """Sets of different numbers of nodes are padded; a padded ray must keep both its ends."""
    short, long = (LineIntegrals(np.zeros(2), end * problem.places(3)) for end in (0.05, 5.0))
    nodes = Nodes.concatenate([vecchia.coarse_nodes(f, KERNEL) for f in (short, long)])
    assert nodes.x.shape[1] > vecchia.coarse_nodes(short, KERNEL).x.shape[1]
    ends = neighbours.features(nodes, np.ones(2))[:, -2:]
    assert np.all(np.linalg.norm(ends[:24] - short.end, axis=1) < 0.2 * short.length)


def test_last_given_others_and_its_gradient():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 5, 5))
    matrix = jnp.asarray(root @ root.swapaxes(1, 2) + 0.1 * np.eye(5))
    b, d = vecchia.last_given_others(matrix)
    for i in range(3):
        c = np.asarray(matrix[i])
        np.testing.assert_allclose(b[i], np.linalg.solve(c[:4, :4], c[:4, 4]), rtol=1e-10)
        np.testing.assert_allclose(d[i], c[4, 4] - c[4, :4] @ b[i], rtol=1e-10)
    probes = jnp.asarray(rng.normal(size=(3, 4))), jnp.asarray(rng.normal(size=3))
    plain = lambda m: (
        jnp.linalg.solve(m[:, :4, :4], m[:, :4, 4:])[..., 0],
        m[:, 4, 4]
        - jnp.einsum("tk,tk->t", m[:, 4, :4], jnp.linalg.solve(m[:, :4, :4], m[:, :4, 4:])[..., 0]),
    )
    sums = lambda f: lambda m: sum(jnp.sum(p * o) for p, o in zip(probes, f(m), strict=True))
    both = lambda g: (
        (g + g.swapaxes(1, 2)) / 2
    )  # a covariance is symmetric: only this part of the gradient counts
    own, auto = (jax.grad(sums(f))(matrix) for f in (vecchia.last_given_others, plain))
    np.testing.assert_allclose(both(own), both(auto), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["points", "derivatives", "rays"])
@pytest.mark.parametrize(
    "kernel", [KERNEL, Matern32(0.7, 0.4) + RationalQuadratic(0.5, 0.9, 2.0)], ids=["single", "sum"]
)
def test_gram_and_its_gradient(kind, kernel):
    functional, twin = problem.pair(kind, 0, 6)
    nodes = Nodes.concatenate([vecchia.coarse_nodes(functional, kernel)])
    index = jnp.asarray([[0, 1, 2, 5], [3, 4, 5, 0]])
    group, _ = vecchia.gathered(jax.tree.map(jnp.asarray, nodes), jnp.zeros(6), index)
    found = gram(kernel, group)
    if kernel is KERNEL:
        for target, rows in enumerate(([0, 1, 2, 5], [3, 4, 5, 0])):
            truth = dense.covariance(DENSE_KERNEL, twin.rows(rows), twin.rows(rows))
            np.testing.assert_allclose(found[:, :, target], truth, atol=1e-3 * np.max(np.abs(truth)))
    probe = jnp.asarray(np.random.default_rng(1).normal(size=found.shape))
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda a: jnp.asarray(a, float), kernel))
    value = lambda *a: jnp.sum(probe * gram(jax.tree.unflatten(structure, a), group))
    slopes = jax.grad(value, argnums=tuple(range(len(leaves))))(*leaves)
    for number, (leaf, slope) in enumerate(zip(leaves, slopes, strict=True)):
        for at in np.ndindex(leaf.shape):
            step = 1e-5 * jnp.zeros_like(leaf).at[at].set(1.0)
            move = lambda sign, n=number, s=step: value(*leaves[:n], leaves[n] + sign * s, *leaves[n + 1 :])
            np.testing.assert_allclose(slope[at], (move(1) - move(-1)) / 2e-5, rtol=1e-5, atol=1e-7)


def test_conditionals_do_not_depend_on_how_many_are_asked_for():
    x = problem.places(0, 40)
    nodes = vecchia.coarse_nodes(Points(x), KERNEL)
    targets = vecchia.coarse_nodes(Points(problem.places(1, 21)), KERNEL)
    near = neighbours.nearest(x, targets.x[:, 0], 6)
    noise = np.full(40, 0.01)
    whole = vecchia.conditionals(Matern12(), nodes, noise, targets, near)
    for i in (0, 20):
        one = neighbours.Neighbours(near.index[i : i + 1], near.used[i : i + 1])
        part = vecchia.conditionals(Matern12(), nodes, noise, targets[i : i + 1], one)
        np.testing.assert_allclose(part.coefficients[0], whole.coefficients[i], atol=1e-12)
        np.testing.assert_allclose(part.variance[0], whole.variance[i], rtol=1e-12)
