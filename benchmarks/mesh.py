"""What a step of a solve sends over a mesh: bytes and messages of each collective, counted in the compiled programs.

    python benchmarks/mesh.py

Writes benchmarks/results/mesh.json: for 1, 2, 4 and 8 simulated devices, on one grid (strong scaling) and on one that grows with the
number of devices (weak scaling), float32, the bytes that a device sends in one product with K and in W u. Nothing is computed:
programs are compiled for shapes alone. Beside them, what the count of complex numbers predicts.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import re

import jax
import numpy as np
from jax.sharding import NamedSharding
from machine import facts, write_result

import hipgp as hg
from hipgp.mesh.covariance import MeshToeplitz
from hipgp.mesh.devices import as_mesh, cut
from hipgp.weights.torus import Torus

SIDE, OBSERVATIONS = 256, 100_000
SIZES = {"f32": 4, "c64": 8, "f64": 8, "c128": 16}


def sent(program: str, devices: int) -> list[dict]:
    """The collectives of a compiled program, and the bytes that each device sends in each."""
    found = []
    for line in program.splitlines():
        line = re.sub(r"/\*.*?\*/", "", line)  # numbers of long tuples
        match = re.search(r"= (\(?[a-z]\w*\[[^=]*?) (all-to-all|all-reduce|all-gather)(?:-start)?\(", line)
        if match is None:
            continue
        shapes = re.findall(r"([a-z]\w+)\[([\d,]*)\]", match[1])
        size = sum(
            SIZES[kind] * int(np.prod([int(n) for n in dims.split(",") if n])) for kind, dims in shapes
        )
        share = (
            (devices - 1) / devices * (2 if match[2] == "all-reduce" else 1)
        )  # a ring reduces, then gathers
        found.append({"collective": match[2], "bytes": size * share})
    return found


def product(shape: tuple[int, ...], devices: int) -> dict:
    mesh = as_mesh(devices, shape)
    torus = Torus(hg.Grid((0.0,) * 3, 1.0, shape), tuple(2 * n for n in shape), False)
    like = lambda dims, axis: jax.ShapeDtypeStruct(dims, np.float32, sharding=NamedSharding(mesh, cut(axis)))
    frequencies = -(-(shape[1] + 1) // devices) * devices
    k = MeshToeplitz(
        torus=torus, orthant=like((frequencies, shape[0] + 1, shape[2] + 1), 0), clipped_mass=0.0, mesh=mesh
    )
    program = jax.jit(lambda k, v: k.flat_matmul(v)).lower(k, like((1, k.flat_size), 1)).compile().as_text()
    found = sent(program, devices)
    predicted = 2 * 8 * (shape[1] + 1) * -(-shape[0] // devices) * shape[2] * (devices - 1) / devices
    return {
        "devices": devices, "grid": shape, "unknowns_each": int(np.prod(shape)) // devices,
        "messages": len(found) * (devices - 1), "collectives": found,
        "megabytes_sent_each": sum(f["bytes"] for f in found) / 1e6, "predicted_megabytes": predicted / 1e6,
        "megabytes_of_a_sum_over_observations": 2 * 4 * OBSERVATIONS * (devices - 1) / devices / 1e6,
    }  # fmt: skip


def main() -> None:
    rows = []
    for devices in (1, 2, 4, 8):
        rows.append({"scaling": "strong", **product((SIDE,) * 3, devices)})
        rows.append({"scaling": "weak", **product((SIDE // 4 * devices, SIDE, SIDE), devices)})
        print(
            *({k: v for k, v in row.items() if k != "collectives"} for row in rows[-2:]), sep="\n", flush=True
        )
    write_result("mesh", {"machine": facts(), "rows": rows})


if __name__ == "__main__":
    main()
