"""Infer a field from noisy linear measurements of it, and say how sure you are."""

# Names are imported when they are first used: JAX takes seconds to import, and the command must be able to stop by then.
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import hipgp.runtime.interrupts as _interrupts
import hipgp.runtime.processes as _processes  # noqa: F401  (notices when this process is forked)

if TYPE_CHECKING:
    from hipgp.batch.engine import Batch
    from hipgp.classifier import HIPGPClassifier as HIPGPClassifier
    from hipgp.comparison import compare
    from hipgp.estimator import HIPGPRegressor as HIPGPRegressor
    from hipgp.exact import Exact
    from hipgp.gp import GP
    from hipgp.model.counts import Bernoulli, Binomial, NegativeBinomial, Poisson
    from hipgp.model.data import Data, observe
    from hipgp.model.functionals import BoxAverages, Derivatives, Functionals, LineIntegrals, Points
    from hipgp.model.grid import Grid
    from hipgp.model.kernels import (
        Gneiting,
        Matern12,
        Matern32,
        Matern52,
        RationalQuadratic,
        SquaredExponential,
    )
    from hipgp.model.likelihood import Likelihood
    from hipgp.model.likelihoods import Beta, Censored, Gamma, Gaussian, LogNormal, StudentT
    from hipgp.model.links import Link
    from hipgp.model.paths import PathIntegrals
    from hipgp.model.periodic import Periodic
    from hipgp.model.point_pattern import point_pattern
    from hipgp.model.polygons import PolygonAverages
    from hipgp.model.sphere import GreatCircles, Region, sphere
    from hipgp.model.stream import observe_from
    from hipgp.nonlinear.engine import Linearised
    from hipgp.posterior import Posterior, load
    from hipgp.predictions import Prediction
    from hipgp.variational.engine import Variational
    from hipgp.vecchia.grid_check import GridTooCoarse

__version__ = "0.1.0"

_MODULES = {
    "hipgp.model.data": ("Data", "observe"),
    "hipgp.model.stream": ("observe_from",),
    "hipgp.classifier": (
        "HIPGPClassifier",
    ),  # not in __all__, nor is the next: their modules need scikit-learn
    "hipgp.estimator": ("HIPGPRegressor",),
    "hipgp.model.functionals": ("BoxAverages", "Derivatives", "Functionals", "LineIntegrals", "Points"),
    "hipgp.gp": ("GP",),
    "hipgp.posterior": ("Posterior", "load"),
    "hipgp.predictions": ("Prediction",),
    "hipgp.model.grid": ("Grid",),
    "hipgp.batch.engine": ("Batch",),
    "hipgp.exact": ("Exact",),
    "hipgp.comparison": ("compare",),
    "hipgp.vecchia.grid_check": ("GridTooCoarse",),
    "hipgp.model.counts": ("Bernoulli", "Binomial", "NegativeBinomial", "Poisson"),
    "hipgp.model.likelihood": ("Likelihood",),
    "hipgp.model.likelihoods": ("Beta", "Censored", "Gamma", "Gaussian", "LogNormal", "StudentT"),
    "hipgp.model.links": ("Link",),
    "hipgp.model.paths": ("PathIntegrals",),
    "hipgp.model.periodic": ("Periodic",),
    "hipgp.model.point_pattern": ("point_pattern",),
    "hipgp.model.polygons": ("PolygonAverages",),
    "hipgp.model.sphere": ("GreatCircles", "Region", "sphere"),
    "hipgp.nonlinear.engine": ("Linearised",),
    "hipgp.variational.engine": ("Variational",),
    "hipgp.model.kernels": (
        "Gneiting",
        "Matern12",
        "Matern32",
        "Matern52",
        "RationalQuadratic",
        "SquaredExponential",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_APPS = ("demos", "report", "simulate")  # modules that are reached as hipgp.report and so on


def __getattr__(name: str) -> Any:
    with _interrupts.postponed():
        value = _found(name)
    globals()[name] = value
    return value


def _found(name: str) -> Any:
    """What a public name stands for, or a module of the package."""
    if name in _HOMES:
        try:
            return getattr(importlib.import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "sklearn":
                raise
            raise ImportError(f"{name} needs scikit-learn: pip install 'hipgp[sklearn]'") from error
    elif name in _APPS:
        return importlib.import_module(f"{__name__}.apps.{name}")
    elif not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )  # of which Python suggests the nearest name


def __dir__() -> list[str]:
    return sorted(
        {*__all__, *_APPS, "plots", *(name for names in _MODULES.values() for name in names), "__version__"}
    )


__all__ = [
    "GP",
    "Batch",
    "Bernoulli",
    "Beta",
    "Binomial",
    "BoxAverages",
    "Censored",
    "Data",
    "Derivatives",
    "Exact",
    "Functionals",
    "Gamma",
    "Gaussian",
    "Gneiting",
    "GreatCircles",
    "Grid",
    "GridTooCoarse",
    "Likelihood",
    "LineIntegrals",
    "Linearised",
    "Link",
    "LogNormal",
    "Matern12",
    "Matern32",
    "Matern52",
    "NegativeBinomial",
    "PathIntegrals",
    "Periodic",
    "Points",
    "Poisson",
    "PolygonAverages",
    "Posterior",
    "Prediction",
    "RationalQuadratic",
    "Region",
    "SquaredExponential",
    "StudentT",
    "Variational",
    "compare",
    "load",
    "observe",
    "observe_from",
    "point_pattern",
    "sphere",
]
