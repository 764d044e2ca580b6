"""The paper's experiments, one file each: `hipgp reproduce NAME`, or `run(NAME, ...)` from Python.

Every file has `run(size, data, folder, progress) -> Result`: `size` is "small" (about a minute on two cores) or "paper",
`data` the folder of the data sets, and figures go into `folder`. The names used are hipgp's public ones.
"""

import importlib
from pathlib import Path
from typing import Any, NamedTuple

from .outcome import Result, Table, command

__all__ = ["EXPERIMENTS", "SIZES", "Experiment", "Result", "Table", "command", "missing", "run"]

SIZES = ("small", "paper")


class Experiment(NamedTuple):
    module: str
    about: str
    data: str | None = None  # the folder it reads in the data folder
    source: str = ""  # where that data set comes from
    pieces: bool = False  # whether a run that was ended goes on where it was


EXPERIMENTS = {
    "preconditioner": Experiment("preconditioner", "CG against PCG on 2-D grids (section 5.1, figure 1)"),
    "preconditioner-sweep": Experiment(
        "preconditioner_sweep", "CG against PCG for four kernels in 1-D (appendix C.1)"
    ),
    "whitening": Experiment("whitening", "seconds to whiten 200 observations (section 5.2, appendix C.2)"),
    "derivatives": Experiment(
        "derivatives",
        "a curve from 100 values and 20 slopes (section 5.3)",
        "derivatives",
        "derivatives.npz: seed 42 of the recipe in github.com/cunningham-lab/hipgp",
    ),
    "housing": Experiment(
        "housing",
        "log prices of houses by longitude and latitude (section 5.4)",
        "uk_house_prices",
        "uk_prices_2018_update.npz: HM Land Registry price paid data joined to OS Code-Point Open postcodes",
        pieces=True,
    ),
    "dust-domain": Experiment(
        "dust_domain",
        "dust from the extinctions of 5,000 simulated stars (section 5.5)",
        "dust_hipgp_domain",
        "domain_subsample.npz: experiments-hip-gp/domain-data of github.com/cunningham-lab/hipgp",
    ),
    "dust-patch": Experiment(
        "dust_patch",
        "dust in a simulated patch of 4 x 4 x 2 kpc, the paper's size (section 5.5)",
        pieces=True,
    ),
    "dust-clusters": Experiment(
        "dust_clusters",
        "a real map of dust from 6,806 star clusters (section 5.5, real data)",
        "dust_clusters_hunt2023",
        "hunt2023_clusters.csv.gz: Hunt & Reffert 2023, from CDS",
    ),
    "large-n": Experiment(
        "large_n",
        "half a million aeromagnetic readings, in place of 3droad (appendix C.3)",
        "gb_aeromagnetic",
        "gb_aeromagnetic.npz: British Geological Survey, by way of github.com/fatiando/harmonica",
        pieces=True,
    ),
}


def missing(name: str, data: Path | None) -> str:
    """Which data set an experiment lacks, where it comes from and what to do; empty where nothing is missing."""
    wanted = EXPERIMENTS[name]
    if not wanted.data or (data is not None and (data / wanted.data).is_dir()):
        return ""
    where = "no folder was named" if data is None else f"there is none in {data}"
    return (
        f"{name} needs the data set {wanted.data} ({wanted.source}), and {where}; "
        "put it there and name the folder above it with --data DIR or HIPGP_DATA"
    )


def run(name: str, size: str, data: Path | None, folder: Path, progress: bool = True) -> Result:
    """One experiment, after a look at what it needs."""
    if name not in EXPERIMENTS:
        raise ValueError(f"reproduce: expected one of {', '.join(EXPERIMENTS)}, got {name!r}")
    if size not in SIZES:
        raise ValueError(f"size: expected one of {', '.join(SIZES)}, got {size!r}")
    if reason := missing(name, data):
        raise ValueError(reason)
    wanted = EXPERIMENTS[name]
    folder.mkdir(parents=True, exist_ok=True)
    module: Any = importlib.import_module(f".{wanted.module}", __name__)
    return module.run(size, data, folder, progress)
