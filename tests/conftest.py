"""Tests run in float64; `slow`, `gpu` and `data` tests are skipped, with the reason, unless what they need is there."""

import os
from pathlib import Path

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # tests compile far more than they compute

DATA_VARIABLE = "HIPGP_DATA"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = {
        "slow": None if config.getoption("--slow") else "slow: run with --slow",
        "gpu": None if _gpu_is_visible() else "gpu: JAX sees no GPU",
        "data": None if _data_folder() else f"data: set {DATA_VARIABLE} to the folder of the data sets",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of the data sets; for tests marked `data`."""
    folder = _data_folder()
    if folder is None:
        pytest.skip(f"data: set {DATA_VARIABLE} to the folder of the data sets")
    return folder


def _data_folder() -> Path | None:
    name = os.environ.get(DATA_VARIABLE)
    return Path(name) if name and Path(name).is_dir() else None


def _gpu_is_visible() -> bool:
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:
        return False
