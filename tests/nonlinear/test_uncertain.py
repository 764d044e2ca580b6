"""Uncertain places: against the true posterior by brute force, where the place is integrated out densely."""

import numpy as np
import pytest

import dense_nonlinear
import hipgp as hg

GRID = hg.Grid.cover(-0.6, 2.0, shape=80)
KERNEL = hg.Matern52(1.0, 0.4)
AT = np.linspace(0.1, 1.1, 5)
METHOD = hg.Linearised(hg.Exact())


def posterior(data, link=None, trend=None, **settings):
    method = hg.Linearised(hg.Exact(), **settings)
    return hg.GP(KERNEL, GRID, link=link, trend=trend).condition(data, method=method, progress=False)


class Fine:
    """f on a fine line, its prior, and functions of it by interpolation and cumulative sums."""

    x = np.linspace(-0.6, 2.0, 131)
    prior = np.asarray(KERNEL(x[:, None], x[:, None])) + 1e-9 * np.eye(131)
    xi = np.linspace(-5.0, 5.0, 201)
    share = np.exp(-0.5 * xi**2) / np.sum(np.exp(-0.5 * xi**2))

    def values(self, g, places):
        """g, (S, M), at places, (T,)."""
        i = np.clip(np.searchsorted(self.x, places) - 1, 0, 129)
        t = (places - self.x[i]) / (self.x[1] - self.x[0])
        return (1 - t) * g[:, i] + t * g[:, i + 1]

    def integrals(self, g, ends):
        """From 0 to the ends."""
        h = self.x[1] - self.x[0]
        total = np.concatenate(
            [np.zeros((len(g), 1)), np.cumsum(0.5 * h * (g[:, 1:] + g[:, :-1]), axis=1)], axis=1
        )
        return self.values(total, ends) - self.values(total, np.zeros(1))

    def moments(self, eta_of, link, y, noise, start, std):
        """Of link(f) at AT, where y_n = eta(start_n + std_n xi) + noise with xi integrated out densely."""

        def log_likelihood(f):
            g, total = link(f), 0.0
            for one, place, wide in zip(y, start, std, strict=True):
                eta = eta_of(self, g, np.maximum(place + wide * self.xi, -0.6))
                density = np.exp(-0.5 * ((one - eta) / noise) ** 2) @ self.share
                total = total + np.log(np.maximum(density, 1e-300))
            return total

        zero = np.zeros(len(self.x))
        return dense_nonlinear.moments(
            zero, self.prior, log_likelihood, lambda f: self.values(link(f), AT), draws=60_000
        )


ENDS, ETA = np.array([0.35, 0.6, 0.85, 1.1]), np.array([0.5, 1.1, 1.2, 2.0])
STD = np.array([0.05, 0.1, 0.06, 0.12])


@pytest.mark.parametrize("link", [None, "exp"])
def test_lines_of_uncertain_length_have_nearly_the_true_posterior(link):
    g = np.exp if link else (lambda f: f)
    true_mean, true_std, size = Fine().moments(Fine.integrals, g, ETA, 0.1, ENDS, STD)
    assert size > 300
    lines = hg.LineIntegrals(np.zeros((4, 1)), ENDS[:, None], end_std=STD)
    post = posterior(hg.observe(lines, ETA, 0.1), link)
    assert post.diagnostics["converged"]
    found = post.predict(hg.Points(AT))
    np.testing.assert_allclose(found.mean, true_mean, atol=0.25 * np.max(true_std))
    np.testing.assert_allclose(found.std, true_std, rtol=0.25)
    sure = posterior(hg.observe(hg.LineIntegrals(np.zeros((4, 1)), ENDS[:, None]), ETA, 0.1), link)
    other = sure.predict(hg.Points(AT))
    far = lambda p: np.sqrt(np.mean(((p.mean - true_mean) / true_std) ** 2))
    assert far(found) < 0.6 * far(other)  # as if the places were known


def test_points_at_uncertain_places_have_nearly_the_true_posterior():
    x, y = np.array([0.2, 0.5, 0.8, 1.0]), np.array([1.2, 0.1, -0.9, -0.6])
    std = np.array([0.12, 0.1, 0.12, 0.1])
    true_mean, true_std, size = Fine().moments(Fine.values, lambda f: f, y, 0.1, x, std)
    assert size > 300
    post = posterior(hg.observe(hg.Points(x, std=std[:, None]), y, 0.1))
    found = post.predict(hg.Points(AT))
    np.testing.assert_allclose(found.mean, true_mean, atol=0.25 * np.max(true_std))
    np.testing.assert_allclose(found.std, true_std, rtol=0.2)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("link", [None, "exp"])
