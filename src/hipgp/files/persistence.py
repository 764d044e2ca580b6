"""Posteriors to and from plain arrays and JSON: what a file must hold for a loaded map to answer as the saved one.

The linear system is not stored: it follows from kernel, grid, data and settings, and is rebuilt when first needed.
"""

import functools
import math
import operator
import platform
from typing import Any

import jax.numpy as jnp
import numpy as np

from hipgp.batch.engine import Batch
from hipgp.batch.posterior import BatchPosterior, Deferred
from hipgp.learning.search import Learned
from hipgp.model import functionals as hf
from hipgp.model import kernels as hk
from hipgp.model.data import Data, check_differentiable, check_inside, observe
from hipgp.model.grid import Grid
from hipgp.model.trend import Trend
from hipgp.runtime.precision import float64_available
from hipgp.variational.engine import Variational, VariationalPosterior
from hipgp.variational.families import gaussian
from hipgp.variational.whitening import whiten

Engine = BatchPosterior | VariationalPosterior
Arrays = dict[str, np.ndarray]
Json = dict[str, Any]

# what each kind of functional is made from: arrays, and settings
FUNCTIONALS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Points": (("x",), ()),
    "Derivatives": (("x", "direction"), ()),
    "LineIntegrals": (("start", "end"), ("average", "nodes_per_ray", "rule", "seed")),
    "BoxAverages": (("lower", "upper"), ("nodes_per_box", "rule", "seed")),
    "Functionals": (("nodes", "weights", "direction"), ()),
}
STORED_AS = {"nodes": "positions"}  # arguments whose field has another name
EXTRA = {"RationalQuadratic": ("alpha",), "Gneiting": ("alpha",)}


def pack(engine: Engine, learned: Learned | None) -> tuple[Arrays, Json]:
    """The arrays and the description of a posterior."""
    arrays: Arrays = {}
    model: Json = {
        "kernel": kernel_to_json(engine.kernel),
        "grid": {k: list(getattr(engine.grid, k)) for k in ("origin", "spacing", "shape")},
        "noise": None if engine.noise is None else float(engine.noise),
        "diagnostics": plain(engine.diagnostics),
        "learned": None if learned is None else learned_to_json(learned),
        "provenance": provenance(),
    }
    settings = engine.method if isinstance(engine, BatchPosterior) else engine.settings
    model["settings"] = {name: plain(getattr(settings, name)) for name in settings.__dataclass_fields__}
    if isinstance(engine, BatchPosterior):
        model |= {"engine": "batch", "data": pack_data(engine.data, arrays), "trend": engine.trend.kind}
        for name in ("alpha", "field", "beta", "beta_covariance", "noise_variance"):
            arrays[name] = np.asarray(getattr(engine, name))
        if engine.trend.columns is not None:
            arrays["trend_columns"] = engine.trend.columns
    else:
        model |= {"engine": "variational", "dtype": str(np.dtype(engine.dtype))}
        arrays["q_mean"], arrays["q_precision"] = np.asarray(engine.q.mean), np.asarray(engine.q.precision)
    return arrays, model


def unpack(arrays: Arrays, model: Json) -> tuple[Engine, Learned | None]:
    """The posterior that was packed; a ValueError where something is missing, out of range or does not fit."""
    try:
        kernel, grid = kernel_from_json(model["kernel"]), Grid(**model["grid"])
        kernel.check_dimension(grid.ndim)
        learned = None if model["learned"] is None else learned_from_json(model["learned"])
        _check_described(model)
        settings: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in model["settings"].items()
        }
        if model["engine"] == "variational":
            return _variational(kernel, grid, arrays, model, Variational(**settings)), learned
        return _batch(kernel, grid, arrays, model, Batch(**settings)), learned
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"map: expected a complete model, got one without {error}") from None


def _check_described(model: Json) -> None:
    """Raise a ValueError where what is not an array is out of range or missing."""
    noise = model["noise"]
    if noise is not None and not (isinstance(noise, float) and 0 < noise < math.inf):
        raise ValueError(f"noise: expected a positive standard deviation or none, got {noise!r}")
    if model["engine"] not in ("batch", "variational"):
        raise ValueError(f"engine: expected batch or variational, got {model['engine']!r}")
    about = model["provenance"]
    if not all(isinstance(part, dict) for part in (model["diagnostics"], about, about["packages"])):
        raise ValueError("diagnostics, provenance: expected names and values, got something else")
    if not all(isinstance(said, str) for said in (about["created"], about["packages"]["hipgp"])):
        raise ValueError("provenance: expected when and by which version it was made, got something else")


def _batch(kernel: hk.Kernel, grid: Grid, arrays: Arrays, model: Json, method: Batch) -> BatchPosterior:
    data = unpack_data(model["data"], arrays)
    for block in data.blocks:
        check_inside(block.functional, grid)
    check_differentiable(kernel.differentiable, data)
    noise = model["noise"]
    data.noise_std(noise)  # says so where there is none
    trend = Trend(arrays["trend_columns"] if model["trend"] == "columns" else model["trend"])
    n, p = len(data), trend.count(grid.ndim)
    if trend.columns is not None:
        _check_shapes(arrays, {"trend_columns": (n, p)})
    shapes = {"alpha": (n,), "field": (grid.size,), "noise_variance": (n,), "beta": (p,)}
    _check_shapes(arrays, shapes | {"beta_covariance": (p, p)})
    if not np.all(arrays["noise_variance"] > 0):
        raise ValueError("noise_variance: expected positive numbers, got others")
    system = Deferred(method, kernel, grid, data, noise)
    solved: dict[str, Any] = {
        name: arrays[name] for name in ("alpha", "field", "beta", "beta_covariance", "noise_variance")
    }
    found = {"deferred": system, "diagnostics": model["diagnostics"]} | solved
    return BatchPosterior(kernel, grid, noise, data, trend, method, **found)


