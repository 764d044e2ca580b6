"""Nearest-neighbour conditionals: exact with all predecessors, the right neighbours, and gradients written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import batch_problem as problem
import dense
from batch_problem import DENSE_KERNEL, KERNEL
from hipgp.model.data import observe
from hipgp.model.functionals import Derivatives, LineIntegrals, Points
from hipgp.model.kernels import Matern32, RationalQuadratic
from hipgp.model.nodes import Nodes, Segments
from hipgp.vecchia import conditioning_sets as neighbours
from hipgp.vecchia import factor as vecchia
from hipgp.vecchia import group_covariances as coarse
from hipgp.weights.covariance import gram, prior_variances


@pytest.mark.parametrize("group", [1, 5])
@pytest.mark.parametrize("kinds", [("points",), ("points", "derivatives", "rays", "own")])
def test_all_predecessors_make_the_factor_exact(kinds, group):
    """Of the observations' functionals with the few nodes that the factor gives each of them."""
    data, *_, std = problem.mixture(kinds, count=12)
    f = problem.twin(coarse.coarse_data_nodes(data, KERNEL))
    exact = dense.covariance(DENSE_KERNEL, f, f) + np.diag(std**2)
    found = vecchia.vecchia_factor(
        KERNEL, vecchia.choose_conditioning_sets(KERNEL, data, len(data) - 1, group), std**2
    )
    s = np.asarray(found.factor.matmul(jnp.eye(len(data)))).T
    s = s[np.any(s != 0, axis=1)]  # without those that fill up a group
    assert s.shape == exact.shape
    np.testing.assert_allclose(s @ exact @ s.T, np.eye(len(data)), atol=1e-9)
    np.testing.assert_allclose(found.log_determinant, np.linalg.slogdet(exact)[1], rtol=1e-9)
    if kinds == ("points",):
        np.testing.assert_allclose(s.T @ s, np.linalg.inv(exact), rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.precondition(jnp.asarray(exact)), np.eye(len(data)), atol=1e-9)


@pytest.mark.parametrize(
    ("count", "size", "k"), [(1, 1, 5), (2, 1, 5), (150, 1, 10), (150, 4, 10), (300, 7, 1)]
)
def test_groups_hold_everyone_once_after_those_they_are_conditioned_on(count, size, k):
    rng = np.random.default_rng(size)
    ends = rng.uniform(size=(count, 2))
    nodes = LineIntegrals(np.zeros(2), ends).nodes(1.0)
    found = neighbours.ordered_groups(nodes, ends, size, k)
    own, mine = found.index[:, -found.group_size :], found.used[:, -found.group_size :]
    assert found.group_size == size and np.array_equal(np.sort(own[mine]), np.arange(count))
    seen, length = np.zeros(count, bool), np.linalg.norm(ends, axis=1)
    means = [length[row[used]].mean() for row, used in zip(own, mine, strict=True)]
    assert np.all(np.diff(means) >= 0)
    for g, row in enumerate(own):
        near = found.index[g, : -found.group_size][found.used[g, : -found.group_size]]
        assert np.all(seen[near]) and len(set(near)) == len(near) == min(k, seen.sum())
        middle = ends[row[mine[g]]].mean(axis=0)
        distance = np.sort(np.linalg.norm(ends[seen] - middle, axis=1))[:k]
        np.testing.assert_allclose(np.sort(np.linalg.norm(ends[near] - middle, axis=1)), distance)
        seen[row[mine[g]]] = True


