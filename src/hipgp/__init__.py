"""Infer a field from noisy linear measurements of it, and say how sure you are."""

from hipgp.data import Data, observe
from hipgp.functionals import BoxAverages, Derivatives, Functionals, LineIntegrals, Points
from hipgp.gp import GP, Posterior, Prediction
from hipgp.grid import Grid
from hipgp.inference.batch import Batch
from hipgp.inference.variational import Variational
from hipgp.kernels import (
    Gneiting,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    SquaredExponential,
)

__version__ = "0.1.0"

__all__ = [
    "GP",
    "Batch",
    "BoxAverages",
    "Data",
    "Derivatives",
    "Functionals",
    "Gneiting",
    "Grid",
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
    "observe",
]
