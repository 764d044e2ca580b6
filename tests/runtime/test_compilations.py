"""Compiled programs are kept on disk where the user does not say otherwise. JAX's settings are those of a new process."""

import os
import subprocess
import sys

import pytest

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
