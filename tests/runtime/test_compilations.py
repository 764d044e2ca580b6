"""Compiled programs are kept on disk where the user does not say otherwise. JAX's settings are those of a new process."""

import os
import subprocess
import sys

import pytest

from hipgp.runtime import compilations

CODE = """
import jax
{before}
{use}
print(jax.config.jax_compilation_cache_dir)
"""


KEEP = "from hipgp.runtime import compilations; compilations.keep()"


def folder(tmp_path, before="", use=KEEP, **variables):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    environment.pop("HIPGP_CACHE", None)
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(before=before, use=use)],
        env=environment | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_usual_folder_is_the_users_cache_for_this_processor(tmp_path):
    found = folder(tmp_path, use="import hipgp; hipgp.load")
    assert found.startswith(str(tmp_path / "hipgp" / "jax-")) and os.path.isdir(found)


@pytest.mark.parametrize("told", ["off", "0"])
def test_it_can_be_turned_off(tmp_path, told):
    assert folder(tmp_path, HIPGP_CACHE=told) == "None"
    assert not os.listdir(tmp_path)


def test_another_folder_can_be_given_and_the_users_own_stays(tmp_path):
    assert folder(tmp_path, HIPGP_CACHE=str(tmp_path / "here")) == str(tmp_path / "here")
    own = 'jax.config.update("jax_compilation_cache_dir", "/own")'
    assert folder(tmp_path, before=own) == "/own"


def test_how_long_a_program_must_compile_to_be_kept_is_the_users_if_told(tmp_path):
    shortest = "; print(jax.config.jax_persistent_cache_min_compile_time_secs)"
    told = folder(tmp_path, use=KEEP + shortest, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="7")
    assert told.split()[0] == "7.0"


def test_programs_that_were_not_used_for_longest_go_where_the_limit_is_passed(tmp_path):
    names = [f"{name}-cache" for name in "abcdefgh"] + ["notes.txt"]
    for age, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    os.utime(tmp_path / "h-cache", (2e9, 0))  # written first, but read last
    compilations.limit(tmp_path, 800)
    assert len(os.listdir(tmp_path)) == 9  # not beyond the limit: all stay
    compilations.limit(tmp_path, 799)
    assert sorted(os.listdir(tmp_path)) == [
        "a-cache",
        "b-cache",
        "c-cache",
        "d-cache",
        "h-cache",
        "notes.txt",
    ]


def test_the_folder_is_limited_when_the_library_is_used(tmp_path):
    own = tmp_path / "here"
    own.mkdir()
    (own / "old-cache").write_bytes(bytes(2000))
    small = "from hipgp.runtime import compilations; compilations.LIMIT = 1000; compilations.keep()"
    folder(tmp_path, use=small, HIPGP_CACHE=str(own))
    assert not list(own.glob("*-cache"))
