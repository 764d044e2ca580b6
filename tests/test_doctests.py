"""The examples in module docstrings run as printed."""

import doctest
import importlib
import pkgutil

import pytest

import hipgp

MODULES = sorted(m.name for m in pkgutil.walk_packages(hipgp.__path__, "hipgp."))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore:the data do not determine")  # examples are small and nearly noiseless
def test_examples_run(name):
    if name == "hipgp.estimator":
        pytest.importorskip("sklearn", reason="scikit-learn: pip install 'hipgp[sklearn]'")
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize(
    "name", ["model.grid", "model.kernels", "model.functionals", "model.data", "linalg.krylov"]
)
def test_modules_that_users_meet_first_have_one(name):
    assert doctest.DocTestFinder().find(importlib.import_module(f"hipgp.{name}"))[0].examples
