"""Kernels compared on data drawn from one of them, and what cannot be compared."""

import numpy as np
import pytest

import dense
import hipgp as hg


def drawn(kernel, count=150, seed=0, noise=0.1):
    x = np.random.default_rng(seed).uniform(0.0, 1.0, (count, 1))
    a = dense.covariance(kernel, dense.points(x), dense.points(x)) + noise**2 * np.eye(count)
    y = np.linalg.cholesky(a) @ np.random.default_rng(seed + 1).standard_normal(count)
    return hg.observe(hg.Points(x), y, noise=noise), x, y


@pytest.fixture(scope="module")
def found():
    data, x, y = drawn(dense.Matern12(1.0, 0.3))
    return hg.compare(data, [hg.SquaredExponential(), hg.Matern12()], progress=False), x, y


@pytest.mark.filterwarnings("ignore:the data do not determine")
def test_the_kernel_that_the_data_came_from_has_the_weight(found):
    comparison, x, y = found
    assert comparison.candidates[0].name == "Matern12"
    assert isinstance(comparison.best.kernel, hg.Matern12)
    assert comparison.weights[0] > 0.99
    assert np.sum(comparison.weights) == pytest.approx(1.0)
    best = comparison.candidates[0]
    kernel = dense.Matern12(float(best.gp.kernel.variance), float(best.gp.kernel.lengthscale))
    truth = dense.exact_gp(kernel, dense.points(x), y, 0.1, dense.points(x))
    assert best.log_evidence.value == pytest.approx(truth.objective, abs=1e-4)
    assert best.parameters == 2
    assert best.scores["crps"] < comparison.candidates[1].scores["crps"]


def test_a_table_and_a_picture(found):
    comparison, _, _ = found
    lines = repr(comparison).splitlines()
    assert lines[0].startswith("kernel") and lines[0].endswith("weight")
    assert len(lines) == 3 == len(comparison) + 1
    assert lines[1].startswith("Matern12 ")
    assert len(comparison.plot().axes) == 2


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ([], "kernels: expected at least one"),
        ([hg.Matern32(), "Matern12"], "kernels: expected kernels or GPs, got str as number 1"),
        ([hg.Matern32(1.0, (1.0, 1.0))], "kernels: number 0, Matern32 .*: lengthscale: expected"),
    ],
)
def test_lists_with_a_kernel_that_cannot_be_used(kernels, words):
    with pytest.raises(ValueError, match=words):
        hg.compare(drawn(dense.Matern32(1.0, 0.3), 10)[0], kernels)


def test_a_kernel_without_the_derivatives_that_were_observed_is_named():
    data = hg.observe(hg.Derivatives([[0.1]]), [1.0], noise=0.1)
    with pytest.raises(ValueError, match="kernels: number 1, Matern12: kernel: expected one whose draws"):
        hg.compare(data, [hg.Matern32(), hg.Matern12()])
