"""One of two processes with two simulated devices each; the tests start both.

    python tests/mesh/hosts.py PROCESS PORT fit|killed CHECKPOINT

prints one line of JSON.
"""

import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["HIPGP_CACHE"] = "off"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"

import jax
import numpy as np

import hipgp as hg
from hipgp.batch import checkpoint


def main(number: int, port: str, what: str, path: str) -> dict:
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=number)
    rng = np.random.default_rng(0)
    grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(13, 11))
    x, y = rng.uniform(0.05, 0.95, (80, 2)), rng.normal(size=80)
    gp = hg.GP(hg.Matern32(1.0, 0.4), grid)
    out: dict = {"devices": [len(jax.devices()), len(jax.local_devices())]}
    if what == "killed":
        checkpoint.SECONDS_BETWEEN = 0.0
        method = hg.Batch(neighbours=0, tolerance=1e-13)
        data = hg.observe(hg.Points(x), y, noise=0.01)
        post = gp.condition(data, method, mesh=4, checkpoint=path, progress=False)
        return out | {"steps": post.diagnostics["iterations"], "first": post.diagnostics["kl_trace"][0][0]}
    try:
        gp.condition(hg.observe(hg.Points(x), y + (number == 1), noise=0.3), mesh=4, progress=False)
    except ValueError as error:
        out["disagree"] = str(error)
    data = hg.observe(hg.Points(x), y, noise=0.3)
    post = gp.condition(data, hg.Batch(space="data", tolerance=1e-12), mesh=4, progress=False)
    drawn = post.sample(2, progress=False)
    return out | {"mean": post.mean.ravel().tolist(), "sample": drawn.ravel().tolist()}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), *sys.argv[2:])), flush=True)
