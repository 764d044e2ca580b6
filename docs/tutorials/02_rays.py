"""Dust from starlight: each star's dimming is the integral of the dust's density from us to the star."""

import numpy as np

import hipgp as hg

rng = np.random.default_rng(0)

# Three clouds in a flat galaxy; we sit at the origin.
clouds = np.array([[0.5, 0.3], [-0.4, 0.5], [0.1, -0.6]])


def density(x):
    return sum(np.exp(-np.sum((x - c) ** 2, axis=-1) / 0.15) for c in clouds)


# 200 stars, the dust in front of each (by a fine sum), and an error of 0.01.
stars = rng.uniform(-1, 1, (200, 2))
along = (np.arange(500) + 0.5)[:, None, None] / 500
extinction = density(along * stars).mean(axis=0) * np.linalg.norm(stars, axis=1) + 0.01 * rng.standard_normal(
    200
)

# The functional is the line integral; the unknown is the density itself.
train, test = slice(0, 170), slice(170, 200)
data = hg.observe(hg.LineIntegrals((0.0, 0.0), stars[train]), extinction[train], noise=0.01)
grid = hg.Grid.cover((-1, -1), (1, 1), shape=(25, 25))
gp = hg.GP(hg.Matern52(), grid).learn(data)
post = gp.condition(data)
print(f"lengthscale {gp.kernel.lengthscale:.2f}; {post.diagnostics['iterations']} steps")

# The map of the dust, never observed directly.
truth = density(grid.coordinates()).reshape(grid.shape)
print(f"correlation with the true density: {np.corrcoef(post.mean.ravel(), truth.ravel())[0, 1]:.3f}")
places = rng.uniform(-0.9, 0.9, (200, 2))
p = post.predict(hg.Points(places))
print(f"typical error of the density {np.sqrt(np.mean((p.mean - density(places)) ** 2)):.3f}, ", end="")
print(f"claimed {np.sqrt(np.mean(p.std**2)):.3f}")
p = post.predict(hg.Points(clouds))
for place, mean, std in zip(clouds, p.mean, p.std, strict=True):
    print(f"cloud at {place}: {mean:.2f} ± {std:.2f}, truth {density(place):.2f}")

# Stars that were held back.
p = post.predict(hg.LineIntegrals((0.0, 0.0), stars[test]))
z = (extinction[test] - p.mean) / np.hypot(p.std, 0.01)
print(f"held-out stars: standardised errors have std {np.std(z):.2f}")

axes = post.labelled(name="density of dust").plot()
np.ravel(axes)[0].figure.savefig("rays.png", dpi=120)
