"""tinygp on values and slopes: PROBLEM.npz ROW.json. Its documentation's derivative kernel (automatic), dense Cholesky.

Kernel and noise are given; the posterior mean and std of the value at the test places. The first call compiles; the
second is timed apart. float64.
"""

import argparse
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import tinygp
from common import timed_twice, write

jax.config.update("jax_enable_x64", True)
parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
args = parser.parse_args()
file = np.load(args.problem)
noise, lengthscale = file["noise"].item(), file["lengthscale"].item()


class DerivativeKernel(tinygp.kernels.Kernel):
    """As in tinygp's tutorial on derivative observations: inputs are (time, whether it is a slope)."""

    kernel: tinygp.kernels.Kernel

    def evaluate(self, one, two):
        t1, d1 = one
        t2, d2 = two
        k = self.kernel.evaluate
        value, first, second = k(t1, t2), jax.grad(k, 0)(t1, t2), jax.grad(k, 1)(t1, t2)
        both = jax.grad(jax.grad(k, 1), 0)(t1, t2)
        return jnp.where(d1, jnp.where(d2, both, first), jnp.where(d2, second, value))


t = jnp.concatenate([file["x"], file["x"]])
slope = jnp.concatenate([jnp.zeros(len(file["x"]), bool), jnp.ones(len(file["x"]), bool)])
std = jnp.concatenate([jnp.full(len(file["x"]), noise), jnp.full(len(file["x"]), noise / lengthscale)])
y = jnp.concatenate([file["y"], file["slopes"]])
test = jnp.asarray(file["x_test"])


@jax.jit
def fit(y):
    gp = tinygp.GaussianProcess(
        DerivativeKernel(tinygp.kernels.ExpSquared(lengthscale)), (t, slope), diag=std**2
    )
    found = gp.condition(y, (test, jnp.zeros(len(test), bool))).gp
    return found.loc, jnp.sqrt(jnp.maximum(found.variance, 0))


found = timed_twice(lambda: jax.block_until_ready(fit(y)), file["f_test"])
write(args.row, {"system": f"tinygp {version('tinygp')}", **found, "note": "float64, dense"})
