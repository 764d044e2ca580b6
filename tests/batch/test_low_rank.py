"""The low-rank preconditioner: its algebra against dense matrices, when it is taken, and that it changes steps alone."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import batch_problem as problem
import hipgp as hg
from hipgp.batch.low_rank import crossing
from hipgp.batch.systems import DataSystem

pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")

LOW_RANK = hg.Batch(preconditioner="low-rank")
VECCHIA = hg.Batch(preconditioner="vecchia")
SQUARE = hg.Grid.cover((-0.05, -0.05), (1.05, 1.05), shape=(36, 36))
CUBE = hg.Grid.cover((-0.05,) * 3, (1.05,) * 3, shape=(14, 14, 14))


def chords(count, ndim=2, lengthscale=0.4, seed=0, grid=None, dtype=np.float64):
    """Averages along lines between random places, of a field with this lengthscale, with noise a third of their std."""
    rng = np.random.default_rng(seed)
    kernel = hg.Matern32(1.0, lengthscale)
    lines = hg.LineIntegrals(*rng.uniform(0, 1, (2, count, ndim)).astype(dtype), average=True)
    data = hg.observe(lines, rng.normal(size=count).astype(dtype), noise=0.15)
    return hg.GP(kernel, grid or (SQUARE if ndim == 2 else CUBE)), data


def fitted(gp, data, method=LOW_RANK):
    return gp.condition(data, method, progress=False)


def dense_system(post):
    """A, P^-1 and S' of a posterior's system."""
    system = post.engine.system
    assert isinstance(system, DataSystem)
    eye = jnp.eye(len(system.noise))
    return tuple(np.asarray(f(eye)).T for f in (system.matmul, system.precondition, system.root_transpose))


@pytest.mark.parametrize(("ndim", "count"), [(2, 150), pytest.param(3, 150, marks=pytest.mark.slow)])
def test_it_is_the_inverse_of_the_noise_plus_a_positive_matrix(ndim, count):
    post = fitted(*chords(count, ndim))
    a, inverse, root = dense_system(post)
    noise = np.asarray(post.engine.system.noise)
    p = np.linalg.inv(inverse)
    np.testing.assert_allclose(inverse, inverse.T, rtol=0, atol=1e-10 * inverse.max())
    np.testing.assert_allclose(root @ root.T, inverse, rtol=0, atol=1e-10 * inverse.max())
    low_rank = np.linalg.eigvalsh((p - np.diag(noise)) / np.sqrt(np.outer(noise, noise)))
    columns = int(post.diagnostics["preconditioner"].split()[1])
    assert low_rank[0] > -1e-8 and np.sum(low_rank > 1e-8) == columns <= count // 2
    logs = post.engine.system.whitener_log_determinant
    np.testing.assert_allclose(logs, np.linalg.slogdet(p)[1], rtol=1e-9)
    plain = np.linalg.eigvalsh(a / np.sqrt(np.outer(noise, noise)))
    left = np.linalg.eigvalsh(root.T @ a @ root)
    assert 0.5 < left[0] and left[-1] < plain[-1] / 20


def test_on_the_grid_itself_nothing_is_left_below_the_noise():
    """No coarser grid: what the factor leaves of W K W' is positive, and at most its trace."""
    post = fitted(*chords(150, lengthscale=0.1))
    a, inverse, root = dense_system(post)
    left = np.linalg.eigvalsh(root.T @ a @ root)
    assert left[0] > 1 - 1e-8
    told = float(re.search("leave ([^ ]*) noise", post.diagnostics["decisions"]["preconditioner"])[1])
    noise = np.asarray(post.engine.system.noise)
    of_diagonal = np.mean(np.diag(a - np.linalg.inv(inverse)) / noise)
    missed = np.mean(np.asarray(post.engine.system.weights.residual) / noise)
    assert told == pytest.approx(of_diagonal + missed, rel=0.03)  # told in two digits


@pytest.mark.parametrize("kinds", [("rays",), ("rays", "points", "derivatives")])
def test_the_posterior_is_the_dense_one_and_the_certificate_holds(kinds):
    data, _, y, _ = problem.mixture(kinds)
    gp = hg.GP(problem.KERNEL, problem.GRID, trend="constant")
    post = fitted(gp, data)
    assert problem.true_kl(post) <= post.diagnostics["kl_nats"] <= 0.01
    tight = fitted(gp, data, hg.Batch(preconditioner="low-rank", tolerance=1e-10))
    w, k, noise, x = problem.matrices(tight)
    a = w @ k @ w.T + noise
    beta = np.linalg.solve(x.T @ np.linalg.solve(a, x), x.T @ np.linalg.solve(a, y))
    mean = k @ w.T @ np.linalg.solve(a, y - x @ beta) + beta
    np.testing.assert_allclose(tight.mean.ravel(), mean, rtol=0, atol=1e-5 * np.ptp(mean))


