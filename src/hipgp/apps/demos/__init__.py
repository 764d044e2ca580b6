"""Small complete problems with a known truth: `hipgp demo NAME`, or `hipgp.apps.demos.run(name, folder)`."""

import importlib
import pathlib

from hipgp.apps.demos.outcome import Outcome

DEMOS = {
    "dust": "a 3-D map of interstellar dust from starlight: a positive field, line integrals, kernel learned (default)",
    "prices": "house prices in 2-D, crowded into towns: 8,000 points, kernel and noise learned",
    "derivative": "a curve from 100 values and 20 slopes (the paper's section 5.3)",
    "tomography": "a slice from parallel beams: 2,016 line integrals in 2-D",
    "areas": "averages over cells and values at points, fused into one map",
    "timeseries": "20,000 irregular samples of a signal on a grid of a million points",
}


def run(name: str, folder: str | pathlib.Path, seed: int = 0, progress: bool = True) -> Outcome:
    """Run one demo; its pictures go into `folder`, which is made if need be."""
    if name not in DEMOS:
        raise ValueError(f"demo: expected one of {', '.join(DEMOS)}, got {name!r}")
    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    return importlib.import_module(f"hipgp.apps.demos.{name}").run(path, seed, progress)


__all__ = ["DEMOS", "Outcome", "run"]
