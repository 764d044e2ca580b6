"""Trees in a wood: where they stand is a Poisson process whose rate is positive (a log-Gaussian Cox process)."""

import matplotlib.path
import numpy as np

import hipgp as hg

rng = np.random.default_rng(0)
rate = lambda x: 60 * np.exp(1.2 * np.sin(3 * x[:, 0]) * np.cos(4 * x[:, 1]))  # trees per hectare
places = rng.uniform(0, 2, (800, 2))  # thinned: a place is kept in proportion to the rate there
trees = places[rng.uniform(size=800) < rate(places) / 200]

# The wood has an edge, a polygon. Trees are counted in small cells, those at the edge weighted by their area inside.
edge = np.array([[0.0, 0.2], [1.9, 0.0], [2.0, 1.6], [1.0, 2.0], [0.1, 1.5]])
trees = trees[matplotlib.path.Path(edge).contains_points(trees)]
data = hg.point_pattern(trees, window=edge, cells=24)

grid = hg.Grid.cover((0, 0), (2, 2), shape=(25, 25))
gp = hg.GP(hg.Matern52(), grid, trend="constant", link="exp").learn(data)
post = gp.condition(data)
print(f"{len(trees)} trees in {len(data)} cells, lengthscale {float(gp.kernel.lengthscale):.2f}")

for place in ([0.5, 0.3], [1.0, 1.0], [1.5, 0.8]):
    found, true = post.predict(hg.Points([place])), rate(np.array([place]))[0]
    lower, upper = found.interval(0.9)
    print(
        f"at {place}: {true:5.1f} a hectare, found {found.mean[0]:5.1f}, 90% between {lower[0]:.1f} and {upper[0]:.1f}"
    )

# How many trees of this wood would stand in a part of it? New counts scatter more than their mean is uncertain.
corner = hg.PolygonAverages([[[0.5, 0.3], [1.2, 0.3], [0.8, 1.0]]], total=True)
lower, upper = post.predict(corner, noisy=hg.Poisson()).interval(0.9)
print(
    f"in a corner of 0.245 hectares: {post.predict(corner).mean[0]:.1f} expected, 90% of counts in {lower[0]:.0f} to {upper[0]:.0f}"
)

axes = post.labelled(axis_units="100 m", name="trees", unit="1/ha").plot()
np.ravel(axes)[0].figure.savefig("trees.png", dpi=120)
