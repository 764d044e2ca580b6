"""UK house prices and simulated points: log-price RMSE by grid size, and a million points on a million grid points.

python benchmarks/prices.py --data DIR --shape 200 [--neighbours 20]
python benchmarks/prices.py --simulated 1000000 --shape 1000
"""

import argparse
import pathlib
import time

import numpy as np
from machine import facts, gaussian_scores, peak_memory, write_result

import hipgp as hg


def real(folder: pathlib.Path) -> tuple[np.ndarray, ...]:
    file = np.load(folder / "uk_house_prices" / "uk_prices_2018_update.npz")
    x = np.stack([file["lon"], file["lat"]], axis=1).astype(float)
    y = np.log(file["price"]).astype(float)
    order = np.random.default_rng(0).permutation(len(y))
    return x[order[20_000:]], y[order[20_000:]], x[order[:20_000]], y[order[:20_000]]


def simulated(count: int) -> tuple[np.ndarray, ...]:
    """A smooth function of place, clustered in no way; noise 0.3."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 1.0, (count + 20_000, 2))
    f = np.sin(12 * x[:, 0]) * np.cos(9 * x[:, 1]) + 0.5 * np.sin(60 * x[:, 0] + 40 * x[:, 1])
    y = f + 0.3 * rng.standard_normal(len(f))
    return x[:count], y[:count], x[count:], f[count:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--simulated", type=int)
    parser.add_argument("--shape", type=int, default=200)
    parser.add_argument("--neighbours", type=int)
    args = parser.parse_args()
    x, y, x_test, y_test = simulated(args.simulated) if args.simulated else real(args.data)
    lower, upper = (f(np.concatenate([x, x_test]), axis=0) for f in (np.min, np.max))
    grid = hg.Grid.cover(lower, upper, shape=(args.shape, args.shape))
    if args.simulated:  # the time of the mean is asked for: the kernel is given
        gp, noise = hg.GP(hg.Matern32(0.6, 0.1), grid, noise=0.3, trend="constant"), None
        seconds = {}
    else:
        began = time.perf_counter()
        gp = hg.GP(hg.Matern12() + hg.Matern32(), grid, trend="constant")
        gp = gp.learn(hg.observe(hg.Points(x), y), progress=False)
        seconds = {"learn": time.perf_counter() - began}
        noise = gp.noise
    data = hg.observe(hg.Points(x), y)
    began = time.perf_counter()
    post = gp.condition(data, hg.Batch(neighbours=args.neighbours), progress=False)
    seconds["mean"] = time.perf_counter() - began
    began = time.perf_counter()
    found = post.predict(hg.Points(x_test))
    seconds["predict 20,000 with std"] = time.perf_counter() - began
    std = found.std if noise is None else np.sqrt(found.std**2 + noise**2)
    result = {
        "facts": facts(),
        "observations": len(y),
        "grid": grid.shape,
        "seconds": seconds,
        "diagnostics": post.diagnostics,
        "parameters": None
        if gp.learned is None
        else dict(zip(gp.learned.names, gp.learned.values.tolist(), strict=True)),
        "scores": gaussian_scores(y_test, found.mean, std),
        "peak_memory_gib": peak_memory(),
    }
    kind = f"simulated-{args.simulated}" if args.simulated else "prices"
    write_result(f"{kind}-{args.shape}x{args.shape}", result)
    print({k: v for k, v in result.items() if k != "facts"})


if __name__ == "__main__":
    main()
