"""The whole Earth: stations and paths between them in one fit, drawn in a projection."""

import matplotlib

matplotlib.use("Agg")
import numpy as np

import hipgp as hg

rng = np.random.default_rng(0)


def anomaly(x):
    """A made-up field on the sphere, of places in km from the centre of the Earth."""
    x = x / 6371.0
    return np.sin(3 * x[..., 0]) + np.cos(4 * x[..., 1] * x[..., 2])


def places(count):
    """Longitude and latitude in degrees, evenly over the sphere."""
    return rng.uniform(-180, 180, count), np.degrees(np.arcsin(rng.uniform(-1, 1, count)))


# 150 stations see values, 100 paths between others see averages along great circles.
stations = hg.Points(hg.sphere(*places(150)))
start, end = (np.stack(places(100), axis=1) for _ in range(2))
paths = hg.GreatCircles(start, end, average=True)
nodes = paths.nodes(300.0)
averages = np.sum(nodes.weights * anomaly(nodes.x), axis=1)

data = hg.observe(stations, anomaly(stations.x) + 0.1 * rng.standard_normal(150), noise=0.1)
data += hg.observe(paths, averages + 0.02 * rng.standard_normal(100), noise=0.02)

# Distances are chords through the Earth, in km.
gp = hg.GP(hg.Matern52(variance=1.0, lengthscale=3000.0), trend="constant")
post = gp.condition(data)

lon, lat = np.meshgrid(np.linspace(-180, 180, 73), np.linspace(-90, 90, 37))
p = post.predict(hg.sphere(lon.ravel(), lat.ravel()))
truth = anomaly(hg.sphere(lon.ravel(), lat.ravel()))
print(f"{len(data)} observations: {post.diagnostics['engine']} engine")
print(f"error {np.sqrt(np.mean((p.mean - truth) ** 2)):.3f} of a field with std {np.std(truth):.2f}")
lower, upper = p.interval(0.95)
print(f"95% intervals hold {np.mean((lower < truth) & (truth < upper)):.1%} of the map")

axes = post.labelled(name="anomaly", unit="K").plot()  # on the sphere, since all data lie on it
axes[0].figure.savefig("earth.png", dpi=100)