@float64_available
def _variational(
    kernel: hk.Kernel, grid: Grid, arrays: Arrays, model: Json, settings: Variational
) -> VariationalPosterior:
    if model["dtype"] not in ("float32", "float64"):
        raise ValueError(f"dtype: expected float32 or float64, got {model['dtype']!r}")
    if arrays["q_mean"].size < grid.size:  # before a torus is made for it
        raise ValueError(f"map: expected q_mean of at least {grid.size} numbers, got {arrays['q_mean'].size}")
    whitening = whiten(kernel, grid, settings.whitening)
    blocks = settings.blocks(whitening, grid)
    count, each = blocks.index.shape
    _check_shapes(arrays, {"q_mean": (blocks.size,), "q_precision": (count, each, each)})
    q = gaussian(blocks, jnp.asarray(arrays["q_mean"]), jnp.asarray(arrays["q_precision"]))
    if not bool(jnp.all(jnp.isfinite(q.factor))):
        raise ValueError("q_precision: expected positive definite matrices, got others")
    found = model["diagnostics"], np.dtype(model["dtype"])
    return VariationalPosterior(kernel, grid, model["noise"], whitening, q, None, settings, *found)


def _check_shapes(arrays: Arrays, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise a ValueError where an array is missing, of another shape, or not finite."""
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(
                f"map: expected {name} of shape {shape}, got {arrays[name].shape}; another version of hipgp may have "
                "written it: fit it again"
            )
        if not np.all(np.isfinite(arrays[name])):
            raise ValueError(f"map: expected finite numbers in {name}, got others")


def pack_data(data: Data, arrays: Arrays) -> list[Json]:
    """Describe every block; its arrays are added to `arrays`."""
    blocks = []
    for number, block in enumerate(data.blocks):
        kind = type(block.functional).__name__
        if kind not in FUNCTIONALS or type(block.functional) is not getattr(hf, kind):
            raise ValueError(
                f"data: expected functionals of hipgp's own kinds in a map to be saved, got {kind}; give yours as "
                "Functionals(nodes, weights)"
            )
        of_arrays, settings = FUNCTIONALS[kind]
        held = {name: getattr(block.functional, STORED_AS.get(name, name)) for name in of_arrays}
        held |= {"y": block.y, "noise": block.noise}
        for name, values in held.items():
            if values is not None:
                arrays[f"data{number}_{name}"] = values
        blocks.append({"kind": kind, "settings": {s: getattr(block.functional, s) for s in settings}})
    return blocks


def unpack_data(blocks: list[Json], arrays: Arrays) -> Data:
    made = []
    for number, block in enumerate(blocks):
        if block["kind"] not in FUNCTIONALS:
            raise ValueError(
                f"map: expected a functional among {', '.join(FUNCTIONALS)}, got {block['kind']!r}"
            )
        of_arrays, settings = FUNCTIONALS[block["kind"]]
        held = {name: arrays.get(f"data{number}_{name}") for name in of_arrays}
        functional = getattr(hf, block["kind"])(**held, **{s: block["settings"][s] for s in settings})
        y, noise = arrays[f"data{number}_y"], arrays.get(f"data{number}_noise")
        if noise is not None and noise.shape != y.shape:
            raise ValueError(f"map: expected a noise for each of {len(y)} values, got shape {noise.shape}")
        made.append(observe(functional, y, noise))
    if not made:
        raise ValueError("map: expected observations, got none")
    return functools.reduce(operator.add, made)


def kernel_to_json(kernel: hk.Kernel) -> Json:
    kind = type(kernel).__name__
    if isinstance(kernel, hk.Sum | hk.Product):
        return {"kind": kind, "left": kernel_to_json(kernel.left), "right": kernel_to_json(kernel.right)}
    if hk.elementary().get(kind) is not type(kernel):
        raise ValueError(f"kernel: expected one of hipgp's own in a map to be saved, got {kind}")
    names = ("variance", "lengthscale", *EXTRA.get(kind, ()))
    return {"kind": kind} | {name: np.asarray(getattr(kernel, name), float).tolist() for name in names}


def kernel_from_json(told: Json) -> hk.Kernel:
    if told["kind"] in ("Sum", "Product"):
        left, right = kernel_from_json(told["left"]), kernel_from_json(told["right"])
        return left + right if told["kind"] == "Sum" else left * right
    if told["kind"] not in hk.elementary():
        raise ValueError(f"map: expected a kernel among {', '.join(hk.elementary())}, got {told['kind']!r}")
    return hk.elementary()[told["kind"]](**{k: v for k, v in told.items() if k != "kind"})


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


def plain(value: Any) -> Any:
    """Numbers, strings, lists and dicts out of NumPy scalars, arrays and tuples."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    return value
