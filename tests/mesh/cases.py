"""What a mesh of simulated devices computes beside one device; a script of its own, since their number is set before JAX starts.

    python tests/mesh/cases.py operators:2d:4 fit:points:4

prints one line of JSON for each case: the largest differences, relative to the largest entry of what one device gives.
"""

import json
import os
import sys
import tempfile

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["HIPGP_CACHE"] = "off"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

import jax
import numpy as np

import hipgp as hg
from hipgp.mesh.covariance import MeshToeplitz
from hipgp.mesh.devices import as_mesh
from hipgp.weights import toeplitz

# none divides by two; the last is shorter than eight slabs of two
GRIDS = {"2d": (17, 5), "3d": (9, 4, 5), "short": (9, 6)}


def off(found, wanted) -> float:
    found, wanted = np.asarray(found, float), np.asarray(wanted, float)
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    return float(np.max(np.abs(found - wanted)) / np.max(np.abs(wanted)))


def adjoint(cut, u) -> float:
    """How far <R e, u> is from <e, R'u>."""
    pulled, rng = np.asarray(cut.root_transpose(u)), np.random.default_rng(1)
    e = rng.normal(size=pulled.shape) + 1j * rng.normal(size=pulled.shape)
    return off(np.sum(np.asarray(cut.root(e)) * u), np.sum((e.conj() * pulled).real))


def operators(kind: str, devices: int) -> dict:
    shape = GRIDS[kind]
    grid = hg.Grid(0.0, (1.0,) * len(shape), shape)
    toeplitz.in_slabs = lambda *_: (True, "")
    k = toeplitz.embed(hg.Matern32(1.7, 2.0), grid)
    cut = MeshToeplitz.on(as_mesh(devices, shape), k.torus, np.asarray(k.orthant), 0.0)
    v, key = np.random.default_rng(0).normal(size=(2, *shape)), jax.random.key(1)
    flat = cut.flat_matmul(v.reshape(2, -1))
    parts = {s.data.shape[1] for s in flat.addressable_shards}
    return {
        "product": off(cut.matmul(v), k.matmul(v)),
        "draw": off(cut.draw(key, 2), k.draw(key, 2)),
        "eigenvalues": off(cut.eigenvalues, k.eigenvalues),
        "root": off(cut.root(cut.root_transpose(v[0])), k.matmul(v[0])),
        "adjoint": adjoint(cut, v[0]),
        "padding": float(np.max(np.abs(np.asarray(flat)[:, grid.size :]), initial=0.0)),
        "slabs": [len(flat.addressable_shards), sorted(parts)],
    }


def problem(kind: str) -> tuple[hg.GP, hg.Data, object]:
    rng = np.random.default_rng(0)
    if kind in ("lines", "walked"):
        grid = hg.Grid.cover((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), shape=(9, 8, 7))
        f = hg.LineIntegrals(np.full(3, 0.5), rng.uniform(0.05, 0.95, (60, 3)))
        at = hg.LineIntegrals(np.full(3, 0.5), rng.uniform(0.05, 0.95, (5, 3)))
    else:
        grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(13, 11))
        spread = 0.02 if kind == "crowded" else 0.5  # clusters are aggregated
        f = hg.Points(0.5 + rng.uniform(-spread, spread, (80, 2)))
        at = hg.Points(rng.uniform(0.1, 0.9, (5, 2)))
    y = rng.normal(size=len(f))
    trend = "linear" if kind == "points" else None
    return hg.GP(hg.Matern32(1.0, 0.4), grid, trend=trend), hg.observe(f, y, noise=0.3), at


def fits(kind: str, devices: int) -> tuple[hg.Posterior, hg.Posterior, object]:
    gp, data, at = problem(kind)
    weights = "matrix-free" if kind == "walked" else "local"
    method = hg.Batch(space="data", tolerance=1e-12, weights=weights)
    one = gp.condition(data, method, progress=False)
    return one, gp.condition(data, method, progress=False, mesh=devices), at


def fit(kind: str, devices: int) -> dict:
    one, many, _ = fits(kind, devices)
    return {
        "mean": off(many.mean, one.mean),
        "sample": off(many.sample(2, progress=False), one.sample(2, progress=False)),
        "steps": [many.diagnostics["iterations"], one.diagnostics["iterations"]],
        "kl_nats": many.diagnostics["kl_nats"],
        "words": [many.diagnostics[name] for name in ("product", "preconditioner")],
    }


def answers(kind: str, devices: int) -> dict:
    """What is asked of a posterior afterwards, also of one from a file and of one with more data."""
    one, many, at = fits(kind, devices)
    how = {"samples": 8, "progress": False}
    with tempfile.TemporaryDirectory() as folder:
        many.save(f"{folder}/map.hipgp")
        loaded = hg.load(f"{folder}/map.hipgp")
    more = hg.observe(at, np.zeros(len(at)), noise=0.2)
    return {
        "std": off(many.std("samples", **how), one.std("samples", **how)),
        "exact": off(many.predict(at, "exact").std, one.predict(at, "exact").std),
        "sample at": off(many.sample(2, at=at, progress=False), one.sample(2, at=at, progress=False)),
        "evidence": off(many.log_evidence().value, one.log_evidence().value),
        "loaded": off(loaded.mean, one.mean),
        "updated": off(many.update(more, progress=False).mean, one.update(more, progress=False).mean),
    }


def errors(kind: str, devices: int) -> dict:
    gp, data, _ = problem(kind)
    wide = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(5, 40))
    line = hg.observe(hg.Points(np.linspace(0, 1, 9)), np.zeros(9), noise=0.1)
    calls = {
        "grid": lambda: hg.GP(gp.kernel, wide).condition(data, mesh=devices),
        "number": lambda: gp.condition(data, mesh=99),
        "kind": lambda: gp.condition(data, mesh="all"),
        "dimension": lambda: hg.GP(gp.kernel, hg.Grid.cover(0.0, 1.0, shape=30)).condition(line, mesh=2),
        "exact": lambda: gp.condition(data, hg.Exact(), mesh=devices),
        "variational": lambda: gp.condition(data, hg.Variational(), mesh=devices),
        "space": lambda: gp.condition(data, hg.Batch(space="grid"), mesh=devices),
        "weights": lambda: gp.condition(data, hg.Batch(weights="exact"), mesh=devices),
        "link": lambda: hg.GP(gp.kernel, gp.grid, link="exp").condition(data, mesh=devices),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            found[name] = str(error)
    return found


if __name__ == "__main__":
    kinds = {"operators": operators, "fit": fit, "answers": answers, "errors": errors}
    for case in sys.argv[1:]:
        what, kind, devices = case.split(":")
        print(json.dumps({case: kinds[what](kind, int(devices))}), flush=True)
