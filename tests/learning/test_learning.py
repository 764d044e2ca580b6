"""Learning: the likelihood and its gradient against the dense ones, recovery of known parameters, honest limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import batch_problem as problem
import dense
import hipgp as hg
from batch_problem import DENSE_KERNEL, GRID, KERNEL
from hipgp.learning import likelihood
from hipgp.learning.parameters import Layout, bounds

KINDS = [("points",), ("rays",), ("derivatives",), ("points", "rays")]


def objective(kinds, trend=None, count=12, noise_known=True):
    """-log p(y) per datum with every predecessor as neighbour, as a function of the log parameters."""
    data, _, y, std = problem.mixture(kinds, count=count)
    if not noise_known:
        data = hg.observe(data.blocks[0].functional, y)
        std = np.full(len(y), 0.1)
    columns = hg.GP(KERNEL, GRID, trend=trend).trend.of_data(data, GRID)
    terms = likelihood.prepare(KERNEL, data, columns, len(data), 0)
    nodes = terms.nodes[: len(data)]  # without those that fill up the program's size
    nodes = nodes.with_derivative_fields()  # few to a ray: the dense twin is given the same
    f = dense.Functional(*[np.asarray(a) for a in (nodes.x, nodes.weights, nodes.value, nodes.direction)])
    layout = Layout.of(KERNEL, not noise_known)
    at = lambda v: likelihood.evaluate(v, layout, terms)
    return at, layout.pack(KERNEL, 0.1), (f, y, std, columns)


@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
def test_with_all_neighbours_it_is_the_exact_likelihood(kinds):
    at, vector, (f, y, std, _) = objective(kinds)
    exact = dense.exact_gp(DENSE_KERNEL, f, y, std, dense.points(np.zeros((1, 2)))).objective
    assert abs(-len(y) * at(vector).value - exact) < 1e-6
    finest = problem.mixture(kinds, count=12)[1]
    true = dense.exact_gp(DENSE_KERNEL, finest, y, std, dense.points(np.zeros((1, 2)))).objective
    assert abs(-len(y) * at(vector).value - true) < 0.1  # nats, in all: what few nodes to a ray cost


def test_lines_of_unequal_weights_have_the_variance_of_all_their_nodes():
    """As the rounds give them with a link: what merging nodes adds to a variance is less than a noise of 7%."""
    kernel, count = dense.Matern32(1.0, (0.15, 0.15)), 40
    x = np.stack([np.linspace(0, 1.2, count), np.zeros(count)], axis=1)
    gram = dense.covariance(kernel, dense.points(x), dense.points(x))
    w = np.exp(np.linalg.cholesky(gram) @ np.random.default_rng(0).standard_normal((count, 5))).T
    data = hg.observe(hg.Functionals(np.tile(x, (5, 1, 1)), w), np.zeros(5), 0.1)
    nodes = likelihood.prepare(hg.Matern32(1.0, 0.15), data, np.zeros((5, 0)), 5, 0).nodes[:5]
    for at, c, whole in zip(np.asarray(nodes.x), np.asarray(nodes.weights), w, strict=True):
        seen = c @ dense.covariance(kernel, dense.points(at), dense.points(at)) @ c
        assert 1 - 1e-12 < seen / (whole @ gram @ whole) < 1.005


@pytest.mark.quick
def test_the_trend_is_profiled_out():
    at, vector, (f, y, std, x) = objective(("points",), trend="linear")
    a = dense.covariance(DENSE_KERNEL, f, f) + np.diag(std**2)
    beta = np.linalg.solve(x.T @ np.linalg.solve(a, x), x.T @ np.linalg.solve(a, y))
    rest = y - x @ beta
    exact = 0.5 * (rest @ np.linalg.solve(a, rest) + np.linalg.slogdet(a)[1] + len(y) * np.log(2 * np.pi))
    assert abs(len(y) * at(vector).value - exact) < 1e-6


@pytest.mark.quick
@pytest.mark.parametrize("kinds", KINDS[:3], ids="+".join)
def test_the_gradient_is_the_dense_one(kinds):
    at, vector, (f, y, std, _) = objective(kinds)

    def exact(v):
        kernel = dense.Matern52(np.exp(v[0]), tuple(np.exp(v[1:])))
        return -dense.exact_gp(kernel, f, y, std, dense.points(np.zeros((1, 2)))).objective / len(y)

    steps = 1e-5 * np.eye(len(vector))
    slopes = [(exact(vector + e) - exact(vector - e)) / 2e-5 for e in steps]
    np.testing.assert_allclose(at(vector).gradient, slopes, rtol=1e-5, atol=1e-7)


def test_the_gradient_in_the_noise_is_that_of_differences():
    at, vector, _ = objective(("points",), trend="constant", noise_known=False)
    value = lambda v: at(v).value
    assert len(vector) == 4
    found = at(vector).gradient
    for i, e in enumerate(1e-5 * np.eye(4)):
        np.testing.assert_allclose(
            found[i], (value(vector + e) - value(vector - e)) / 2e-5, rtol=1e-5, atol=1e-8
        )


@pytest.mark.quick
@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
def test_the_information_is_the_dense_one(kinds):
    """tr(A^-1 dA_a A^-1 dA_b) / 2, with the derivatives of the dense covariance by differences."""
    at, vector, (f, y, std, _) = objective(kinds)

    def covariance(v):
        kernel = dense.Matern52(np.exp(v[0]), tuple(np.exp(v[1:])))
        return dense.covariance(kernel, f, f) + np.diag(std**2)

    steps = 1e-5 * np.eye(len(vector))
    inverse = np.linalg.inv(covariance(vector))
    slopes = [inverse @ (covariance(vector + e) - covariance(vector - e)) / 2e-5 for e in steps]
    exact = np.array([[0.5 * np.sum(a * b.T) for b in slopes] for a in slopes]) / len(y)
    np.testing.assert_allclose(at(vector).information, exact, rtol=1e-6, atol=1e-8)


def test_the_information_in_the_noise():
    """Beside a trend, which tells nothing of it."""
    at, vector, (f, y, std, _) = objective(("points",), trend="constant", noise_known=False)
    inverse = np.linalg.inv(dense.covariance(DENSE_KERNEL, f, f) + np.diag(std**2))
    exact = 0.5 * np.sum((inverse * (2 * std**2)) * (inverse * (2 * std**2)).T) / len(y)
    assert at(vector).information[3, 3] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("own", [1, 3, 5])
def test_the_sums_of_groups(own):
    """Value, slopes and information of the last `own` given the others, against those of both less those of the others."""
    rng = np.random.default_rng(0)
    root, turn = rng.normal(size=(3, 6, 6)), rng.normal(size=(2, 3, 6, 6))
    matrix = jnp.asarray(root @ root.swapaxes(1, 2) + 0.1 * np.eye(6))
    slopes = [jnp.asarray(t + t.swapaxes(1, 2)) for t in turn]
    y = jnp.asarray(rng.normal(size=(3, 6, 1)))

    def deviance(v, k):
        moved = (matrix + v[0] * slopes[0] + v[1] * slopes[1])[:, :k, :k]
        return jnp.sum(y[:, :k] * jnp.linalg.solve(moved, y[:, :k])) + jnp.sum(jnp.linalg.slogdet(moved)[1])

    def information(a, b, k):
        first, second = (jnp.linalg.solve(matrix[:, :k, :k], slopes[i][:, :k, :k]) for i in (a, b))
        return 0.5 * jnp.sum(first * jnp.swapaxes(second, 1, 2))

    given = lambda f: f(6) - f(6 - own)
    logs, squares, traces, fit, found = likelihood._of_groups(matrix, slopes, y, own)
    np.testing.assert_allclose(logs + squares[0, 0], given(lambda k: deviance(jnp.zeros(2), k)), rtol=1e-10)
    gradient = given(lambda k: jax.grad(deviance)(jnp.zeros(2), k))
    np.testing.assert_allclose(traces - fit[:, 0, 0], gradient, rtol=1e-9)
    exact = [[given(lambda k, a=a, b=b: information(a, b, k)) for b in range(2)] for a in range(2)]
    np.testing.assert_allclose(found, exact, rtol=1e-9)


@pytest.mark.parametrize(
    ("kinds", "seeds"),
    [
        (("points",), 2),
        *(
            pytest.param(kinds, 12, marks=pytest.mark.slow)
            for kinds in (("points",), ("rays",), ("points", "rays"))
        ),
    ],
    ids=[
        "points",
        *(f"{kind}, many seeds" for kind in ("points", "rays", "both")),
    ],
)
def test_known_parameters_are_recovered_within_their_own_uncertainty(kinds, seeds):
    """The pull of each parameter: (log estimate - log truth) / stated std."""
    pulls = []
    for seed in range(seeds):
        gp = hg.GP(hg.Matern32(), hg.Grid.cover((0, 0), (1, 1), shape=(30, 30))).learn(
            _simulated(kinds, seed)
        )
        learned = gp.learned
        truth = np.log([0.8, 0.15] + [0.05] * ("noise" in learned.names))
        assert learned.undetermined == []
        pulls.append((np.log(learned.values) - truth) / learned.log_std)
    assert np.max(np.abs(pulls)) < 3.5
    # to two standard errors of the root of a mean of so many squares, parameters of one seed counted as one
    assert abs(np.sqrt(np.mean(np.square(pulls))) - 1.0) < 2 / np.sqrt(2 * seeds)


def test_the_stated_uncertainty_is_the_fisher_information_of_the_dense_model():
    """To a few percent: it is taken from the Vecchia likelihood."""
    data = _simulated(("points",), 0)
    learned = hg.GP(hg.Matern32(), hg.Grid.cover((0, 0), (1, 1), shape=(30, 30))).learn(data).learned
    f = dense.points(data.blocks[0].functional.x)

    def covariance(v):
        variance, lengthscale, noise = np.exp(v)
        return dense.covariance(dense.Matern32(variance, lengthscale), f, f) + noise**2 * np.eye(len(data))

    best, steps = np.log(learned.values), 1e-4 * np.eye(3)
    slopes = [(covariance(best + step) - covariance(best - step)) / 2e-4 for step in steps]
    solved = [np.linalg.solve(covariance(best), slope) for slope in slopes]
    information = [[0.5 * np.sum(a * b.T) for b in solved] for a in solved]
    expected, std = np.linalg.inv(information), np.sqrt(np.diag(np.linalg.inv(information)))
    np.testing.assert_allclose(learned.log_std, std, rtol=0.03)
    np.testing.assert_allclose(
        learned.log_covariance / np.outer(std, std), expected / np.outer(std, std), atol=0.05
    )
    assert abs(expected[0, 1]) > 0.5 * std[0] * std[1]  # variance and lengthscale go together


def _simulated(kinds, seed):
    """Matern32 with variance 0.8 and lengthscale 0.15; points have noise 0.05 (unknown when alone), rays 0.01."""
    rng = np.random.default_rng(seed)
    kernel = dense.Matern32(0.8, 0.15)
    count = 240 if kinds == ("points",) else 160 // len(kinds)
    x, end = rng.uniform(size=(count, 2)), rng.uniform(size=(count, 2))
    makers = {
        "points": (hg.Points(x), dense.points(x), 0.05, None if kinds == ("points",) else 0.05),
        "rays": (hg.LineIntegrals(x, end), dense.line_integrals(x, end, order=8, panels=3), 0.01, 0.01),
    }
    f = dense.concatenate(*[makers[k][1] for k in kinds])
    std = np.repeat([makers[k][2] for k in kinds], count)
    y = np.linalg.cholesky(dense.covariance(kernel, f, f) + np.diag(std**2)) @ rng.normal(size=len(std))
    blocks = [
        hg.observe(makers[k][0], y[i * count : (i + 1) * count], makers[k][3]) for i, k in enumerate(kinds)
    ]
    return blocks[0] if len(blocks) == 1 else blocks[0] + blocks[1]


def _series(count=150, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 1.0, count))
    return hg.observe(hg.Points(x), np.sin(9 * x) + 0.1 * rng.standard_normal(count))


LINE = hg.GP(hg.Matern32(), hg.Grid.cover(0.0, 1.0, shape=50))


@pytest.mark.quick
def test_learning_is_deterministic_and_follows_the_units():
    data = _series()
    first, second = LINE.learn(data, key=2).learned, LINE.learn(data, key=2).learned
    if jax.default_backend() == "cpu":
        np.testing.assert_array_equal(first.values, second.values)
    np.testing.assert_allclose(first.values, second.values, rtol=1e-9)  # a GPU adds up in any order
    scaled = hg.observe(hg.Points(1e6 * data.blocks[0].functional.x), 1e-5 * data.y)
    gp = hg.GP(hg.Matern32(), hg.Grid.cover(0.0, 1e6, shape=50)).learn(scaled, key=2)
    np.testing.assert_allclose(gp.learned.values, first.values * [1e-10, 1e6, 1e-5], rtol=0.02)


def _lattice():
    """Points of a lattice with gaps: many are equally near, and rounding must not say which is the nearer."""
    rng = np.random.default_rng(0)
    x = np.stack(np.meshgrid(np.arange(20.0), np.arange(17.0)), axis=-1).reshape(-1, 2)
    x = x[rng.uniform(size=len(x)) < 0.9]
    return x, np.sin(x[:, 0] / 3) + np.cos(x[:, 1] / 4) + 0.2 * rng.standard_normal(len(x))


def _learned(x, y, unit=1.0, key=0):
    gp = hg.GP(hg.Matern32(), hg.Grid((-unit, -unit), unit, (22, 19)), trend="constant")
    return gp.learn(hg.observe(hg.Points(x), y), polish=False, key=key).learned


@pytest.mark.quick
def test_what_is_learned_does_not_depend_on_order_or_units():
    x, y = _lattice()
    first = _learned(x, y)
    order = np.random.default_rng(1).permutation(len(y))
    if jax.default_backend() == "cpu":
        np.testing.assert_array_equal(_learned(x[order], y[order]).values, first.values)
    same = lambda learned, units: np.testing.assert_allclose(learned.values, first.values * units, rtol=1e-8)
    same(_learned(x[order], y[order]), np.ones(3))
    same(_learned(x, y + 1e3), np.ones(3))
    for unit in (1e3, 1e-3):
        same(_learned(unit * x, y, unit), [1, unit, 1])
        same(_learned(x, unit * y), [unit**2, 1, unit])


def test_what_was_learned_is_shown_with_its_standard_errors():
    learned = LINE.learn(_series(), bounds={"noise": (0.01, 1.0)}).learned
    lines = repr(learned).splitlines()
    assert lines[0].startswith("learned in ") and len(lines) == 4
    assert lines[3].strip() == f"noise: {learned.values[2]:.4g} ± {100 * learned.log_std[2]:.2g}%"
    wide = learned._replace(log_covariance=np.diag([np.inf, 4.0, 0.01])).shown()
    assert wide[0].endswith("(not determined)") and wide[1].endswith("(to a factor of 7.39)")
    assert wide[2].endswith("± 10%")
    assert learned.bounds == {"noise": (0.01, 1.0)}


def test_blocks_of_data_may_come_in_any_order():
    both = [_simulated(("points",), seed) for seed in (0, 1)]
    gp = hg.GP(hg.Matern32(), hg.Grid.cover((0, 0), (1, 1), shape=(12, 12)))
    one, other = (gp.learn(a + b, polish=False).learned for a, b in (both, both[::-1]))
    np.testing.assert_allclose(one.values, other.values, rtol=1e-8)


def test_the_key_changes_less_than_the_data_leave_open():
    """It orders the observations and chooses neighbours. Over four keys the parameters spread by less than half their std."""
    x, y = _lattice()
    found = [_learned(x, y, key=key) for key in range(4)]
    spread = np.std([np.log(learned.values) for learned in found], axis=0, ddof=1)
    assert np.all(spread < 0.5 * found[0].log_std)


def test_the_standard_errors_are_the_spread_over_simulated_data():
    """Of 60 data sets: the spread of each log-parameter is known to 9%; 10% more for what is not Gaussian."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(400, 2))
    f = dense.points(x)
    root = np.linalg.cholesky(dense.covariance(dense.Matern32(1.0, 0.08), f, f) + 0.1**2 * np.eye(len(x)))
    gp = hg.GP(hg.Matern32(1.0, 0.08), hg.Grid.cover((0, 0), (1, 1), shape=(12, 12)), noise=0.1)
    draws = [hg.observe(hg.Points(x), root @ rng.normal(size=len(x))) for _ in range(60)]
    found = [gp.learn(data, start="kernel", polish=False).learned for data in draws]
    spread = np.std([np.log(learned.values) for learned in found], axis=0, ddof=1)
    stated = np.sqrt(np.mean([learned.log_std**2 for learned in found], axis=0))
    np.testing.assert_allclose(spread / stated, 1.0, atol=3 * 0.09 + 0.1)


