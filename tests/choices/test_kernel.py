"""GP("auto"): the kernel that data were drawn from is found, and what cannot be chosen is refused in words."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dense
import hipgp as hg
from hipgp.apps.cli import app
from hipgp.apps.cli.console import BadInput
from hipgp.apps.cli.settings import Settings, kernel_asked
from hipgp.choices.kernel import penalised
from hipgp.model.undecided import single_kernels, sums_of_two

COUNT, NOISE = 150, 0.02
X = np.random.default_rng(0).uniform(0.0, 1.0, (COUNT, 1))


def drawn(kernel, seed=1):
    a = dense.covariance(kernel, dense.points(X), dense.points(X)) + NOISE**2 * np.eye(COUNT)
    return np.linalg.cholesky(a) @ np.random.default_rng(seed).standard_normal(COUNT)


ROUGH, SMOOTH = drawn(dense.Matern12(1.0, 0.3)), drawn(dense.Matern52(1.0, 0.15))


@pytest.mark.parametrize(
    ("y", "kind"), [pytest.param(ROUGH, hg.Matern12, marks=pytest.mark.slow), (SMOOTH, hg.Matern52)]
)
def test_the_kernel_that_the_data_came_from_is_chosen(y, kind):
    data = hg.observe(hg.Points(X), y, noise=NOISE)
    gp = hg.GP("auto").learn(data, progress=False)
    assert type(gp.kernel) is kind
    alone = hg.GP(kind()).learn(data, progress=False)
    assert gp.learned.objective == pytest.approx(alone.learned.objective, abs=1e-3)
    assert f"{kind.__name__}: " in gp.learned.choice and "nats of log evidence" in gp.learned.choice
    assert f"6 kernels compared on {COUNT} of {COUNT} observations" in gp.learned.choice
    assert gp.learned.choice in repr(gp) and gp.learned.choice in repr(gp.learned)


def test_conditioning_learns_first_and_the_map_remembers_the_choice(tmp_path):
    data = hg.observe(hg.Points(X), SMOOTH, noise=NOISE)
    post = hg.GP("auto").condition(data, progress=False)
    assert isinstance(post.kernel, hg.Matern52)
    assert post.diagnostics["kernel_chosen"] == post.learned.choice
    post.save(tmp_path / "map.hipgp")
    assert hg.load(tmp_path / "map.hipgp").learned.choice == post.learned.choice


@pytest.fixture
def two_candidates(monkeypatch):
    two = [hg.Matern12(), hg.Matern52()]
    monkeypatch.setattr("hipgp.choices.kernel._candidates", lambda *_: iter(two))


@pytest.mark.usefixtures("two_candidates")
def test_the_regressor_takes_it():
    coarse = {"points_per_lengthscale": 2.0, "method": hg.Exact()}
    model = hg.HIPGPRegressor("auto", noise=NOISE, trend=None, **coarse).fit(X, SMOOTH)
    assert isinstance(model.kernel_, hg.Matern52)


@pytest.mark.slow  # learning on a grid, the solve and the map are compiled anew
@pytest.mark.usefixtures("two_candidates")
def test_the_command_takes_it(tmp_path):
    pd.DataFrame({"x": X[:, 0], "value": SMOOTH}).to_csv(tmp_path / "table.csv", index=False)
    given = ("--kernel", "auto", "--noise", NOISE, "--trend", "none", "--std", "none", "--shape", 60)
    command = ["fit", tmp_path / "table.csv", "-o", tmp_path / "map.hipgp", *given]
    found = CliRunner().invoke(app, [str(word) for word in command])
    assert found.exit_code == 0, found.output
    assert "kernel chosen: Matern52: " in found.output


def test_candidates_have_the_derivatives_that_were_observed():
    names = lambda kernels: [[type(part).__name__ for part in kernel.parts] for kernel in kernels]
    assert names(single_kernels(2, 0, False)) == [["Matern12"], ["Matern32"], ["Matern52"]]
    assert names(single_kernels(2, 1, True)) == [["Matern32"], ["Matern52"]]
    assert names(sums_of_two(2, 1, True)) == [["Matern32", "Matern52"]]
    assert len(sums_of_two(1, 0, False)) == 3
    for kernel in sums_of_two(3, 0, True):
        kernel.check_dimension(3)


def test_a_parameter_costs_half_the_logarithm_of_the_number_of_observations():
    assert penalised(np.array([10.0, 10.0]), np.array([2, 4]), 100) == pytest.approx(
        [10 - np.log(100), 10 - 2 * np.log(100)]
    )


DATA = hg.observe(hg.Points(X[:4]), ROUGH[:4], noise=NOISE)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (
            lambda: hg.GP("Matern32"),
            "kernel: expected a kernel such as Matern32.., or \"auto\", got 'Matern32'",
        ),
        (lambda: hg.GP("auto").learn(DATA, start="kernel"), 'start: expected "data" with GP'),
        (
            lambda: hg.GP("auto").learn(DATA, bounds={"alpha": (1, 2)}),
            "bounds: expected names among variance",
        ),
        (lambda: hg.GP("auto", link="exp").learn(DATA), "kernel: expected one by name with a link"),
        (lambda: hg.GP("auto").plot(), "kernel: expected one that is known"),
        (lambda: hg.HIPGPRegressor("auto", noise=0.1, learn=False).fit(X, ROUGH), "learn: expected True"),
        (
            lambda: kernel_asked(Settings(kernel="auto", lengthscale=(0.1,)), 1, ()),
            "kernel: expected one by name",
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused(act, words):
    with pytest.raises((ValueError, BadInput), match=words):
        act()
