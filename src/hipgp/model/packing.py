"""Conversion of data, likelihoods and kernels to arrays and JSON, and back, for files of posteriors."""

import functools
import operator
from typing import Any

import numpy as np

from hipgp.model import functionals as hf
from hipgp.model import kernels as hk
from hipgp.model.counts import Bernoulli, Binomial, NegativeBinomial, Poisson
from hipgp.model.data import Data, observe
from hipgp.model.likelihood import Likelihood
from hipgp.model.likelihoods import Beta, Censored, Gamma, Gaussian, LogNormal, StudentT
from hipgp.model.paths import PathIntegrals
from hipgp.model.polygons import PolygonAverages
from hipgp.model.sphere import GreatCircles
from hipgp.model.trend import Trend
from hipgp.runtime.plain import Arrays, Json

# The arguments of each kind of functional: array arguments, and other settings.
FUNCTIONALS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Points": (("x", "std"), ()),
    "Derivatives": (("x", "direction"), ()),
    "LineIntegrals": (("start", "end", "end_std"), ("average", "nodes_per_ray", "rule", "seed")),
    "BoxAverages": (("lower", "upper"), ("nodes_per_box", "rule", "seed")),
    "Functionals": (("nodes", "weights", "direction"), ()),
    "PolygonAverages": (("polygons",), ("total",)),
    "PathIntegrals": (("paths",), ("average",)),
    "GreatCircles": (("start", "end"), ("average",)),
}
STORED_AS = {
    "nodes": "positions",
    "polygons": "table",
    "paths": "table",
}  # attribute names of arguments that are stored under another
KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        hf.Points,
        hf.Derivatives,
        hf.LineIntegrals,
        hf.BoxAverages,
        hf.Functionals,
        PathIntegrals,
        PolygonAverages,
        GreatCircles,
    )
}
LIKELIHOODS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Bernoulli, Beta, Binomial, Censored, Gamma, Gaussian, LogNormal, NegativeBinomial, Poisson, StudentT,
    )
}  # fmt: skip


def _pack_data(data: Data, arrays: Arrays) -> list[Json]:
    """Describe every block of the data in JSON, and add its arrays to `arrays`."""
    blocks = []
    for number, block in enumerate(data.blocks):
        kind = type(block.functional).__name__
        if kind not in FUNCTIONALS or type(block.functional) is not KINDS[kind]:
            raise ValueError(
                f"data: expected functionals that hipgp provides, which can be saved, got {kind}; give it as "
                "Functionals(nodes, weights)"
            )
        of_arrays, settings = FUNCTIONALS[kind]
        fields = {name: getattr(block.functional, STORED_AS.get(name, name)) for name in of_arrays}
        fields |= {"y": block.y, "noise": block.noise}
        for name, values in fields.items():
            if values is not None:
                arrays[f"data{number}_{name}"] = values
        entry = {"kind": kind, "settings": {s: getattr(block.functional, s) for s in settings}}
        if block.likelihood is not None:
            entry["likelihood"] = _likelihood_to_json(block.likelihood, f"data{number}", arrays)
        blocks.append(entry)
    return blocks


def unpack_data(blocks: list[Json], arrays: Arrays) -> Data:
    made = []
    for number, block in enumerate(blocks):
        if block["kind"] not in FUNCTIONALS:
            raise ValueError(
                f"map: expected a functional among {', '.join(FUNCTIONALS)}, got {block['kind']!r}"
            )
        of_arrays, settings = FUNCTIONALS[block["kind"]]
        fields = {name: arrays.get(f"data{number}_{name}") for name in of_arrays}
        functional = KINDS[block["kind"]](**fields, **{s: block["settings"][s] for s in settings})
        y, noise = arrays[f"data{number}_y"], arrays.get(f"data{number}_noise")
        if noise is not None and noise.shape != y.shape:
            raise ValueError(f"map: expected a noise for each of {len(y)} values, got shape {noise.shape}")
        likelihood = _likelihood_from_json(block.get("likelihood"), f"data{number}", arrays)
        made.append(observe(functional, y, noise, likelihood))
    if not made:
        raise ValueError("map: expected observations, got none")
    return functools.reduce(operator.add, made)


