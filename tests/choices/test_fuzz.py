"""A few of the random problems of benchmarks/fuzz.py, as users would pose them: without a grid."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def fuzz():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        spec = importlib.util.spec_from_file_location("fuzz", BENCHMARKS / "fuzz.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules.pop("machine", None)
    return module


@pytest.mark.parametrize("seed", [1, 14, pytest.param(3, marks=pytest.mark.slow)])
def test_random_problems_come_out_right(fuzz, seed):
    """Among them boxes in three dimensions of a rough kernel, and lines whose noise asks for a fine quadrature."""
    found = fuzz.run(seed, "auto")
    assert "exception" not in found
    assert found["finite"]
    assert found["right"]
