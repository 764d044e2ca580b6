"""Every tutorial runs as it is, prints something, and is short enough to read."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # the tutorials take over a minute

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.py"))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_tutorial(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where pictures go
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert len(path.read_text().splitlines()) < 65
    runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr().out
    assert len(said.splitlines()) >= 3 and "nan" not in said
    pictures = list(tmp_path.glob("*.png"))
    assert len(pictures) == path.read_text().count("savefig(")
    assert all(picture.stat().st_size > 10_000 for picture in pictures)


def test_they_are_numbered_without_a_gap():
    assert [path.name[:2] for path in TUTORIALS] == [f"{i:02}" for i in range(1, len(TUTORIALS) + 1)]
