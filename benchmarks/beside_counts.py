"""Poisson counts in cells, everything learned: hipgp beside GPBoost's Vecchia-Laplace approximation, on the same machine.

    python benchmarks/beside_counts.py --peer-python PYTHON [--count 100000] [--systems hipgp gpboost]

Simulated in the unit square: the logarithm of the rate is a Gaussian field with Matern 3/2 of variance 1 and lengthscale 0.1, two counts
a cell on average in half of the cells. As many cells are observed as --count says, a tenth more are held out. Writes beside-counts-<count>.json:
seconds of learning, conditioning and predicting, compilation included, and the mean log density of the held-out counts, integrated over
the log rate's distribution by Gauss-Hermite sums.
"""

import argparse

import jax.numpy as jnp
import numpy as np
from beside import keep, run_peer, timed
from scipy.special import gammaln, logsumexp

import hipgp as hg
from hipgp.runtime.precision import float64_available
from hipgp.weights.toeplitz import embed

COLUMNS = ("system", "wall_s", "cpu_s", "log_score", "log_rate_rmse", "note")
VARIANCE, LENGTHSCALE, LEVEL = 1.0, 0.1, float(np.log(2.0))
PEERS = {"gpboost": [], "gpboost-cholesky": ["--cholesky"]}


@float64_available
def simulated(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Cells of a square, some of them held out, with their counts and the true log rates of those."""
    across = int(np.ceil(np.sqrt(1.1 * count)))
    grid = hg.Grid.cover((0.5 / across,) * 2, (1 - 0.5 / across,) * 2, shape=(across, across))
    torus = embed(hg.Matern32(VARIANCE, LENGTHSCALE), grid, np.float64)
    rng = np.random.default_rng(seed)
    white = jnp.asarray(rng.standard_normal(torus.torus.shape))
    log_rate = LEVEL + np.asarray(torus.root(white)).ravel()
    y, x = rng.poisson(np.exp(log_rate)), grid.coordinates()
    order = rng.permutation(len(y))
    seen, held = order[:count], order[count:]
    return {"x": x[seen], "y": y[seen], "x_test": x[held], "y_test": y[held], "truth": log_rate[held]}


def log_score(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> float:
    """The mean log density of counts whose log rate is normal."""
    z, share = np.polynomial.hermite_e.hermegauss(32)
    log_rate = mean[:, None] + std[:, None] * z
    each = y[:, None] * log_rate - np.exp(log_rate) - gammaln(y + 1)[:, None]
    return float(np.mean(logsumexp(each, axis=1, b=share / share.sum())))


def run_hipgp(problem: dict[str, np.ndarray], across: int) -> dict:
    data = hg.observe(hg.Points(problem["x"]), problem["y"].astype(float), likelihood=hg.Poisson())
    grid = hg.Grid.cover((0, 0), (1, 1), shape=(across, across))
    gp = hg.GP(hg.Matern32(), grid, trend="constant", link="exp")
    gp, learning = timed(lambda: gp.learn(data, progress=False))
    post, conditioning = timed(lambda: gp.condition(data, progress=False))
    found, predicting = timed(lambda: post.predict(hg.Points(problem["x_test"]), progress=False))
    phases = {"learn": learning, "condition": conditioning, "predict": predicting}
    mean, std = np.asarray(found.zeta_mean), np.asarray(found.zeta_std)
    return {
        "system": f"hipgp {hg.__version__}",
        "wall_s": sum(part["wall"] for part in phases.values()),
        "cpu_s": sum(part["cpu"] for part in phases.values()),
        "log_score": log_score(mean, std, problem["y_test"]),
        "log_rate_rmse": float(np.sqrt(np.mean((mean - problem["truth"]) ** 2))),
        "phases": phases,
        "parameters": dict(zip(gp.learned.names, gp.learned.values.tolist(), strict=True)),
        "note": f"float64, all learned, grid {grid.shape}, {post.diagnostics['rounds']} rounds",
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--shape", type=int, default=160, help="points of the grid along each axis")
    parser.add_argument("--systems", nargs="+", choices=("hipgp", *PEERS), default=["hipgp", "gpboost"])
    parser.add_argument("--most", type=float, default=1800, help="CPU seconds before a peer is stopped")
    args = parser.parse_args()
    problem, name = simulated(args.count), f"beside-counts-{args.count}"
    about = {"counts": args.count, "held out": len(problem["y_test"]), "mean": float(problem["y"].mean())}
    for system in args.systems:
        if system == "hipgp":
            row = run_hipgp(problem, args.shape)
        else:
            row = run_peer(args.peer_python, "gpboost_counts", problem, PEERS[system], args.most)
        keep(name, about, [row], COLUMNS)


if __name__ == "__main__":
    main()
