"""What several devices compute is what one computes, to rounding; the devices are simulated, in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hipgp as hg
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend

CASES = Path(__file__).with_name("cases.py")
QUICK = [
    "operators:short:8",
    "fit:points:4",
    "errors:points:8",
]
# Each compiles some programs for a few seconds; the quick ones above take the same paths.
SLOW = [
    *(f"operators:{kind}:{devices}" for kind in ("2d", "3d", "short") for devices in (1, 2, 4, 8)),
    *(f"fit:{kind}:{devices}" for kind in ("points", "crowded", "lines", "walked") for devices in (2, 8)),
    *(f"answers:{kind}:4" for kind in ("points", "lines", "walked")),
]
ROUNDING = 1e-12  # of the largest entry, through a solve to 1e-12 nats; 1e-14 was seen


def run(cases: list[str]) -> dict[str, dict]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CASES), *cases], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: found for line in done.stdout.splitlines() for name, found in json.loads(line).items()}


@pytest.fixture(scope="module")
def quick() -> dict[str, dict]:
    return run(QUICK)


def check(case: str, found: dict) -> None:
    what, _, devices = case.split(":")
    errors = {name: value for name, value in found.items() if isinstance(value, float)}
    assert errors and np.all(np.array(list(errors.values())) < ROUNDING), (case, found)
    if what == "operators":
        assert found["slabs"][0] == int(devices) and len(found["slabs"][1]) == 1
    if what == "fit":
        assert found["steps"][0] == found["steps"][1] and found["words"][0] == "mesh"
        assert ("cut by observation" in found["words"][1]) == ("clusters" not in found["words"][1])


@pytest.mark.parametrize("case", [case for case in QUICK if not case.startswith("errors")])
def test_a_mesh_gives_what_one_device_gives(quick, case):
    check(case, quick[case])


@pytest.mark.slow  # two minutes of compiling; the quick cases take the same paths
def test_every_mesh_gives_what_one_device_gives():
    for case, found in run(SLOW).items():
        check(case, found)


def test_what_a_mesh_cannot_do_is_said_in_words(quick):
    found = quick["errors:points:8"]
    for name, words in {
        "grid": "mesh: expected at most 5 devices, one for each plane along the grid's first axis, got 8; use mesh=5",
        "number": "mesh: expected 1 to 8 devices, as many as JAX sees, got 99",
        "kind": "mesh: expected a jax.sharding.Mesh or a number of devices, got str",
        "dimension": "mesh: expected a grid of two or more dimensions",
        "exact": "mesh: expected None with Exact, which computes on one device, got 8 devices; use method=Batch()",
        "variational": "mesh: expected None with Variational",
        "space": "mesh: expected None with Batch(space='grid')",
        "weights": "mesh: expected None with Batch(weights='exact')",
        "link": "mesh: expected None with Linearised",
    }.items():
        assert found[name].startswith(words), (name, found)


def test_neither_files_nor_checkpoints_know_of_the_mesh():
    """So a map or a checkpoint of one mesh is read on another."""
    grid, x = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(6, 5)), np.full((3, 2), 0.5)
    problem = Problem(
        hg.Matern32(1.0, 0.4), grid, hg.observe(hg.Points(x), np.ones(3), 0.1), None, Trend(None)
    )
    method = hg.Batch(tolerance=1e-3)
    cut = method.on_mesh(1, grid)
    assert cut.mesh is not None and method.mesh is None
    assert cut.digest(problem) == method.digest(problem)
    assert cut.settings() == method.settings() and hg.Batch.of_settings(cut.settings()) == method
    assert "mesh" not in repr(method)
