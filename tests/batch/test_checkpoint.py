"""Long runs survive: killed and resumed they give the same answer, and another problem's file is refused."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hipgp as hg
from hipgp.batch import checkpoint as module
from hipgp.learning import search as learning
from hipgp.runtime import checkpoints

# grids here are coarse, so that the dense reference is small; `test_coarse_grid.py` tests the warning
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")

GRID = hg.Grid.cover(0.0, 1.0, shape=60)
RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(0.0, 1.0, 200))
DATA = hg.observe(hg.Points(X), np.sin(20 * X) + 0.01 * RNG.standard_normal(200), noise=0.01)
METHOD = hg.Batch(neighbours=0, tolerance=1e-8)  # many steps
GP = hg.GP(hg.Matern32(lengthscale=0.2), GRID, trend="constant")


class Killed(BaseException):
    """Stands in for kill -9: nothing catches it."""


def killed_after(monkeypatch, count, name="write_arrays", place=module):
    """Dies right after the checkpoint has been written `count` times."""
    write, seen = getattr(place, name), []

    def write_then_die(*args, **kwargs):
        write(*args, **kwargs)
        seen.append(1)
        if len(seen) == count:
            raise Killed

    monkeypatch.setattr(place, name, write_then_die)
    monkeypatch.setattr(module, "SECONDS_BETWEEN", 0.0)


def test_a_killed_solve_goes_on_to_the_same_answer(monkeypatch, tmp_path):
    path = tmp_path / "solve.npz"
    whole = GP.condition(DATA, METHOD)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(patch, 2)
        GP.condition(DATA, METHOD, checkpoint=path)
    assert path.exists()
    with np.load(path, allow_pickle=False) as file:
        assert 0 < np.max(file["state_iterations"]) < whole.diagnostics["iterations"]
    again = GP.condition(DATA, METHOD, checkpoint=path)
    np.testing.assert_array_equal(again.mean, whole.mean)
    assert again.diagnostics["iterations"] == whole.diagnostics["iterations"]
    assert not path.exists()


SOLVE = """
import sys, time, warnings
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", sys.argv[2] == "True")
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[3])
import test_checkpoint as problem
module, write = problem.module, problem.module.write_arrays
def write_and_wait(*args, **arrays):
    write(*args, **arrays)
    time.sleep(0.2)
module.write_arrays, module.SECONDS_BETWEEN = write_and_wait, 0.0
problem.GP.condition(problem.DATA, problem.METHOD, progress=False, checkpoint=sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_process_killed_at_any_moment_goes_on_to_the_same_answer(pytestconfig, tmp_path, times):
    """kill -9 of another process, somewhere in its solve or as it writes; resumed here."""
    whole, rng = GP.condition(DATA, METHOD), np.random.default_rng(5)
    flags = str(not pytestconfig.getoption("--optimised")), str(Path(__file__).parent)
    for number in range(times):
        path = tmp_path / f"{number}.npz"
        child = subprocess.Popen([sys.executable, "-c", SOLVE, str(path), *flags])
        while child.poll() is None and not path.exists():
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 1))
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        with np.load(path, allow_pickle=False) as file:
            assert np.max(file["state_iterations"]) > 0
        again = GP.condition(DATA, METHOD, checkpoint=path)
        np.testing.assert_array_equal(again.mean, whole.mean)
        assert again.diagnostics["iterations"] == whole.diagnostics["iterations"]


def test_a_killed_solve_with_no_steps_left_gives_what_it_has(monkeypatch, tmp_path):
    """Resumed where all its steps are done, it is what it would have been had it not been killed."""
    path, method = tmp_path / "solve.npz", hg.Batch(neighbours=0, tolerance=1e-8, max_iterations=5)
    with pytest.warns(UserWarning, match="the solve stopped"):
        whole = GP.condition(DATA, method)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(patch, 1)
        GP.condition(DATA, method, checkpoint=path)
    with pytest.warns(UserWarning, match="the solve stopped"):
        again = GP.condition(DATA, method, checkpoint=path)
    np.testing.assert_allclose(again.mean, whole.mean, rtol=0, atol=1e-12)
    assert again.diagnostics["kl_nats"] == pytest.approx(whole.diagnostics["kl_nats"], rel=1e-9)


def test_killed_learning_goes_on_to_the_same_answer(monkeypatch, tmp_path):
    path = tmp_path / "learn.npz"
    gp = hg.GP(hg.Matern32(), GRID)
    whole = gp.learn(DATA, key=1)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(patch, 1, place=learning)
        gp.learn(DATA, key=1, checkpoint=path)
    again = gp.learn(DATA, key=1, checkpoint=path)
    np.testing.assert_array_equal(again.learned.values, whole.learned.values)
    assert len(again.learned.trace) < len(whole.learned.trace)
    third = gp.learn(DATA, key=1, checkpoint=path).learned  # done: nothing is learned again
    assert third.trace == [] and third.undetermined == whole.learned.undetermined
    for name in ("values", "log_covariance", "objective"):
        np.testing.assert_allclose(getattr(third, name), getattr(whole.learned, name), rtol=1e-12)
    with pytest.raises(ValueError, match="belongs to another problem"):
        gp.learn(DATA, key=2, checkpoint=path)
    with pytest.raises(ValueError, match="belongs to another problem"):
        gp.learn(DATA, key=1, polish=False, checkpoint=path)


