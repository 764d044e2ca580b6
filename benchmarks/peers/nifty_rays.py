"""NIFTy.re's Wiener filter on line integrals: PROBLEM.npz ROW.json [--delta 1e-6] [--samples 2] [--own-response].

The prior is white noise in harmonic space on the padded periodic grid of the problem, shaped by the kernel's amplitude
there (one Hartley transform); the response looks the field up along the rays with the problem's trilinear weights (a
gather by rows; JAX transposes it), whose making is timed apart, or is NIFTy's own, SamplingCartesianGridLOS, with as many
nodes a ray, which makes nothing beforehand and looks them up in every product. Mean and samples by NIFTy's likelihood metric, `static_cg` and
`draw_linear_residual`, each compiled as one (`wiener_filter_posterior` itself cannot be, and would compile at every call),
stopped as in NIFTy's Wiener-filter demo where a step gains less than `delta` nats a pixel, float64. The first call
compiles; the second is timed apart.
"""

import argparse
from importlib.metadata import version

import jax
import jax.numpy as jnp
import nifty.re as jft
import numpy as np
from common import Clock, write
from nifty.re.correlated_field import hartley
from nifty.re.extra.sampling_los import SamplingCartesianGridLOS

jax.config.update("jax_enable_x64", True)
parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
parser.add_argument("--delta", type=float, default=1e-6)
parser.add_argument("--samples", type=int, default=2)
parser.add_argument("--own-response", action="store_true")
parser.add_argument("--once", action="store_true", help="first calls alone")
args = parser.parse_args()
file = np.load(args.problem)
names = ("start", "end") if args.own_response else ("columns", "weights")
given = {k: jnp.asarray(file[k]) for k in ("amplitude", "y", *names)}
size, crop = file["amplitude"].size, tuple(slice(0, n) for n in file["shape"])
noise = float(file["noise"])
domain = jax.ShapeDtypeStruct(file["amplitude"].shape, jnp.float64)
solver = {
    "cg": jft.conjugate_gradient.static_cg,
    "cg_kwargs": {"absdelta": args.delta * size, "maxiter": 3000},
}


def model(given):
    """The field, its response and the likelihood; arrays come as arguments, or XLA would fold them as constants."""
    field = lambda xi: hartley(given["amplitude"] * xi)[crop] / np.sqrt(size)
    if args.own_response:
        along = sampled(given["start"], given["end"])
        response = lambda xi: along(field(xi))
    else:
        response = lambda xi: jnp.sum(given["weights"] * field(xi).ravel()[given["columns"]], axis=1)
    likelihood = jft.Gaussian(given["y"], lambda v: v / noise**2, lambda v: v / noise)
    return field, response, likelihood.amend(response, domain=domain)


def sampled(start, end):
    """NIFTy's line-of-sight response, from places in grid cells; it takes a cell for (n - 1) / n of its distance."""
    shape = file["shape"]
    cells, distances = jnp.asarray(file["spacing"]), (shape - 1) / shape * file["spacing"]
    return SamplingCartesianGridLOS(
        start * cells, end * cells, shape=shape, distances=distances, n_sampling_points=int(file["nodes"])
    )


@jax.jit
def mean(given):
    """The Wiener filter in signal space, as `wiener_filter_posterior` has it, but compiled as one."""
    field, response, likelihood = model(given)
    origin = jnp.zeros(domain.shape)
    right = jax.linear_transpose(response, domain)(given["y"] / noise**2)[0]
    inverse = lambda v: likelihood.metric(origin, v) + v
    at, info = solver["cg"](inverse, right, **solver["cg_kwargs"])
    return at, field(at), info


@jax.jit
def draw(given, at, key):
    field, _, likelihood = model(given)
    residual, info = jft.draw_linear_residual(likelihood, at, key, **solver)
    return field(at + residual), info


def timed(function, *inputs):
    clock = Clock()
    out = jax.block_until_ready(function(*inputs))
    clock.stop()
    return out, clock


key = jax.random.key(0)
(at, found, info), first = timed(mean, given)
second = first if args.once else timed(mean, given)[1]
sample, first_sample = timed(draw, given, at, key)
again = [timed(draw, given, at, jax.random.key(1 + s))[1] for s in range(args.samples) if not args.once]
again = again or [first_sample]
found, truth = np.asarray(found), file["truth"]
write(
    args.row,
    {
        "system": f"NIFTy.re {version('nifty')} Wiener filter, delta {args.delta:g}"
        + (", its own response" if args.own_response else ""),
        "response_wall_s": 0.0 if args.own_response else float(file["response_wall_s"]),
        "mean_wall_s": first.wall,
        "mean_cpu_s": first.cpu,
        "mean_again_wall_s": second.wall,
        "mean_again_cpu_s": second.cpu,
        "first_sample_wall_s": first_sample.wall,
        "sample_wall_s": float(np.mean([c.wall for c in again])),
        "sample_cpu_s": float(np.mean([c.cpu for c in again])),
        "rmse": float(np.sqrt(np.mean((found - truth) ** 2))),
        "correlation": float(np.corrcoef(found.ravel(), truth.ravel())[0, 1]),
        "rms_from_hipgp": float(np.sqrt(np.mean((found - file["hipgp"]) ** 2))),
        "sample_rmse": float(np.sqrt(np.mean((np.asarray(sample[0]) - truth) ** 2))),
        "cg_info": int(info),
        "note": "float64, first calls with compilation" if args.once else "float64",
    },
)