def test_similar_data_find_its_programs_compiled(compilations):
    """Factors of a few more or fewer columns, made of pieces of any number of them, compile nothing."""
    columns = set()
    for seed in range(7):
        if seed == 4:
            compilations.clear()
        post = fitted(*chords(300, seed=seed))
        columns.add(post.diagnostics["preconditioner"])
    assert len(columns) > 2
    assert not [name for name in compilations if re.search("_product|_begin|_advance|_refined", name)]


@pytest.mark.parametrize("ndim", [2, pytest.param(3, marks=pytest.mark.slow)])  # compiles as long
def test_crossing_lines_take_it_and_fewer_steps(ndim):
    gp, data = chords(1100, ndim)
    assert crossing(data, gp.kernel)
    post = fitted(gp, data, hg.Batch())
    reason = post.diagnostics["decisions"]["preconditioner"]
    told = re.match(
        r"low-rank, (\d+) columns: the observations are long and cross, \d+ columns leave 0", reason
    )
    assert told
    other = fitted(gp, data, hg.Batch(preconditioner="vecchia", neighbours=int(told[1])))  # at an equal price
    assert post.diagnostics["iterations"] < 0.6 * other.diagnostics["iterations"]
    np.testing.assert_allclose(post.mean, other.mean, rtol=0, atol=0.02 * np.ptp(other.mean))


def test_where_too_much_is_left_vecchia_is_taken_and_the_reason_says_so():
    gp, data = chords(1100, lengthscale=0.04)
    data = hg.observe(data.blocks[0].functional, data.y, noise=0.005)
    reason = fitted(gp, data, hg.Batch()).diagnostics["decisions"]["preconditioner"]
    assert re.match("Vecchia, .*cross, but 550 columns leave .* more than the 0.3 up to", reason)


def test_what_crosses():
    kernel, rng = hg.Matern32(1.0, 0.3), np.random.default_rng(1)
    end = rng.uniform(0, 1, (1100, 2))
    observed = lambda f: hg.observe(f, np.zeros(len(f)), noise=0.1)
    assert crossing(observed(hg.LineIntegrals(end, end[::-1])), kernel)
    assert not crossing(observed(hg.LineIntegrals(end[:1000], end[100:])), kernel)  # few
    assert not crossing(observed(hg.LineIntegrals(np.zeros(2), end)), kernel)  # from one place
    assert not crossing(observed(hg.LineIntegrals(end, end[::-1])), hg.Matern32(1.0, 3.0))  # short
    assert not crossing(observed(hg.LineIntegrals(end, end[::-1])), hg.Matern32(1.0, 0.02))  # of 2,500 cells
    assert not crossing(observed(hg.Points(end)), kernel)


def test_it_is_the_same_each_time_and_a_saved_map_finds_it_again(tmp_path):
    gp, data = chords(200)
    post = fitted(gp, data)
    again = fitted(gp, data)
    arrays = [p.engine.system.preconditioner.inner.vectors for p in (post, again)]
    np.testing.assert_array_equal(*arrays)
    post.save(tmp_path / "map.nc")
    loaded = hg.load(tmp_path / "map.nc")
    at = hg.LineIntegrals(np.full((3, 2), 0.1), np.array([[0.9, 0.2], [0.5, 0.9], [0.9, 0.9]]))
    for how in ("exact", "samples"):
        one, other = (p.predict(at, std=how) for p in (post, loaded))
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9)
        np.testing.assert_allclose(one.std, other.std, rtol=1e-6)
    assert loaded.diagnostics["preconditioner"].startswith("low-rank")


def test_the_evidence_and_its_gradient_are_the_dense_ones():
    gp, data = chords(150)
    post = fitted(gp, data, hg.Batch(preconditioner="low-rank", tolerance=1e-10))
    a, _, _ = dense_system(post)
    y = np.asarray(post.engine.data.y)
    truth = -0.5 * (y @ np.linalg.solve(a, y) + np.linalg.slogdet(a)[1] + len(y) * np.log(2 * np.pi))
    found = post.log_evidence(probes=32)
    assert abs(found.value - truth) < 4 * found.error < 1.0
    gradients = [fitted(gp, data, m).log_evidence_gradient(probes=64) for m in (LOW_RANK, VECCHIA)]
    np.testing.assert_allclose(gradients[0].values, gradients[1].values, rtol=0.02)


def test_in_float32():
    gp, data = chords(300, dtype=np.float32)
    post, exact = fitted(gp, data), fitted(*chords(300))
    assert post.engine.system.preconditioner.scale.dtype == np.float32
    assert post.diagnostics["converged"]
    assert post.diagnostics["iterations"] <= exact.diagnostics["iterations"] + 2
    np.testing.assert_allclose(post.mean, exact.mean, rtol=0, atol=0.01 * np.ptp(exact.mean))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"preconditioner": "low rank"}, "preconditioner: expected one of .*got 'low rank'"),
        ({"preconditioner": "low-rank", "neighbours": 9}, 'neighbours: expected None with .*low-rank.*got 9'),
        ({"preconditioner": "vecchia", "space": "grid"}, 'preconditioner: expected "auto" with space="grid"'),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(settings, words):
    with pytest.raises(ValueError, match=words):
        hg.Batch(**settings)