def test_bounds_are_respected_and_named_when_they_hold_it_back():
    with pytest.warns(UserWarning, match=r"do not determine Matern32\.lengthscale"):
        learned = LINE.learn(_series(), bounds={"lengthscale": (0.01, 0.03), "noise": (0.05, 0.2)}).learned
    values = dict(zip(learned.names, learned.values, strict=True))
    assert values["Matern32.lengthscale"] == pytest.approx(0.03, rel=1e-6)
    assert 0.05 <= values["noise"] <= 0.2
    with pytest.raises(ValueError, match="bounds: expected names among"):
        LINE.learn(_series(), bounds={"length": (1, 2)})
    with pytest.raises(ValueError, match="0 < low < high"):
        LINE.learn(_series(), bounds={"noise": (2, 1)})


def test_what_the_data_do_not_determine_is_said():
    rng = np.random.default_rng(0)
    noise_only = hg.observe(hg.Points(rng.uniform(0, 1, 200)), rng.standard_normal(200))
    with pytest.warns(UserWarning, match="do not determine"):
        learned = LINE.learn(noise_only).learned
    assert learned.undetermined and np.all(np.isfinite(learned.values))
    assert dict(zip(learned.names, learned.values, strict=True))["noise"] == pytest.approx(1.0, rel=0.15)


