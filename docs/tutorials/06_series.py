"""A long time series: 20,000 readings at uneven times, on a grid of 100,000 points."""

import time

import numpy as np

import hipgp as hg

rng = np.random.default_rng(0)
t = np.sort(rng.uniform(0, 1000, 20_000))
t = t[(t < 500) | (t > 510)]  # the instrument was off
signal = lambda t: np.sin(2 * np.pi * t / 25) + 0.5 * np.sin(2 * np.pi * t / 3.3)
y = signal(t) + 0.3 * rng.standard_normal(len(t))

grid = hg.Grid.cover(0, 1000, shape=100_000)
gp = hg.GP(hg.Matern52(variance=1.0, lengthscale=1.5), grid, noise=0.3)
began = time.perf_counter()
post = gp.condition(hg.observe(hg.Points(t), y))
print(f"{len(t)} readings, {grid.size} grid points: {post.diagnostics['iterations']} steps")
print(f"{time.perf_counter() - began:.1f} s, of which {post.diagnostics['solve_seconds']:.1f} s solving")

axis = grid.axes[0]
error = np.abs(post.mean - signal(axis))
print(f"typical error {np.median(error):.3f}")
gap = post.predict(hg.Points([490.0, 501.0, 505.0]))
print("std before the gap, at its edge and in its middle:", np.round(gap.std, 2))

# Averages over days, each with its own error bar.
days = np.arange(480.0, 520.0, 10.0)[:, None]
p = post.predict(hg.BoxAverages(days, days + 10))
for day, mean, std in zip(days[:, 0], p.mean, p.std, strict=True):
    print(f"  mean of {day:.0f} to {day + 10:.0f}: {mean:6.3f} ± {std:.3f}")

around = post.predict(hg.Points(np.linspace(495, 515, 800)))
np.ravel(around.plot())[0].figure.savefig("series.png", dpi=120)
