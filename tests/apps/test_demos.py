"""The demos run, and their intervals cover what they claim to cover."""

from pathlib import Path

import pytest

from hipgp.apps import demos

MARKS = {"derivative": [pytest.mark.quick], "timeseries": []}  # others take longer


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, [pytest.mark.slow])) for name in demos.DEMOS]
)
def test_a_demo_draws_its_pictures_and_is_calibrated(name: str, tmp_path: Path):
    found = demos.run(name, tmp_path, 0, False)
    assert found.pictures and all(path.stat().st_size > 10_000 for path in found.pictures)
    covered = {key: value for key, value in found.numbers.items() if "coverage95" in key}
    assert covered
    assert all(88.0 <= value <= 100.0 for value in covered.values()), covered
