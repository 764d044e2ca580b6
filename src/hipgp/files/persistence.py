"""Conversion of posteriors to arrays and JSON, from which a loaded map predicts as the saved one.

The linear system is not stored: it follows from kernel, grid, data and settings, and is rebuilt when it is first needed.
An engine is imported when a map that it made is loaded.
"""

import importlib
import math
import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from hipgp.engines import Method
from hipgp.model.covariates import pack_design, unpack_design
from hipgp.model.frames import Frame
from hipgp.model.grid import Grid
from hipgp.model.packing import kernel_from_json, kernel_to_json
from hipgp.model.sublattice import Sublattice
from hipgp.runtime.plain import Arrays, Json, plain

if TYPE_CHECKING:
    from hipgp.learning.learned import Learned
    from hipgp.posterior import Posterior

# The engines that a map may be of, by `Method.name`: the module and the class of their settings.
ENGINES = {
    "batch": ("hipgp.batch.engine", "Batch"),
    "streamed": ("hipgp.batch.streamed", "Streamed"),
    "variational": ("hipgp.variational.engine", "Variational"),
    "exact": ("hipgp.exact", "Exact"),
    "linearised": ("hipgp.nonlinear.engine", "Linearised"),
    "averaged": ("hipgp.averaging", "Averaged"),
}


def pack(post: "Posterior") -> tuple[Arrays, Json]:
    """The arrays and the description of a posterior."""
    engine, learned, method = post.engine, post.learned, post.engine.method
    arrays, of_engine = engine.pack()
    model: Json = {
        "kernel": kernel_to_json(engine.kernel),
        "grid": {k: list(getattr(post.grid, k)) for k in ("origin", "spacing", "shape")},
        "noise": None if engine.noise is None else float(engine.noise),
        "diagnostics": plain(engine.diagnostics),
        "learned": None if learned is None else _learned_to_json(learned),
        "provenance": _provenance(),
        "engine": method.name,
        "settings": method.settings(),
        "unit": post.unit,
        "shown": list(post.shown.steps),  # steps of the engine's grid
        "frame": post.frame,
    }
    if post.design is not None:
        of_columns, model["design"] = pack_design(post.design)
        arrays |= of_columns
    return arrays, model | of_engine


def unpack(arrays: Arrays, model: Json) -> dict[str, Any]:
    """The fields of the posterior that was packed; a ValueError where something is missing, out of range or does not fit."""
    design = unpack_design(model.get("design"), arrays)
    try:
        kernel, grid = kernel_from_json(model["kernel"]), Grid(**model["grid"])
        kernel.check_dimension(grid.ndim)
        shown = _shown_from_json(model.get("shown", []), grid.ndim)
        learned = None if model["learned"] is None else _learned_from_json(model["learned"])
        _check_described(model)
        method = _method(model["engine"], model["settings"])
        engine = method.unpack(kernel, shown.refined(grid), model["noise"], arrays, model)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"map: expected a complete model, got one without {error}") from None
    frame = _frame_from_json(model.get("frame"))
    return {
        "engine": engine,
        "learned": learned,
        "unit": int(model["unit"]),
        "shown": shown,
        "frame": frame,
        "design": design,
    }


def _method(engine: str, settings: Json) -> Method:
    """The settings of an engine, which may hold another one's under "method"."""
    module, name = ENGINES[engine]
    if isinstance(inner := settings.get("method"), dict):
        settings = settings | {"method": _method(inner["name"], inner["settings"])}
    return getattr(importlib.import_module(module), name).of_settings(settings)


def _check_described(model: Json) -> None:
    """Raise a ValueError where a part of the JSON description is missing or out of range."""
    noise = model["noise"]
    if noise is not None and not (isinstance(noise, float) and 0 < noise < math.inf):
        raise ValueError(f"noise: expected a positive standard deviation or none, got {noise!r}")
    if model["engine"] not in ENGINES:
        raise ValueError(f"engine: expected one of {', '.join(ENGINES)}, got {model['engine']!r}")
    about = model["provenance"]
    if not all(isinstance(part, dict) for part in (model["diagnostics"], about, about["packages"])):
        raise ValueError("diagnostics, provenance: expected names and values, got something else")
    if not all(isinstance(text, str) for text in (about["created"], about["packages"]["hipgp"])):
        raise ValueError("provenance: expected when and by which version it was made, got something else")


def _learned_to_json(learned: "Learned") -> Json:
    packed = {name: plain(value) for name, value in learned._asdict().items() if name != "kernel"}
    return packed | {"kernel": kernel_to_json(learned.kernel)}


def _learned_from_json(packed: Json) -> "Learned":
    arrays = {name: np.asarray(packed[name], float) for name in ("values", "log_covariance")}
    count = len(packed["names"])
    shapes = {"values": (count,), "log_covariance": (count, count)}
    if any(a.shape != shapes[k] for k, a in arrays.items()) or not np.all(arrays["values"] > 0):
        raise ValueError(
            "learned: expected a positive value for each parameter and their covariance, got others"
        )
    if not isinstance(packed.get("choice", ""), str):
        raise ValueError("learned: expected words on the choice of the kernel, got something else")
    if not all(isinstance(step, dict) for step in packed["trace"]):
        raise ValueError("learned: expected a trace of steps, got something else")
    from hipgp.learning.learned import Learned

    frame = _frame_from_json(packed.get("frame"))
    return Learned(**{**packed, **arrays, "kernel": kernel_from_json(packed["kernel"]), "frame": frame})


def _frame_from_json(packed: Any) -> Frame:
    """The units of a map's axes and field; none where it says nothing of them."""
    if packed is None:
        return Frame()
    axes, field, *crs = packed
    if not all(isinstance(word, str) for word in (*axes, field, *crs)) or len(crs) > 1:
        raise ValueError("frame: expected units in words, got something else")
    return Frame(tuple(axes), field, *crs)


def _shown_from_json(packed: Any, ndim: int) -> Sublattice:
    """The points of the engine's grid that the map is shown at; all where it says nothing of them."""
    whole = isinstance(packed, list) and all(type(step) is int and step >= 1 for step in packed)
    if not whole or len(packed) not in (0, ndim):
        raise ValueError(f"shown: expected a number of cells for each of {ndim} axes, got {packed!r}")
    return Sublattice(tuple(packed))


def _provenance() -> Json:
    """The date of the file, the versions that made it, and the kind of machine."""
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