def test_hardly_uncertain_places_are_certain_ones(link, average):
    make = lambda **more: hg.LineIntegrals(np.zeros((4, 1)), ENDS[:, None], average, **more)
    a = posterior(hg.observe(make(end_std=1e-5), ETA, 0.1), link, "constant")
    b = posterior(hg.observe(make(), ETA, 0.1), link, "constant")
    one, other = (post.predict(hg.Points(AT)) for post in (a, b))
    np.testing.assert_allclose(one.mean, other.mean, atol=0.02 * np.max(other.std))
    np.testing.assert_allclose(one.std, other.std, rtol=0.01)
    a = posterior(hg.observe(hg.Points(AT, std=1e-6), AT, 0.1))
    b = hg.GP(KERNEL, GRID).condition(hg.observe(hg.Points(AT), AT, 0.1), hg.Exact(), progress=False)
    np.testing.assert_allclose(a.mean, b.mean, atol=2e-3)


def test_under_a_flat_field_an_uncertain_length_is_noise():
    """y = rho (d + s xi) + e: of rho, the constant trend, all that is to be known."""
    d, s, y = 1.0, 0.2, np.array([2.1, 1.9, 2.3])
    lines = hg.LineIntegrals(np.zeros((3, 1)), np.full((3, 1), d), end_std=s)
    gp = hg.GP(hg.Matern52(1e-6, 5.0), GRID, trend="constant")
    post = gp.condition(hg.observe(lines, y, 0.05), METHOD, progress=False)
    found = post.predict(hg.Points([0.5]))
    rho = np.linspace(0.5, 5.0, 4001)[:, None]
    variance = 0.05**2 + (rho * s) ** 2
    log = np.sum(-0.5 * (y - rho * d) ** 2 / variance - 0.5 * np.log(variance), axis=1)
    p = np.exp(log - log.max()) / np.sum(np.exp(log - log.max()))
    mean = p @ rho[:, 0]
    np.testing.assert_allclose(found.mean, mean, atol=0.3 * found.std[0])
    np.testing.assert_allclose(found.std, np.sqrt(p @ (rho[:, 0] - mean) ** 2), rtol=0.2)


def test_places_in_two_dimensions_on_the_default_engine(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(0.2, 0.8, (60, 2))
    truth = lambda x: np.sin(5 * x[:, 0]) + x[:, 1]
    moved = x + 0.03 * rng.standard_normal(x.shape)
    grid = hg.Grid.cover((0, 0), (1, 1), shape=(20, 20))
    data = hg.observe(hg.Points(moved, std=0.03), truth(x) + 0.02 * rng.standard_normal(60), 0.02)
    post = hg.GP(hg.Matern52(1.0, 0.5), grid).condition(data, progress=False)
    at = rng.uniform(0.25, 0.75, (50, 2))
    found = post.predict(hg.Points(at), progress=False)
    assert np.mean(np.abs(found.mean - truth(at)) < 2 * found.std) > 0.85
    post.save(tmp_path / "map")
    again = hg.load(tmp_path / "map").predict(hg.Points(at), progress=False)
    np.testing.assert_allclose(again.mean, found.mean, atol=1e-4)


def test_importance_weights_know_of_the_places():
    lines = hg.LineIntegrals(np.zeros((4, 1)), ENDS[:, None], end_std=STD)
    post = posterior(hg.observe(lines, ETA, 0.1), "exp", importance=400)
    assert post.diagnostics["pareto_k"] < 0.7 and post.diagnostics["effective_draws"] > 100


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: hg.Points(AT, std=-0.1), "std: expected positive numbers, got -0.1"),
        (lambda: hg.Points(AT, std=np.ones(3)), r"std: expected a number, or an array that fits \(5, 1\), got shape \(3,\)"),
        (lambda: hg.LineIntegrals(0.0, AT[:, None], end_std=0.0), "end_std: expected positive numbers"),
        (lambda: hg.observe(hg.Points(AT, std=0.1), [1, 0, 2, 0, 1], likelihood=hg.Poisson()), "likelihood: expected Gaussian noise at uncertain places"),
        (lambda: posterior(hg.observe(hg.Points(AT, std=1.0), AT, 0.1)), "data: expected places within the grid"),
        (lambda: posterior(hg.observe(hg.Points(AT, std=0.1), AT, 0.1)).predict(hg.Points(AT, std=0.1)), "functional: expected certain places to predict"),
        (lambda: posterior(hg.observe(hg.Points(AT, std=0.1), AT, 0.1)).leave_out(), "leave_out: expected certain places"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
