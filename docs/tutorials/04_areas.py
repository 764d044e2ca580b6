"""Areas and points fused: coarse pixels tell the level everywhere, a few gauges tell the detail."""

import numpy as np

import hipgp as hg

rng = np.random.default_rng(0)
rain = lambda x: 3 + np.sin(9 * x[..., 0]) * np.cos(7 * x[..., 1]) + x[..., 1]

# A satellite's pixels: 6 x 6 averages with an error of 0.1 (the truth by a fine sum) ...
edges = np.linspace(0, 1, 7)
lower = np.stack(np.meshgrid(edges[:-1], edges[:-1], indexing="ij"), axis=-1).reshape(-1, 2)
inside = (np.stack(np.meshgrid(*[np.arange(20)] * 2), axis=-1).reshape(-1, 2) + 0.5) / 20 / 6
pixels = rain(lower[:, None] + inside).mean(axis=1) + 0.1 * rng.standard_normal(36)
areas = hg.observe(hg.BoxAverages(lower, lower + 1 / 6), pixels, noise=0.1)

# ... and 40 gauges on the ground.
places = rng.uniform(0, 1, (40, 2))
gauges = hg.observe(hg.Points(places), rain(places) + 0.05 * rng.standard_normal(40), noise=0.05)

grid = hg.Grid.cover((0, 0), (1, 1), shape=(25, 25))
gp = hg.GP(hg.Matern52(variance=0.5, lengthscale=0.3), grid, trend="constant")
new = rng.uniform(0, 1, (100, 2))
for name, data in (("gauges alone", gauges), ("both", areas + gauges)):
    post = gp.condition(data)
    p = post.predict(hg.Points(new))
    error = np.sqrt(np.mean((p.mean - rain(new)) ** 2))
    print(f"{name:13} error {error:.3f}, claimed {np.sqrt(np.mean(p.std**2)):.3f}")

# Any other area, too: the rain on the western half.
west = post.predict(hg.BoxAverages([[0.0, 0.0]], [[0.5, 1.0]]))
print(f"mean of the western half: {west.mean[0]:.3f} ± {west.std[0]:.3f}")

axes = post.labelled(name="rain", unit="mm").plot()
np.ravel(axes)[0].figure.savefig("areas.png", dpi=120)
