"""Values and slopes together: hipgp beside tinygp and GPyTorch's derivative kernel, then hipgp alone beyond them.

    python benchmarks/beside_derivatives.py --peer-python PYTHON [--sizes 500 1000 2000 4000] [--alone 100000 1000000]

Writes benchmarks/results/beside-derivatives.json. N places on a line of N / 20 lengthscales, with the value and the slope
at each (2 N data), noise a tenth of the prior's std in both; squared exponential, kernel and noise given. Asked for:
mean and std of the value at 500 places, scored against the truth. hipgp has a grid of 8 points to the lengthscale.
"""

import argparse

import numpy as np
from beside import keep, run_peer, timed

import hipgp as hg

NOISE, LENGTHSCALE, HELD_OUT = 0.1, 1.0, 500
COLUMNS = (
    "system",
    "N",
    "wall_s",
    "cpu_s",
    "again_wall_s",
    "again_cpu_s",
    "rmse",
    "nll",
    "coverage_95",
    "note",
)


def simulate(count: int) -> dict[str, np.ndarray]:
    """A draw of the prior by random Fourier features, 1,000 of them."""
    rng = np.random.default_rng(0)
    frequencies, phases = rng.standard_normal(1000) / LENGTHSCALE, rng.uniform(0, 2 * np.pi, 1000)
    x = rng.uniform(0, count / 20, count + HELD_OUT)
    parts = np.array_split(x, 1 + len(x) // 10_000)
    angles = lambda part: part[:, None] * frequencies + phases
    f = np.concatenate([np.cos(angles(p)).sum(1) for p in parts]) * np.sqrt(2 / 1000)
    df = np.concatenate([-(np.sin(angles(p)) @ frequencies) for p in parts]) * np.sqrt(2 / 1000)
    errors = rng.standard_normal((2, count))
    return {
        "x": x[:count],
        "y": f[:count] + NOISE * errors[0],
        "slopes": df[:count] + NOISE / LENGTHSCALE * errors[1],
        "x_test": x[count:],
        "f_test": f[count:],
        "noise": NOISE,
        "lengthscale": LENGTHSCALE,
    }


def run_hipgp(problem: dict[str, np.ndarray]) -> dict:
    count = len(problem["x"])
    grid = hg.Grid.cover(0.0, count / 20, shape=int(np.ceil(8 * count / 20 / LENGTHSCALE)))
    gp = hg.GP(hg.SquaredExponential(1.0, LENGTHSCALE), grid)

    def fit():
        data = hg.observe(hg.Points(problem["x"]), problem["y"], NOISE) + hg.observe(
            hg.Derivatives(problem["x"]), problem["slopes"], NOISE / LENGTHSCALE
        )
        post = gp.condition(data, progress=False)
        return post, post.predict(hg.Points(problem["x_test"]))

    _, first = timed(fit)
    (post, found), again = timed(fit)
    error = problem["f_test"] - found.mean
    return {
        "system": f"hipgp {hg.__version__}",
        "wall_s": first["wall"],
        "cpu_s": first["cpu"],
        "again_wall_s": again["wall"],
        "again_cpu_s": again["cpu"],
        "rmse": float(np.sqrt(np.mean(error**2))),
        "nll": float(np.mean(0.5 * (error / found.std) ** 2 + np.log(found.std * np.sqrt(2 * np.pi)))),
        "coverage_95": float(np.mean(np.abs(error) < 1.959964 * found.std)),
        "note": f"float64, M = {grid.size}, {post.diagnostics['iterations']} steps, "
        f"{post.diagnostics['kl_nats']:.1e} nats",
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--sizes", type=int, nargs="*", default=[500, 1000, 2000, 4000])
    parser.add_argument("--alone", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--most", type=float, default=120, help="CPU seconds before a peer is stopped")
    args = parser.parse_args()
    rows = []
    add = lambda count, row: rows.append(row | {"N": count, "system": f"{row['system']}, N = {count}"})
    for count in [*args.sizes, *args.alone]:
        problem = simulate(count)
        add(count, run_hipgp(problem))
        if count in args.sizes:
            for script, options in (
                ("tinygp_derivatives", []),
                ("gpytorch_derivatives", []),
                ("gpytorch_derivatives", ["--cholesky"]),
            ):
                add(count, run_peer(args.peer_python, script, problem, options, args.most))
        keep("beside-derivatives", {"noise": NOISE, "lengthscale": LENGTHSCALE}, rows, COLUMNS)


if __name__ == "__main__":
    main()
