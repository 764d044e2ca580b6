"""NIFTy.re's geoVI on integrals of a positive field: PROBLEM.npz ROW.json [--rounds 20] [--samples 32] [--delta 1e-4].

The density is the exponential of a Gaussian field with the problem's kernel, as white noise in harmonic space on the padded
periodic grid (one Hartley transform), and of a level with a wide normal prior. The response looks it up along the rays with
the problem's trilinear weights. Geometric variational inference as in NIFTy's demo: `optimize_kl` with mirrored samples that are
drawn anew and updated non-linearly in every round, linear samples by conjugate gradients to `delta` nats a pixel, float64.
"""

import argparse
from importlib.metadata import version

import jax
import jax.numpy as jnp
import nifty.re as jft
import numpy as np
from common import Clock, write
from nifty.re.correlated_field import hartley

jax.config.update("jax_enable_x64", True)
parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--samples", type=int, default=32, help="mirrored ones included")
parser.add_argument("--delta", type=float, default=1e-4)
args = parser.parse_args()
file = np.load(args.problem)
given = {k: jnp.asarray(file[k]) for k in ("amplitude", "columns", "weights")}
size, crop = file["amplitude"].size, tuple(slice(0, n) for n in file["shape"])
noise, level, wide = (jnp.asarray(file[k]) for k in ("noise", "level", "level_std"))


class Density(jft.Model):
    """The density on the grid."""

    def __init__(self):
        white = jax.ShapeDtypeStruct(file["amplitude"].shape, jnp.float64)
        super().__init__(
            domain={"xi": white, "level": jax.ShapeDtypeStruct((), jnp.float64)}, white_init=True
        )

    def __call__(self, x):
        field = hartley(given["amplitude"] * x["xi"])[crop] / np.sqrt(size)
        return jnp.exp(field + level + wide * x["level"])


class Response(jft.Model):
    """The integrals of the density along the observed rays."""

    def __init__(self, density):
        self.density = density
        super().__init__(init=density.init)

    def __call__(self, x):
        return looked_up(self.density(x), given["columns"], given["weights"])


def looked_up(density, columns, weights):
    return jnp.sum(weights * density.ravel()[columns], axis=1)


clock = Clock()
density = Density()
likelihood = jft.Gaussian(jnp.asarray(file["y"]), lambda v: v / noise**2, lambda v: v / noise).amend(
    Response(density)
)
key, first = jax.random.split(jax.random.key(0))
samples, _ = jft.optimize_kl(
    likelihood,
    jft.Vector(jax.tree.map(lambda a: 0.1 * a, likelihood.init(first))),
    key=key,
    n_total_iterations=args.rounds,
    n_samples=args.samples // 2,
    draw_linear_kwargs={"cg_name": None, "cg_kwargs": {"absdelta": args.delta * size / 10, "maxiter": 100}},
    nonlinearly_update_kwargs={
        "minimize_kwargs": {"name": None, "xtol": args.delta, "cg_kwargs": {"name": None}, "maxiter": 5}
    },
    kl_kwargs={
        "minimize_kwargs": {
            "name": None,
            "absdelta": args.delta * size,
            "cg_kwargs": {"name": None},
            "maxiter": 35,
        }
    },
    sample_mode="nonlinear_resample",
)
on_grid = np.array([np.asarray(density(s)) for s in samples])
clock.stop()
held = np.array([looked_up(jnp.asarray(one), file["held_columns"], file["held_weights"]) for one in on_grid])


def scores(draws, truth):
    """The continuous ranked probability score without the bias of there being few draws, and coverage of 95% intervals."""
    s, n = np.sort(draws, axis=0), len(draws)
    spread = np.tensordot(2 * np.arange(1, n + 1) - n - 1, s, (0, 0)) / (n * (n - 1))
    low, high = np.quantile(draws, [0.025, 0.975], axis=0, method="weibull")
    crps = float(np.mean(np.abs(s - truth).mean(axis=0) - spread))
    return {
        "crps": crps,
        "coverage_95": float(np.mean((truth >= low) & (truth <= high))),
        "least": float(draws.min()),
    }


write(
    args.row,
    {
        "system": f"NIFTy.re {version('nifty')} geoVI, {args.rounds} rounds, {len(on_grid)} samples",
        "wall_s": clock.wall,
        "cpu_s": clock.cpu,
        "field": scores(on_grid.reshape(len(on_grid), -1), file["truth"].ravel()),
        "held_out": scores(held, file["held_truth"]),
        "note": "float64, kernel given",
    },
)