@pytest.mark.slow  # learns from long rays twice
def test_long_rays_may_have_much_noise():
    """The noise's bounds follow the data's spread, not the field's: rays of length 1000 sum a thousand fields."""
    rng = np.random.default_rng(0)
    start, end = (1000 * rng.uniform(size=(150, 2)) for _ in range(2))
    field = lambda x: np.sin(x[..., 0] / 150)
    t = np.linspace(0, 1, 400)[:, None, None]
    y = field(start + t * (end - start)).mean(axis=0) * np.linalg.norm(end - start, axis=1)
    noise = 0.5 * np.std(y)
    data = hg.observe(hg.LineIntegrals(start, end), y + noise * rng.standard_normal(150))
    gp = hg.GP(hg.Matern52(), hg.Grid.cover((0, 0), (1000, 1000), shape=(20, 20)))
    assert gp.learn(data).noise == pytest.approx(noise, rel=0.3)


def test_a_product_leaves_one_scale_free():
    part = hg.Matern32()
    names = lambda kernel: Layout.of(kernel, False).names()
    assert names(part * part) == ["Matern32.variance", "Matern32.lengthscale", "Matern32.lengthscale"]
    both = names(hg.Matern12() * (hg.Matern32() + hg.Matern52()))
    assert [n for n in both if "variance" in n] == ["Matern12.variance", "Matern52.variance"]