@pytest.mark.parametrize(("count", "size", "axes"), [(1, 3, 2), (77, 10, 1), (500, 7, 2), (501, 32, 6)])
def test_groups_are_cut_along_their_widest_axis(count, size, axes):
    places = np.random.default_rng(count).uniform(size=(count, axes)) * np.arange(1, axes + 1)

    def halved(rows, groups):
        if groups == 1:
            return [tuple(sorted(rows))]
        widest = np.argmax(np.ptp(places[rows], axis=0))
        rows, cut = rows[np.argsort(places[rows, widest])], round(len(rows) * (groups // 2) / groups)
        return halved(rows[:cut], groups // 2) + halved(rows[cut:], groups - groups // 2)

    found = [tuple(sorted(rows)) for rows in neighbours.bisected_groups(places, size)]
    assert sorted(found) == sorted(halved(np.arange(count), -(-count // size)))
    assert max(map(len, found)) <= size


def test_many_observations_at_one_place_have_distinct_predecessors():
    places = np.concatenate([np.zeros((200, 2)), np.ones((200, 2))])
    found = neighbours.ordered_groups(Points(places).nodes(1.0), places, 1, 10)
    assert all(len(set(row[used])) == used.sum() for row, used in zip(found.index, found.used, strict=True))


def test_rays_of_two_sets_are_found_by_their_ends():
    """Sets of different numbers of nodes are padded; a padded ray must keep both its ends."""
    short, long = (LineIntegrals(np.zeros(2), end * problem.places(3)) for end in (0.05, 5.0))
    nodes = Nodes.concatenate([coarse.coarse_nodes(f, KERNEL) for f in (short, long)])
    assert nodes.x.shape[1] > coarse.coarse_nodes(short, KERNEL).x.shape[1]
    ends = neighbours.location_features(nodes, Matern32())[:, -2:]
    assert np.all(np.linalg.norm(ends[:24] - short.end, axis=1) < 0.2 * short.length)


TWO = Matern32(0.7, 0.4) + RationalQuadratic(0.5, 0.9, 2.0)


def test_covariances_of_points_are_those_of_any_functional():
    """With weights of their own, and some that are not used."""
    rng = np.random.default_rng(3)
    x, weights = rng.uniform(size=(6, 1, 2)), rng.uniform(0.5, 2.0, (6, 1))
    nodes, noise = jax.tree.map(jnp.asarray, Nodes(x, weights)), jnp.asarray(rng.uniform(0.1, 1.0, 6))
    index, used = (
        jnp.asarray([[0, 1, 2, 5], [3, 4, 5, 0]]),
        jnp.asarray([[True] * 4, [False, True, True, True]]),
    )
    found = coarse.group_covariances(TWO, nodes, noise, index, used)
    others = gram(TWO, coarse._gather_groups(nodes, index))
    for t in range(2):
        truth = np.where(np.outer(used[t], used[t]), others[:, :, t], 0.0)
        truth += np.diag(np.where(used[t], noise[index[t]], 1.0))
        np.testing.assert_allclose(found[t], truth, rtol=1e-12)


def test_a_kind_of_line_with_nodes_of_its_own_keeps_them():
    class Halved(LineIntegrals):
        def nodes(self, spacing):
            whole = super().nodes(spacing)
            return Nodes(whole.x, whole.weights / 2)

    rays = Halved((0.0, 0.0), np.random.default_rng(1).uniform(size=(5, 2)))
    found = coarse.coarse_data_quadrature(observe(rays, np.zeros(5)), TWO, 9)
    assert isinstance(found, Nodes)
    np.testing.assert_allclose(np.sum(found.weights, axis=1), rays.length / 2, rtol=1e-13)


def test_lines_of_somewhat_other_lengths_have_as_many_nodes():
    """Programs for the longest line of 7.8 or 9.3 half lengthscales serve both; a number that the user gives is kept."""
    size = lambda length, **how: (
        coarse.coarse_nodes(
            LineIntegrals((0.0, 0.0), [[length, 0.0]], **how), Matern32(lengthscale=0.3)
        ).rule_size
    )
    assert size(1.17) == size(1.28) == size(1.40) == 12
    assert size(0.29) == 3 and size(0.7) == 6
    assert size(5.0) == coarse.MOST_NODES
    assert size(1.17, nodes_per_ray=7) == 7


@pytest.mark.parametrize("average", [False, True])
def test_lines_need_not_be_spelt_out(average):
    """Their covariances, features and order are those of their nodes; so are those of some more, which fill up."""
    rng = np.random.default_rng(2)
    data = observe(LineIntegrals(*rng.uniform(size=(2, 40, 3)), average=average), np.zeros(40))
    lines, nodes = coarse.coarse_data_quadrature(data, TWO, 4), coarse.coarse_data_nodes(data, TWO, 4)
    assert isinstance(lines, Segments) and len(lines) == 40 and lines.rule_size == nodes.rule_size == 4
    rays = data.blocks[0].functional
    np.testing.assert_allclose(np.sum(nodes.weights, axis=1), 1.0 if average else rays.length, rtol=1e-13)
    plenty, fine = coarse.coarse_data_nodes(data, TWO, 99), rays.nodes(0.4)
    np.testing.assert_allclose(plenty.x, fine.x, rtol=1e-13)
    np.testing.assert_allclose(plenty.weights, fine.weights, rtol=1e-13)
    np.testing.assert_allclose(
        neighbours.location_features(lines, Matern32()),
        neighbours.location_features(nodes, Matern32()),
        rtol=1e-13,
    )
    np.testing.assert_array_equal(lines.heaviest().x, nodes.heaviest().x)
    index, used = jnp.asarray(rng.permutation(40)[:12].reshape(3, 4)), jnp.ones((3, 4), bool)
    own = [coarse.group_covariances(TWO, n.filled_up(50), jnp.ones(40), index, used) for n in (lines, nodes)]
    np.testing.assert_allclose(*own, rtol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        (KERNEL, "derivatives"),
        (TWO, "rays"),
        *(
            pytest.param(*both, marks=pytest.mark.slow)
            for both in [(KERNEL, "points"), (KERNEL, "rays"), (TWO, "points"), (TWO, "derivatives")]
        ),
    ],
    ids=[
        "single, derivatives",
        "sum, rays",
        "single, points",
        "single, rays",
        "sum, points",
        "sum, derivatives",
    ],
)
def test_gram_and_its_gradient(kind, kernel):
    functional, twin = problem.pair(kind, 0, 6)
    nodes = Nodes.concatenate([coarse.coarse_nodes(functional, kernel)])
    index = jnp.asarray([[0, 1, 2, 5], [3, 4, 5, 0]])
    group = coarse._gather_groups(jax.tree.map(jnp.asarray, nodes), index)
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


@pytest.mark.parametrize(("kind", "size"), [("points", 1), ("points", 4), ("rays", 5)])
def test_with_every_observation_near_the_conditional_is_the_exact_one(kind, size):
    """Variance and what the data say, in groups of any size, the last one not full."""
    data, _, y, std = problem.mixture((kind,))
    functional, _ = problem.pair(kind, 90, 11)
    nodes, targets = (coarse.coarse_nodes(g, KERNEL) for g in (data.blocks[0].functional, functional))
    of_data, of_targets = nodes.x[:, -1], targets.x[:, -1]
    groups = neighbours.target_groups(of_data, of_targets, size, len(y))
    found = vecchia.conditionals(KERNEL, nodes, std**2, targets, groups)
    truth = dense.exact_gp(DENSE_KERNEL, problem.twin(nodes), y, std, problem.twin(targets))
    np.testing.assert_allclose(np.sqrt(found.variance), truth.std, rtol=1e-8)
    assert np.max(np.abs(found.mean(y) - truth.mean) / truth.std) < 1e-7
    whole = found.mean(np.stack([y, 2 * y]))
    np.testing.assert_allclose(whole, np.stack([found.mean(y), 2 * found.mean(y)]), rtol=1e-10)


def test_the_nearest_are_near():
    rng = np.random.default_rng(3)
    x, targets = rng.uniform(size=(60, 2)), rng.uniform(size=(13, 2))
    found = neighbours.target_groups(x, targets, 1, 6)
    for row in found.index:
        distance = np.linalg.norm(x - targets[row[-1] - 60], axis=1)
        np.testing.assert_array_equal(np.sort(row[:-1]), np.sort(np.argsort(distance)[:6]))


def test_targets_may_be_the_same():
    data, _, y, std = problem.mixture(("points",))
    x = np.repeat(problem.places(90, 5), 3, axis=0)
    nodes, targets = (coarse.coarse_nodes(g, KERNEL) for g in (data.blocks[0].functional, Points(x)))
    groups = neighbours.target_groups(nodes.x[:, 0], x, 8, len(y))
    found = vecchia.conditionals(KERNEL, nodes, std**2, targets, groups)
    assert np.all(np.isfinite(found.variance)) and np.all(found.variance > 0)
    np.testing.assert_allclose(found.variance[::3], found.variance[1::3], rtol=1e-9)


def test_on_a_line_neighbours_come_from_both_sides():
    """In a gap, and at the ends, where there is but one."""
    places = np.concatenate([np.linspace(0, 1, 50), np.linspace(3, 4, 40)])[::-1, None]
    found = neighbours.target_groups(places, np.array([[1.2], [-1.0], [2.9]]), 1, 10)
    near = np.sort(places[found.index[:, :10], 0], axis=1)
    np.testing.assert_array_equal(np.sum(near < 2, axis=1), [5, 10, 5])
    np.testing.assert_allclose(near[1], np.linspace(0, 1, 50)[:10])


def test_covariances_in_float32_make_the_same_preconditioner_where_noise_hides_rounding(monkeypatch):
    rng = np.random.default_rng(0)
    end = rng.uniform(0, 1, (300, 2))
    data = observe(LineIntegrals(np.zeros(2), end), np.zeros(300))
    kernel = Matern32(1.3, 0.2)
    nodes = coarse.coarse_data_nodes(data, kernel)
    for noise, rough in ((1e-3, True), (1e-6, False)):
        assert vecchia._in_float32(kernel, nodes, np.full(300, noise)) is rough
    values = Points(end).nodes(0.1)
    assert not vecchia._in_float32(kernel, values, np.full(300, 1.0))  # one node each: nothing to gain
    slopes = Nodes.concatenate([nodes, Derivatives(end).nodes(0.1)])
    assert not vecchia._in_float32(kernel, slopes, np.full(600, 1.0))
    r = rng.standard_normal(300)
    least = 2.1e-4 * float(np.max(prior_variances(kernel, nodes)))
    near = vecchia.choose_conditioning_sets(kernel, data)
    found = vecchia.vecchia_factor(kernel, near, np.full(300, least))
    monkeypatch.setattr(vecchia, "_in_float32", lambda *given: False)
    exact = vecchia.vecchia_factor(kernel, near, np.full(300, least))
    closely = np.asarray(exact.precondition(jnp.asarray(r)))
    np.testing.assert_allclose(found.precondition(jnp.asarray(r)), closely, atol=0.02 * np.abs(closely).max())
    np.testing.assert_allclose(found.log_determinant, exact.log_determinant, rtol=1e-4)
