"""Infer a field from noisy linear measurements of it, and say how sure you are."""

import importlib
from typing import TYPE_CHECKING, Any

from hipgp.data import Data, observe
from hipgp.functionals import BoxAverages, Derivatives, Functionals, LineIntegrals, Points
from hipgp.gp import GP, Posterior, Prediction, load
from hipgp.grid import Grid
from hipgp.inference.batch import Batch
from hipgp.inference.grid_facts import GridTooCoarse
from hipgp.inference.variational import Variational
from hipgp.kernels import (
    Gneiting,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    SquaredExponential,
)

if TYPE_CHECKING:
    from hipgp.estimator import HIPGPRegressor as HIPGPRegressor

__version__ = "0.1.0"

_LAZY = {"HIPGPRegressor": "hipgp.estimator"}  # not in __all__: its module needs scikit-learn


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise ImportError(f"{name} needs scikit-learn: pip install 'hipgp[sklearn]'") from error


__all__ = [
    "GP",
    "Batch",
    "BoxAverages",
    "Data",
    "Derivatives",
    "Functionals",
    "Gneiting",
    "Grid",
    "GridTooCoarse",
    "LineIntegrals",
    "Matern12",
    "Matern32",
    "Matern52",
    "Points",
    "Posterior",
    "Prediction",
    "RationalQuadratic",
    "SquaredExponential",
    "Variational",
    "load",
    "observe",
]
