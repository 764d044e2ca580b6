"""What all engines have in common, and what each refuses: nothing that is asked for is silently ignored."""

import pathlib
import re

import numpy as np
import pytest

import hipgp as hg
from hipgp.engines import FittedPosterior, Method

GRID = hg.Grid.cover(0.0, 1.0, shape=24)
GP = hg.GP(hg.Matern52(lengthscale=0.3), GRID)
X = np.linspace(0.05, 0.95, 15)
DATA = hg.observe(hg.Points(X), np.sin(6 * X), noise=0.1)


@pytest.fixture(scope="module")
def variational():
    return GP.condition(DATA, method=hg.Variational("full"), progress=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"std": "exact"}, r'std: expected "auto".*Batch\(\)'),
        ({"samples": 8}, r"samples: expected none.*got 8.*Batch\(\)"),
        ({"columns": np.ones((15, 1))}, r"columns: expected None.*Batch\(\)"),
    ],
)
def test_the_variational_engine_refuses_what_it_has_no_use_for(variational, given, message):
    with pytest.raises(ValueError, match=message):
        variational.predict(hg.Points(X), **given)


def test_it_refuses_them_on_the_grid_and_of_draws_too(variational):
    with pytest.raises(ValueError, match=r'std: expected "auto"'):
        variational.std("samples")
    with pytest.raises(ValueError, match="samples: expected none"):
        variational.std(samples=128)
    with pytest.raises(ValueError, match="columns: expected None"):
        variational.sample(2, at=hg.Points(X), columns=np.ones((15, 1)))


def test_what_is_spelt_out_as_the_default_is_no_error(variational):
    plain, same = (variational.predict(hg.Points(X), **k) for k in ({}, {"std": "auto", "samples": 64}))
    assert np.array_equal(plain.std, same.std) and same.std_error is None


def test_std_states_its_monte_carlo_error():
    post = GP.condition(DATA, progress=False)
    std, error = post.std("samples", samples=16, return_error=True)
    at = post.predict(hg.Points(GRID.coordinates()), "samples", samples=16)
    assert std.shape == error.shape == GRID.shape
    np.testing.assert_allclose(error, at.std_error, rtol=1e-6)
    np.testing.assert_array_equal(std, post.std("samples", samples=16))
    assert post.std("exact", return_error=True)[1] is None


def test_what_only_another_engine_does_is_refused_by_name(variational):
    for ask in (variational.leave_out, variational.log_evidence_gradient):
        with pytest.raises(
            ValueError, match=r"method: expected .* got Variational; use method=Batch\(\) or Exact\(\)"
        ):
            ask()


def test_something_else_is_not_a_method():
    with pytest.raises(ValueError, match="method: expected Batch"):
        GP.condition(DATA, method="batch")


def test_engines_implement_the_protocol(variational):
    assert isinstance(variational.engine, FittedPosterior) and isinstance(variational.engine.method, Method)
    assert isinstance(GP.condition(DATA, progress=False).engine, FittedPosterior)


def test_nobody_outside_asks_which_engine_it_is():
    source = pathlib.Path(hg.__file__).parent
    names = "Batch|Variational|Exact"
    forks = re.compile(rf"isinstance\([^)\n]*\b(?:{names})(?:Posterior)?\b")
    for path in source.rglob("*.py"):
        if path.relative_to(source).parts[0] not in ("batch", "variational", "exact.py"):
            assert not forks.search(path.read_text()), path
