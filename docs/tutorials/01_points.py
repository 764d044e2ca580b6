"""A map from scattered points in the plane: kernel, noise and mean are learned, then every place is predicted."""

import numpy as np

import hipgp as hg

rng = np.random.default_rng(0)


def height(x):
    return 100 + 10 * np.sin(4 * x[:, 0]) * np.cos(3 * x[:, 1])


x = rng.uniform(0, 1, (400, 2))
y = height(x) + rng.standard_normal(400)

# The data: values at points. No noise is given, so it will be learned.
data = hg.observe(hg.Points(x), y)

# The model: a kernel whose parameters are of no account yet, and a grid that covers the data.
grid = hg.Grid.cover((0, 0), (1, 1), shape=(40, 40), margin=0.05)
gp = hg.GP(hg.Matern52(), grid, trend="constant").learn(data)
for name, value, spread in zip(gp.learned.names, gp.learned.values, gp.learned.log_std, strict=True):
    print(f"{name:22} {value:8.3g}   to within a factor of {np.exp(spread):.2f}")

post = gp.condition(data)
print(f"solved to {post.diagnostics['kl_nats']:.1e} nats in {post.diagnostics['iterations']} steps")

# The map, and new places.
print("map:", post.mean.shape, "from", post.mean.min().round(1), "to", post.mean.max().round(1))
new = rng.uniform(0, 1, (500, 2))
p = post.predict(hg.Points(new))
print(f"error at new places: {np.sqrt(np.mean((p.mean - height(new)) ** 2)):.2f} (noise {gp.noise:.2f})")
print(f"within two standard deviations: {np.mean(np.abs(p.mean - height(new)) < 2 * p.std):.0%}")

axes = post.labelled(name="height", unit="m").plot()
np.ravel(axes)[0].figure.savefig("points.png", dpi=120)
