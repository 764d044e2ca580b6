"""Signals and closed outputs: the command leaves quietly, at any moment; an interrupted library stays whole."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hipgp as hg
from hipgp.runtime import signals

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc"),
    pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse"),  # the grid is small on purpose
]
SRC = str(Path(hg.__file__).parents[1])
PYTHONPATH = os.pathsep.join(filter(None, [SRC, os.environ.get("PYTHONPATH")]))
COMMAND = (sys.executable, "-m", "hipgp")
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in the background of a script; children would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
DELAYS = (0.0, 0.05, 0.3, 1.0, 2.0, 4.0, 8.0)

LEARN = """
import sys
import numpy as np
import hipgp as hg

x = np.random.default_rng(0).uniform(0, 1, (3000, 2))
gp = hg.GP(hg.Matern32(1.0, 0.3), hg.Grid.cover((0, 0), (1, 1), shape=64))
data = hg.observe(hg.Points(x), np.sin(5 * x[:, 0]))
print("learning", flush=True)
try:
    gp.learn(data, progress=False)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


@pytest.fixture(autouse=True)
def interrupts_are_heard():
    """Scripts start what they put into the background with SIGINT ignored, and its children with it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder(tmp_path):
    """With a table that takes long to learn from."""
    x = np.random.default_rng(0).uniform(0, 1, (3000, 2))
    rows = np.column_stack([x, np.sin(5 * x[:, 0]) + x[:, 1]])
    np.savetxt(tmp_path / "table.csv", rows, delimiter=",", header="x,y,value", comments="")
    return tmp_path


def started(*arguments, folder, **more):
    variables = os.environ | {"PYTHONPATH": PYTHONPATH, "XDG_CACHE_HOME": str(folder / "cache")}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen([str(a) for a in arguments], cwd=folder, env=variables, text=True, **streams)


def wait_until(fact, process, seconds=300.0):
    end = time.monotonic() + seconds
    while not fact():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)


def catches_sigterm(process):
    """Whether the command's own first lines have run; before them there is only Python's start."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def ended(process, seconds=60.0):
    """What it printed; a process that does not end is killed."""
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


def check_left(process, number):
    began = time.monotonic()
    out, err = ended(process, 30)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err and "Fatal" not in err and "Exception" not in err
    assert err.splitlines()[-1].startswith("stopped; ")
    assert time.monotonic() - began < 5.0 and out == ""


def stopped_after(delay, number, folder):
    process = started(*COMMAND, "fit", "table.csv", folder=folder)
    wait_until(lambda: catches_sigterm(process), process)
    time.sleep(delay)
    process.send_signal(number)
    check_left(process, number)
    assert not [name for name in os.listdir(folder) if name.endswith((".tmp", ".probe", ".hipgp"))]


@pytest.mark.parametrize(
    ("delay", "number"), [(0.0, signal.SIGINT), (0.3, signal.SIGTERM), (3.0, signal.SIGINT)]
)
def test_a_signal_ends_the_command_quietly(delay, number, folder):
    stopped_after(delay, number, folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay", DELAYS)
def test_a_signal_ends_the_command_quietly_at_any_moment(delay, number, folder):
    stopped_after(delay, number, folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_checkpoint_and_says_how_to_go_on(number, folder):
    process = started(*COMMAND, "fit", "table.csv", folder=folder)
    wait_until((folder / "map.hipgp.learning").exists, process)
    process.send_signal(number)
    _, err = ended(process, 30)
    assert process.returncode == 128 + number
    assert "kept in map.hipgp.learning. Go on with: hipgp fit table.csv --resume" in err
    assert (folder / "map.hipgp.learning").exists() and not (folder / "map.hipgp").exists()


def test_a_signal_that_was_ignored_from_the_start_stays_so(folder):
    """As under nohup, or in the background of a script."""
    process = started("sh", "-c", f"trap '' INT; exec {' '.join(COMMAND)} fit table.csv", folder=folder)
    wait_until(lambda: catches_sigterm(process), process)
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    check_left(process, signal.SIGTERM)


def test_only_temporary_files_of_this_process_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "folders", {str(tmp_path)})
    own, other = os.getpid(), os.getpid() + 1
    mine = [f".map.hipgp.{own}.tmp", f".map.hipgp.{own}.7f3a.tmp", f".hipgp-{own}.probe"]
    kept = [f".map.hipgp.{other}.tmp", f".map.hipgp.{own}0.tmp", "map.hipgp", f"map.{own}.tmp"]
    for name in mine + kept:
        (tmp_path / name).touch()
    signals._remove_temporary_files()
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def interrupted_learning(delay, folder):
    process = started(sys.executable, "-c", LEARN, folder=folder)
    assert process.stdout.readline() == "learning\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    out, err = ended(process)
    assert out == "interrupted\n" and "KeyboardInterrupt" in err
    assert process.returncode == -signal.SIGINT, err  # and not of a segmentation fault


def test_ctrl_c_in_learning_is_a_keyboard_interrupt_and_no_crash(tmp_path):
    interrupted_learning(1.7, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("delay", np.arange(1.0, 3.0, 0.2).round(1))
def test_ctrl_c_in_learning_is_a_keyboard_interrupt_and_no_crash_at_any_moment(delay, tmp_path):
    interrupted_learning(delay, tmp_path)


@pytest.fixture(scope="module")
def map_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("maps") / "map.hipgp"
    data = hg.observe(hg.Points(np.linspace(0, 1, 20)), np.zeros(20), noise=0.1)
    hg.GP(hg.Matern32(1.0, 0.3), hg.Grid.cover(0.0, 1.0, shape=8)).condition(data, hg.Batch()).save(path)
    return path


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("info", "MAP"), ("info", "MAP", "--json"), ("version",), ("--help",)])
def test_a_full_disk_behind_the_output_is_one_line(arguments, map_file):
    given = [map_file if a == "MAP" else a for a in arguments]
    with open("/dev/full", "w") as full:
        process = started(*COMMAND, *given, folder=map_file.parent, stdout=full)
        _, err = ended(process)
    assert process.returncode in (1, 2)
    assert len(err.splitlines()) == 1 and err.startswith("error: ")


@pytest.mark.parametrize("arguments", [("info", "MAP"), ("info", "MAP", "--json"), ("version",), ("--help",)])
def test_a_closed_pipe_is_silence(arguments, map_file):
    given = [map_file if a == "MAP" else a for a in arguments]
    reader, writer = os.pipe()
    os.close(reader)
    process = started(*COMMAND, *given, folder=map_file.parent, stdout=writer)
    os.close(writer)
    _, err = ended(process)
    assert err == "" and process.returncode == 1


def test_importing_the_package_is_quick_and_keeps_its_names(tmp_path):
    """Signals are caught before JAX is imported: `import hipgp` must not import it."""
    ask = "import sys, hipgp; print('jax' in sys.modules, 'GP' in dir(hipgp), hipgp.GP, hipgp.model.kernels.Matern32)"
    process = started(sys.executable, "-c", ask, folder=tmp_path)
    out, err = ended(process)
    assert out == "False True <class 'hipgp.gp.GP'> <class 'hipgp.model.kernels.Matern32'>\n", err
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hg.nothing  # noqa: B018