@pytest.mark.parametrize(
    "other",
    [
        (hg.GP(hg.Matern52(lengthscale=0.2), GRID, trend="constant"), DATA, METHOD),
        (
            hg.GP(hg.Matern32(lengthscale=0.2), hg.Grid.cover(0.0, 1.0, shape=61), trend="constant"),
            DATA,
            METHOD,
        ),
        (GP, hg.observe(hg.Points(X), DATA.y + 1e-12, noise=0.01), METHOD),
        (GP, DATA, hg.Batch(neighbours=0, tolerance=1e-8, stencil=2)),
    ],
    ids=["kernel", "grid", "data", "settings"],
)
def test_a_foreign_checkpoint_is_refused(monkeypatch, tmp_path, other):
    path = tmp_path / "solve.npz"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(patch, 1)
        GP.condition(DATA, METHOD, checkpoint=path)
    gp, data, method = other
    with pytest.raises(ValueError, match="belongs to another problem"):
        gp.condition(data, method, checkpoint=path)
    assert path.exists()


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "solve.npz"
    path.write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(ValueError, match="is not a hipgp checkpoint"):
        GP.condition(DATA, METHOD, checkpoint=path)
    assert path.read_bytes() == b"PK\x03\x04 cut short"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The checkpoint of a solve that was killed."""
    path = tmp_path_factory.mktemp("checkpoint") / "solve.npz"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        killed_after(patch, 1)
        GP.condition(DATA, METHOD, checkpoint=path)
    with np.load(path) as file:
        return path.read_bytes(), {name: file[name] for name in file.files}


def test_a_damaged_checkpoint_is_refused(stopped, tmp_path):
    """Flips, cuts, pieces taken out: the same arrays, or one error that names the file."""
    content, held = stopped
    path, problem, rng, refused = (
        tmp_path / "solve.npz",
        str(held["fingerprint"]),
        np.random.default_rng(0),
        0,
    )
    for number in range(300):
        begin, end = np.sort(rng.integers(len(content), size=2))
        flip = bytes([content[begin] ^ int(rng.integers(1, 256))])
        kinds = (
            content[:begin] + flip + content[begin + 1 :],
            content[:begin],
            content[:begin] + content[end + 1 :],
        )
        path.write_bytes(kinds[number % 3])
        try:
            arrays = checkpoints.read_arrays(path, problem)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
        else:  # what it hit says nothing of the arrays: the time in the archive's own directory, for one
            assert all(np.array_equal(arrays[name], values) for name, values in held.items())
    assert refused > 250


def test_a_checkpoint_of_another_algorithm_is_refused(stopped, monkeypatch, tmp_path):
    path = tmp_path / "solve.npz"
    path.write_bytes(stopped[0])
    monkeypatch.setattr(checkpoints, "ALGORITHM", checkpoints.ALGORITHM + 1)
    with pytest.raises(ValueError, match=f"written by version {checkpoints.ALGORITHM - 1} of the algorithm"):
        GP.condition(DATA, METHOD, checkpoint=path)
    np.savez(path, **{name: values for name, values in stopped[1].items() if name != "algorithm"})
    with pytest.raises(ValueError, match="is not a hipgp checkpoint"):
        GP.condition(DATA, METHOD, checkpoint=path)


@pytest.mark.parametrize("name", ["x", "steps", "state_residual", "state_active", "scale"])
def test_every_array_of_a_checkpoint_is_needed(stopped, tmp_path, name):
    path, held = tmp_path / "solve.npz", dict(stopped[1])
    shape = held["x"].shape
    given = {"algorithm": None, "fingerprint": None}
    rest = {key: values for key, values in held.items() if key not in given}
    checkpoints.write_arrays(
        path, fingerprint=held["fingerprint"], **{k: v for k, v in rest.items() if k != name}
    )
    with pytest.raises(ValueError, match=f"expected {name} in it"):
        module.Checkpoint(path, str(held["fingerprint"])).load(shape)
    checkpoints.write_arrays(path, fingerprint=held["fingerprint"], **rest | {name: np.zeros((7, 7))})
    with pytest.raises(ValueError, match=rf"holds {name} of shape \(7, 7\)"):
        module.Checkpoint(path, str(held["fingerprint"])).load(shape)


def test_a_claim_of_a_small_checkpoint_takes_no_memory(stopped, tmp_path):
    import tracemalloc

    from hipgp.runtime import archive

    path = tmp_path / "solve.npz"
    path.write_bytes(stopped[0])
    with open(path, "rb") as file:
        members = archive.read(file)
    for shape in (b"(1000000000,)", b"(-1,)"):
        header = members["x.npy"][10:].split(b"\n")[0].decode()
        claim = header.replace(header[header.index("(") : header.index(")") + 1], shape.decode())
        content = members["x.npy"][:10] + claim[: len(header)].ljust(len(header)).encode() + b"\n"
        archive.write(path, members | {"x.npy": content})
        tracemalloc.start()
        with pytest.raises(ValueError, match=r"solve\.npz is not a hipgp checkpoint"):
            checkpoints.read_arrays(path, str(stopped[1]["fingerprint"]))
        assert tracemalloc.get_traced_memory()[1] < 2**22
        tracemalloc.stop()
