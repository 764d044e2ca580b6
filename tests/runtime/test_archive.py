"""Files are whole or not there, whoever else writes to the same name, and what a killed writer left is removed."""

import os
import subprocess
import sys
import threading

import pytest

from hipgp.runtime import archive
from hipgp.runtime.archive import atomic

KILLED = """
import os, signal, sys
from hipgp.runtime.archive import atomic
with atomic(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_threads_that_write_to_one_name_do_not_mix(tmp_path):
    path, begin, failed = tmp_path / "map", threading.Barrier(4), []

    def write(letter):
        begin.wait()
        try:
            for _ in range(20):
                archive.write(path, {"a": letter * 100_000, "b": letter * 100_000})
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=write, args=(bytes([65 + i]),)) for i in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failed and names(tmp_path) == ["map"]
    with open(path, "rb") as file:
        members = archive.read(file)
    assert members["a"] == members["b"] and len(members["a"]) == 100_000


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL and file locks")
def test_what_a_killed_writer_left_is_removed(tmp_path):
    path = tmp_path / "map"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    assert len(names(tmp_path)) == 1 and not path.exists()
    (tmp_path / ".map.of-the-user.tmp").write_text("kept")
    with atomic(path) as slow:  # one that is under way is left alone
        slow.write(b"slow")
        with atomic(path) as quick:
            quick.write(b"quick")
        assert path.read_bytes() == b"quick"
    assert path.read_bytes() == b"slow" and names(tmp_path) == [".map.of-the-user.tmp", "map"]


def test_names_may_be_long_and_modes_are_as_usual(tmp_path):
    path = tmp_path / ("m" * 250)
    with atomic(path) as file:
        file.write(b"whole")
    (tmp_path / "plain").write_bytes(b"")
    assert path.read_bytes() == b"whole" and path.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt])
def test_a_stopped_write_leaves_nothing(tmp_path, stop):
    with pytest.raises(stop), atomic(tmp_path / "map") as file:
        file.write(b"half")
        raise stop
    assert names(tmp_path) == []


def test_the_digest_covers_names_and_contents(tmp_path):
    archive.write(tmp_path / "a", {"ab": b"c"})
    archive.write(tmp_path / "b", {"a": b"bc"})
    seals = [(tmp_path / name).read_bytes()[-64:] for name in "ab"]
    assert seals[0] != seals[1]
