"""Disease by district: cases are counts, people live unevenly, and the risk is a field that districts only average."""

import numpy as np
from scipy.spatial import Voronoi

import hipgp as hg

rng = np.random.default_rng(0)
risk = lambda x: np.exp(
    0.7 * np.sin(4 * x[..., 0] + 2 * x[..., 1])
)  # 1 is what is expected of the population

# 40 districts: the nearest of 40 towns. Mirrored towns around the square make their outlines end at its edge.
towns = rng.uniform(0, 1, (40, 2))
mirrored = [towns * s + o for s, o in (((-1, 1), 0), ((1, -1), 0), ((-1, 1), (2, 0)), ((1, -1), (0, 2)))]
cells = Voronoi(np.concatenate([towns, *mirrored]))
districts = [cells.vertices[cells.regions[r]] for r in cells.point_region[:40]]

places = rng.uniform(0, 1, (40_000, 2))
district = np.argmin(((places[:, None] - towns) ** 2).sum(axis=2), axis=1)
mean_risk = np.bincount(district, risk(places)) / np.bincount(district)
expected = rng.gamma(2.0, 6.0, 40) + 0.5  # cases, from the number of people and their ages
cases = rng.poisson(expected * mean_risk)

data = hg.observe(hg.PolygonAverages(districts), cases, likelihood=hg.Poisson(exposure=expected))
gp = hg.GP(hg.Matern52(), hg.Grid.cover((0, 0), (1, 1), shape=(24, 24)), trend="constant", link="exp").learn(
    data
)
post = gp.condition(data)
smoothed = post.predict(hg.PolygonAverages(districts))

rms = lambda ratio: np.sqrt(np.mean((ratio / mean_risk - 1) ** 2))
print(
    f"{cases.sum()} cases; cases over expected are {rms(cases / expected):.0%} off, the map's averages {rms(smoothed.mean):.0%}"
)
lower, upper = smoothed.interval(0.9)
print(f"90% intervals hold {np.mean((lower < mean_risk) & (mean_risk < upper)):.0%} of the districts' risks")

# Would each district's count be expected from all others? The fit without it is not made again.
left = post.leave_out()
print(
    f"leave-one-out: {np.mean(left.log_density()):.2f} nats a district; 95% intervals hold {left.coverage(0.95):.0%}"
)

# The risk within districts, where nobody has counted.
found = post.predict(hg.Points([[0.25, 0.25], [0.7, 0.7]]))
print(
    "risk at two places:",
    np.round(found.mean, 2),
    "truth",
    np.round(risk(np.array([[0.25, 0.25], [0.7, 0.7]])), 2),
)

axes = post.labelled(name="relative risk").plot()
np.ravel(axes)[0].figure.savefig("disease.png", dpi=120)
