"""Two processes of two devices each, which find each other on the loopback address, give what one device gives."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hipgp as hg

HOSTS = Path(__file__).with_name("hosts.py")


def started(what: str, path: Path) -> list[subprocess.Popen]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-W", "ignore", str(HOSTS)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen([*command, str(i), port, what, str(path)], **pipes) for i in range(2)]


def finished(processes: list[subprocess.Popen]) -> list[dict]:
    found = [process.communicate(timeout=300) for process in processes]
    for process, (_, error) in zip(processes, found, strict=True):
        assert process.returncode == 0, error[-4000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in found]


@pytest.mark.slow  # twenty seconds: both processes compile the solve; tests/mesh/test_mesh.py takes the same paths in one
def test_two_processes_give_what_one_device_gives(tmp_path):
    both = finished(started("fit", tmp_path / "none"))
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0.05, 0.95, (80, 2)), rng.normal(size=80)
    gp = hg.GP(hg.Matern32(1.0, 0.4), hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(13, 11)))
    one = gp.condition(
        hg.observe(hg.Points(x), y, noise=0.3), hg.Batch(space="data", tolerance=1e-12), progress=False
    )
    for found in both:
        assert found["devices"] == [4, 2]
        assert found["disagree"].startswith(
            "data: expected the same data, model and settings in every process, got others in process 1 than in process 0"
        )
        np.testing.assert_allclose(found["mean"], one.mean.ravel(), rtol=0, atol=1e-12)
        np.testing.assert_allclose(found["sample"], one.sample(2, progress=False).ravel(), rtol=0, atol=1e-11)


@pytest.mark.slow  # three pairs of processes, each of which compiles the solve
def test_a_killed_process_costs_the_steps_since_the_last_checkpoint(tmp_path):
    """All of the job's processes end with one that is killed, as a scheduler has it, and are started again."""
    whole = finished(started("killed", tmp_path / "whole"))[0]
    path = tmp_path / "checkpoint"
    processes = started("killed", path)
    end = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < end and all(process.poll() is None for process in processes)
        time.sleep(0.01)
    processes[1].kill()
    processes[0].kill()
    for process in processes:
        process.communicate()
    again = finished(started("killed", path))
    assert again[0]["steps"] == again[1]["steps"] == whole["steps"]
    # the first report is of five steps, or of five after those in the checkpoint
    assert again[0]["first"] == again[1]["first"] > whole["first"] and not path.exists()
