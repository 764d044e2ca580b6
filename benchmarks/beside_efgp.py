"""Smooth points in 2-D, kernel and noise given: the posterior mean by hipgp and by EFGP (equispaced Fourier features).

    python benchmarks/beside_efgp.py --peer-python PYTHON [--count 100000] [--ways memory stream]

Writes benchmarks/results/beside-efgp-<count>.json. Points are uniform in the unit square, the truth a draw of a squared
exponential (lengthscale 0.1), noise 0.3; the squared exponential and the Matern 3/2 of that lengthscale are both fitted.
The mean at 20,000 other points is scored against the truth; up to 4,000 points also against the dense posterior mean.
No package has EFGP, so `peers/efgp.py` is ours; it gives a mean and no standard deviations, so none are asked for here.
"""

import argparse

import numpy as np
from beside import keep, run_peer, timed

import hipgp as hg

LENGTHSCALE, NOISE, HELD_OUT = 0.1, 0.3, 20_000
COLUMNS = (
    "system",
    "kernel",
    "wall_s",
    "cpu_s",
    "again_wall_s",
    "again_cpu_s",
    "rmse",
    "rms_from_hipgp",
    "rms_from_dense",
    "note",
)


def simulate(count: int, waves: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    frequencies = rng.standard_normal((waves, 2)) / LENGTHSCALE
    phases = rng.uniform(0, 2 * np.pi, waves)
    x = rng.uniform(0.0, 1.0, (count + HELD_OUT, 2))
    f = np.concatenate(
        [
            np.cos(part @ frequencies.T + phases).sum(1)
            for part in np.array_split(x, max(100, count // 10_000))
        ]
    ) * np.sqrt(2 / waves)
    y = f + NOISE * rng.standard_normal(len(f))
    return {"x": x[:count], "y": y[:count], "x_test": x[count:], "f_test": f[count:]}


def dense_mean(kernel: str, x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        r = np.sqrt(np.maximum(((a[:, None] - b[None]) ** 2).sum(-1), 0)) / LENGTHSCALE
        return (
            np.exp(-0.5 * r**2)
            if kernel == "SquaredExponential"
            else (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
        )

    alpha = np.linalg.solve(covariance(x, x) + NOISE**2 * np.eye(len(x)), y)
    return np.concatenate([covariance(part, x) @ alpha for part in np.array_split(at, 20)])


def run_hipgp(
    kernel: str, problem: dict[str, np.ndarray], side: int, streamed: bool
) -> tuple[dict, np.ndarray]:
    grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=(side, side))
    gp = hg.GP(getattr(hg, kernel)(1.0, LENGTHSCALE), grid)

    def fit():
        x, y = problem["x"], problem["y"]
        data = (
            hg.observe_from([(x, y)], noise=NOISE) if streamed else hg.observe(hg.Points(x), y, noise=NOISE)
        )
        post = gp.condition(data, progress=False)
        return post, post.engine.mean(hg.Points(problem["x_test"]))  # the mean alone, as EFGP

    _, first = timed(fit)
    (post, mean), again = timed(fit)
    about = post.diagnostics
    return {
        "system": f"hipgp {hg.__version__}, {side} x {side}, {kernel}{', streamed' * streamed}",
        "kernel": kernel,
        "wall_s": first["wall"],
        "cpu_s": first["cpu"],
        "again_wall_s": again["wall"],
        "again_cpu_s": again["cpu"],
        "rmse": float(np.sqrt(np.mean((mean - problem["f_test"]) ** 2))),
        "diagnostics": {k: v for k, v in about.items() if k != "kl_trace"},
        "note": f"float64, {about['space']} space, {about['iterations']} steps, {about['kl_nats']:.1e} nats, "
        f"set-up {about['setup_seconds'] + about.get('reading_seconds', 0.0):.1f} s",
    }, mean


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--sides", type=int, nargs="+", default=[64, 96])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1e-3, 1e-4])
    parser.add_argument("--waves", type=int, default=2000, help="of the truth; fewer are simulated sooner")
    parser.add_argument("--kernels", nargs="+", default=["SquaredExponential", "Matern32"])
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=("memory", "stream"),
        default=["memory"],
        help="observations in memory, or by observe_from, which keeps none",
    )
    args = parser.parse_args()
    problem = simulate(args.count, args.waves)
    rows = []
    for kernel in args.kernels:
        known = {"lengthscale": LENGTHSCALE, "variance": 1.0, "noise": NOISE, "kernel": kernel}
        if args.count <= 4000:
            known["dense"] = dense_mean(kernel, problem["x"], problem["y"], problem["x_test"])
        for side, way in [(side, way) for side in args.sides for way in args.ways]:
            row, mean = run_hipgp(kernel, problem, side, way == "stream")
            if "dense" in known:
                row["rms_from_dense"] = float(np.sqrt(np.mean((mean - known["dense"]) ** 2)))
            rows.append(row)
        for epsilon in args.epsilons:
            options = ["--epsilon", str(epsilon)]
            row = run_peer(args.peer_python, "efgp", problem | known | {"hipgp": mean}, options, 300)
            rows.append(row | {"system": f"{row['system']}, {kernel}", "kernel": kernel})
    about = {"observations": args.count, "noise": NOISE, "lengthscale": LENGTHSCALE}
    keep(f"beside-efgp-{args.count}", about, rows, COLUMNS)


if __name__ == "__main__":
    main()
