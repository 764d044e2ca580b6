"""Tests run in float64; `slow`, `gpu` and `data` tests are skipped, with the reason, unless what they need is there."""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ["HIPGP_CACHE"] = "off"  # compiled programs without optimisations are not for the user's cache

import jax
import pytest

jax.config.update("jax_enable_x64", True)

DATA_VARIABLE = "HIPGP_DATA"
MANY_MAPS = 30_000
COMPILED = "/jax/core/compile/backend_compile_duration"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption(
        "--optimised", action="store_true", help="leave XLA's optimisations on, as users have them"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Tests compile far more than they compute: without optimisations the suite takes a third of the time.
    jax.config.update("jax_disable_most_optimizations", not config.getoption("--optimised"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each file to one worker, whose compiled programs its tests share; other ways are taken where asked for."""
    from xdist.scheduler import LoadFileScheduling

    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False  # files come in the order of the collection, see below
    return LoadFileScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = {
        "slow": None if config.getoption("--slow") else "slow: run with --slow",
        "gpu": None if _gpu_is_visible() else "gpu: JAX sees no GPU",
        "data": None if _data_folder() else f"data: set {DATA_VARIABLE} to the folder of the data sets",
    }
    items.sort(
        key=lambda item: "/model/" in item.nodeid
    )  # of short tests, so that no worker waits long at the end
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module", autouse=True)
def few_executables() -> Iterator[None]:
    """Each compiled function holds some memory maps, of which Linux lets a process have 65,530: past that JAX crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MANY_MAPS:
        jax.clear_caches()


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """A list that grows by one with each program that XLA compiles."""
    found: list[str] = []
    listen = lambda name, seconds, **more: found.append(str(more)) if name == COMPILED else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(scope="session", autouse=True)
def coarse_pictures() -> Iterator[None]:
    """Pictures are predicted on a tenth of the places that users see; tests/test_display.py asks for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hipgp.display.PIXELS", 90)
        patch.setattr("hipgp.display.SERIES", 600)
        yield


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
