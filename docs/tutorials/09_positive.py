"""Counts, a positive field and outliers: when noise is not Gaussian, or the field cannot be negative."""

import numpy as np

import hipgp as hg

rng = np.random.default_rng(0)

# Trees in a wood: where they stand is a Poisson process, whose rate (trees per hectare) is never negative.
rate = lambda x: 200 * np.exp(1.5 * np.sin(3 * x[:, 0]) * np.cos(4 * x[:, 1]) - 0.5)
everywhere = rng.uniform(0, 2, (6000, 2))  # thinned: a place is kept in proportion to the rate there
trees = everywhere[rng.uniform(size=6000) < rate(everywhere) / 1500]
data = hg.point_pattern(trees, window=((0, 0), (2, 2)), cells=30)
grid = hg.Grid.cover((0, 0), (2, 2), shape=(32, 32))
gp = hg.GP(hg.Matern52(), grid, trend="constant", link="exp").learn(data)
post = gp.condition(data)
print(
    f"{len(trees)} trees, {post.diagnostics['rounds']} rounds, lengthscale {float(gp.kernel.lengthscale):.2f}"
)

places = np.array([[0.4, 0.1], [1.0, 1.0], [1.6, 0.8]])
found = post.predict(hg.Points(places))
lower, upper = found.interval(0.9)
for line in zip(rate(places), found.mean, lower, upper, strict=True):
    print("rate {:5.1f}: found {:5.1f}, 90% between {:5.1f} and {:5.1f}".format(*line))

# How many trees stand in a box? The integral of the rate: the average over the box, times its area.
box = post.predict(hg.BoxAverages([[0.2, 0.0]], [[0.7, 0.4]]))
print(
    "in a box of 0.2 hectares:",
    np.round(0.2 * box.mean, 1),
    "of them",
    np.round(0.2 * np.array(box.interval(0.9)).T, 1),
)

# A positive field through its integrals: the dust on the way to each star, and some only known to be more than can be seen.
density = lambda x: np.exp(np.sin(5 * x[..., 0]) + np.cos(4 * x[..., 1]))
stars = rng.uniform(-1, 1, (300, 2))
t = (np.arange(200) + 0.5) / 200
dust = density(t[:, None, None] * stars).mean(axis=0) * np.linalg.norm(stars, axis=1)
limit = 1.5
seen = np.minimum(dust + 0.05 * rng.standard_normal(300), limit)
data = hg.observe(hg.LineIntegrals((0, 0), stars), seen, noise=0.05, likelihood=hg.Censored(upper=limit))
gp = hg.GP(
    hg.Matern52(1.0, 0.5), hg.Grid.cover((-1, -1), (1, 1), shape=(32, 32)), trend="constant", link="exp"
)
post = gp.condition(data)
print(f"{np.sum(seen == limit)} of 300 stars are only limits; least density on the map {post.mean.min():.3f}")
beyond = np.argmax(dust)
true, hidden = dust[beyond], post.predict(hg.LineIntegrals((0, 0), stars[[beyond]]))
print(
    f"behind the most dust: {hidden.mean[0]:.2f} ± {hidden.std[0]:.2f} (truth {true:.2f}, told only > {limit})"
)

# Outliers: Student's t learns how heavy their tails are, and the noise of all the others.
x = np.linspace(0, 1, 200)
y = np.sin(6 * x) + 0.05 * rng.standard_t(1.5, 200)
data = hg.observe(hg.Points(x), y, likelihood=hg.StudentT())
robust = hg.GP(hg.Matern52(), hg.Grid.cover(0.0, 1.0, shape=64)).learn(data)
print(f"noise {robust.noise:.3f}, degrees of freedom {robust.parameters['StudentT.df']:.1f}")
robust.condition(data).plot().figure.savefig("outliers.png", dpi=120)
