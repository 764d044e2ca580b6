"""Posteriors to and from plain arrays and JSON: what a file must hold for a loaded map to answer as the saved one.

The linear system is not stored: it follows from kernel, grid, data and settings, and is rebuilt when first needed.
"""

import math
import platform

import numpy as np

from hipgp.batch.engine import Batch
from hipgp.engines import FittedPosterior, Method
from hipgp.exact import Exact
from hipgp.learning.search import Learned
from hipgp.model.grid import Grid
from hipgp.model.packing import Arrays, Json, kernel_from_json, kernel_to_json, plain
from hipgp.nonlinear.engine import Linearised
from hipgp.variational.engine import Variational

METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (Batch, Variational, Exact, Linearised)
}  # that a map may be of


def pack(engine: FittedPosterior, learned: Learned | None) -> tuple[Arrays, Json]:
    """The arrays and the description of a posterior."""
    arrays, own = engine.pack()
    method = engine.method
    model: Json = {
        "kernel": kernel_to_json(engine.kernel),
        "grid": {k: list(getattr(engine.grid, k)) for k in ("origin", "spacing", "shape")},
        "noise": None if engine.noise is None else float(engine.noise),
        "diagnostics": plain(engine.diagnostics),
        "learned": None if learned is None else learned_to_json(learned),
        "provenance": provenance(),
        "engine": method.name,
        "settings": method.settings(),
    }
    return arrays, model | own


def unpack(arrays: Arrays, model: Json) -> tuple[FittedPosterior, Learned | None]:
    """The posterior that was packed; a ValueError where something is missing, out of range or does not fit."""
    try:
        kernel, grid = kernel_from_json(model["kernel"]), Grid(**model["grid"])
        kernel.check_dimension(grid.ndim)
        learned = None if model["learned"] is None else learned_from_json(model["learned"])
        _check_described(model)
        method = METHODS[model["engine"]].of_settings(model["settings"])
        return method.unpack(kernel, grid, model["noise"], arrays, model), learned
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"map: expected a complete model, got one without {error}") from None


def _check_described(model: Json) -> None:
    """Raise a ValueError where what is not an array is out of range or missing."""
    noise = model["noise"]
    if noise is not None and not (isinstance(noise, float) and 0 < noise < math.inf):
        raise ValueError(f"noise: expected a positive standard deviation or none, got {noise!r}")
    if model["engine"] not in METHODS:
        raise ValueError(f"engine: expected one of {', '.join(METHODS)}, got {model['engine']!r}")
    about = model["provenance"]
    if not all(isinstance(part, dict) for part in (model["diagnostics"], about, about["packages"])):
        raise ValueError("diagnostics, provenance: expected names and values, got something else")
    if not all(isinstance(said, str) for said in (about["created"], about["packages"]["hipgp"])):
        raise ValueError("provenance: expected when and by which version it was made, got something else")


def learned_to_json(learned: Learned) -> Json:
    told = {name: plain(value) for name, value in learned._asdict().items() if name != "kernel"}
    return told | {"kernel": kernel_to_json(learned.kernel)}


def learned_from_json(told: Json) -> Learned:
    arrays = {name: np.asarray(told[name], float) for name in ("values", "log_std")}
    if any(a.shape != (len(told["names"]),) for a in arrays.values()) or not np.all(arrays["values"] > 0):
        raise ValueError(
            "learned: expected a positive value and an uncertainty for each parameter, got others"
        )
    if not all(isinstance(step, dict) for step in told["trace"]):
        raise ValueError("learned: expected a trace of steps, got something else")
    return Learned(**{**told, **arrays, "kernel": kernel_from_json(told["kernel"])})


def provenance() -> Json:
    """Who made the file, with what, when."""
    import datetime
    from importlib.metadata import version

    import hipgp

    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    packages = {"hipgp": hipgp.__version__} | {name: version(name) for name in ("jax", "numpy")}
    return {
        "created": now,
        "packages": packages,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