def test_layout_goes_back_and_forth():
    kernel = hg.Matern12(2.0, (0.3, 0.4)) + hg.RationalQuadratic(0.5, 2.0, 3.0) * hg.Matern32(1.0, 7.0)
    layout = Layout.of(kernel, True)
    again, noise = layout.unpack(jnp.asarray(layout.pack(kernel, 0.2)))
    np.testing.assert_allclose(noise, 0.2)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(kernel), strict=True):
        np.testing.assert_allclose(a, b)
    box = bounds(
        layout, 1.0, np.array([0.1, 0.1]), np.array([1.0, 10.0]), {"lengthscale[1]": (0.5, 0.6)}, 1.0
    )
    rows = dict(zip(layout.names(), np.exp(np.stack(box, axis=1)), strict=True))
    np.testing.assert_allclose(rows["Matern12.lengthscale[1]"], (0.5, 0.6))
    np.testing.assert_allclose(rows["Matern12.lengthscale[0]"], (0.03, 10.0))


def test_the_observations_of_a_stage_are_a_random_few():
    """Not those that come first: the order of the data is often one of place."""
    x = np.linspace(0.0, 1.0, 2000)
    data = hg.observe(hg.Points(x), np.zeros(2000), noise=0.1)
    terms = likelihood.prepare(hg.Matern32(1.0, 0.1), data, np.zeros((2000, 0)), 800, 0)
    members = (..., slice(-terms.members, None))
    chosen = x[np.asarray(terms.index)[members][np.asarray(terms.used)[members]]]
    assert (
        780 <= len(np.unique(chosen)) == len(chosen) <= 820
        and abs(chosen.mean() - 0.5) < 0.1
        and 0.25 < chosen.std() < 0.33
    )