def _likelihood_to_json(likelihood: Likelihood, name: str, arrays: Arrays) -> Json:
    """The likelihood's kind and parameters as JSON; parameters with one value per observation go to `arrays`."""
    kind = type(likelihood).__name__
    if LIKELIHOODS.get(kind) is not type(likelihood):
        raise ValueError(f"likelihood: expected one that hipgp provides, which can be saved, got {kind}")
    packed: Json = {"kind": kind, "parameters": {}}
    for parameter, value in likelihood.parameters().items():
        if np.ndim(value) == 0:
            packed["parameters"][parameter] = float(value)
        else:
            arrays[f"{name}_{parameter}"] = np.asarray(value)
            packed["parameters"][parameter] = None
    if isinstance(likelihood, Censored):
        packed["base"] = type(likelihood.base).__name__
    return packed


def _likelihood_from_json(packed: Json | None, name: str, arrays: Arrays) -> Likelihood | None:
    if packed is None:
        return None
    if packed["kind"] not in LIKELIHOODS or packed.get("base", "Gamma") not in LIKELIHOODS:
        raise ValueError(f"map: expected a likelihood among {', '.join(LIKELIHOODS)}, got {packed['kind']!r}")
    values = {
        parameter: arrays[f"{name}_{parameter}"] if value is None else value
        for parameter, value in packed["parameters"].items()
    }
    if packed["kind"] == "Bernoulli":
        return Bernoulli()
    if packed["kind"] == "Censored":
        limits = {limit: values.pop(limit) for limit in ("lower", "upper") if limit in values}
        return Censored(**limits, base=LIKELIHOODS[packed["base"]](**values))
    return LIKELIHOODS[packed["kind"]](**values)


def kernel_to_json(kernel: hk.Kernel) -> Json:
    """The kernel's kind and parameters as JSON; sums and products nest."""
    from hipgp.model.kernel_words import elementary

    kind = type(kernel).__name__
    if isinstance(kernel, hk.Sum | hk.Product):
        return {"kind": kind, "left": kernel_to_json(kernel.left), "right": kernel_to_json(kernel.right)}
    if elementary().get(kind) is not type(kernel):
        raise ValueError(f"kernel: expected one that hipgp provides, which can be saved, got {kind}")
    plain = lambda value: np.asarray(value, float).tolist() if hasattr(value, "shape") else value
    return {"kind": kind} | {name: plain(value) for name, value in kernel.get_params().items()}


def kernel_from_json(packed: Json) -> hk.Kernel:
    """The kernel that `kernel_to_json` described; a ValueError if hipgp does not know its kind."""
    from hipgp.model.kernel_words import elementary

    if packed["kind"] in ("Sum", "Product"):
        left, right = kernel_from_json(packed["left"]), kernel_from_json(packed["right"])
        return left + right if packed["kind"] == "Sum" else left * right
    if packed["kind"] not in elementary():
        raise ValueError(f"map: expected a kernel among {', '.join(elementary())}, got {packed['kind']!r}")
    return elementary()[packed["kind"]](**{k: v for k, v in packed.items() if k != "kind"})


def check_shapes(arrays: Arrays, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise a ValueError if an array has another shape, or is not finite."""
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(
                f"map: expected {name} of shape {shape}, got {arrays[name].shape}; another version of hipgp may have "
                "written it: fit it again"
            )
        if not np.all(np.isfinite(arrays[name])):
            raise ValueError(f"map: expected finite numbers in {name}, got NaN or infinity")


def pack_observations(data: Data, trend: Trend) -> tuple[Arrays, Json]:
    """Data and trend as arrays and a JSON description."""
    arrays: Arrays = {}
    described = {"data": _pack_data(data, arrays), "trend": trend.kind}
    if trend.columns is not None:
        arrays["trend_columns"] = trend.columns
    return arrays, described


def unpack_observations(noise: float | None, ndim: int, arrays: Arrays, model: Json) -> tuple[Data, Trend]:
    """The packed data and trend; `noise` is the standard deviation for observations that were given none."""
    data = unpack_data(model["data"], arrays)
    data.noise_std(noise)  # raises where there is none
    trend = Trend(arrays["trend_columns"] if model["trend"] == "columns" else model["trend"])
    if trend.columns is not None:
        check_shapes(arrays, {"trend_columns": (len(data), trend.count(ndim))})
    return data, trend
