"""Importing hipgp loads only what every use of it needs; tables, files, plots and optimisers are imported where they are used."""

import subprocess
import sys

import pytest

HEAVY = [
    "pandas",
    "xarray",
    "zarr",
    "matplotlib",
    "scipy.optimize",
    "scipy.spatial",
    "scipy.fft",
    "typer",
    "optax",
    "rich",
]
CASES = {
    "hipgp; hipgp.GP; hipgp.Grid; hipgp.Points; hipgp.Matern32": HEAVY,
    "hipgp.batch.engine, hipgp.learning.search, hipgp.files.io": HEAVY,
}


@pytest.mark.parametrize(("imported", "unwanted"), CASES.items(), ids=["public names", "rooms"])
def test_heavy_modules_are_imported_only_where_they_are_used(imported, unwanted):
    """Runs in a subprocess: this one has imported them all."""
    code = f"import {imported}\nimport sys\nprint(*[name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
