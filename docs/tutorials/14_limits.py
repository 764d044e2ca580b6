"""Limits of detection: a third of the samples only say that there is less of the metal than the instrument can see."""

import numpy as np

import hipgp as hg

rng = np.random.default_rng(0)
metal = lambda x: np.exp(1.2 * np.sin(4 * x[:, 0]) + 0.8 * np.cos(5 * x[:, 1]))  # mg/kg in the soil
places = rng.uniform(0, 1, (150, 2))
measured = metal(places) * np.exp(0.2 * rng.standard_normal(150))  # relative errors of a fifth
limit = 0.7
seen = np.maximum(measured, limit)  # what the laboratory reports: never below the limit
print(f"{np.mean(seen == limit):.0%} of {len(seen)} samples are below the limit of {limit} mg/kg")

grid = hg.Grid.cover((0, 0), (1, 1), shape=(24, 24))
gp = hg.GP(hg.Matern52(1.0, 0.4), grid, trend="constant", link="exp")
scatter = hg.LogNormal(scale=0.2)
above, low = seen > limit, metal(grid.coordinates()).reshape(grid.shape) < limit
truth = metal(grid.coordinates()).reshape(grid.shape)
ways = {
    "limits as values": hg.observe(hg.Points(places), seen, likelihood=scatter),
    "left out": hg.observe(hg.Points(places[above]), seen[above], likelihood=scatter),
    "as limits": hg.observe(hg.Points(places), seen, likelihood=hg.Censored(lower=limit, base=scatter)),
}
for name, data in ways.items():
    post = gp.condition(data)
    lower, upper = post.interval(0.95)
    inside = np.mean((lower < truth) & (truth < upper))
    off = np.exp(np.sqrt(np.mean(np.log(post.mean / truth)[low] ** 2)))
    print(f"{name:17} off by a factor of {off:.2f} where there is little; 95% intervals hold {inside:.0%}")

axes = post.labelled(name="concentration", unit="mg/kg").plot()
np.ravel(axes)[0].figure.savefig("limits.png", dpi=120)
