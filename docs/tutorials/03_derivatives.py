"""Slopes and values together: ten values and twenty slopes of a curve say more than thirty values' worth of either."""

import numpy as np

import hipgp as hg

rng = np.random.default_rng(0)
curve = lambda x: np.sin(x) + 0.3 * x
slope = lambda x: np.cos(x) + 0.3

x, s = rng.uniform(0, 10, 10), rng.uniform(0, 10, 20)
values = hg.observe(hg.Points(x), curve(x) + 0.05 * rng.standard_normal(10), noise=0.05)
slopes = hg.observe(hg.Derivatives(s, axis=0), slope(s) + 0.05 * rng.standard_normal(20), noise=0.05)

grid = hg.Grid.cover(0, 10, shape=150)
gp = hg.GP(hg.Matern52(variance=2.0, lengthscale=2.0), grid, trend="linear")
new = np.linspace(0, 10, 101)

for name, data in (("values alone", values), ("values and slopes", values + slopes)):
    p = gp.condition(data).predict(hg.Points(new))
    error = np.sqrt(np.mean((p.mean - curve(new)) ** 2))
    print(f"{name:18} error {error:.3f}, claimed {np.sqrt(np.mean(p.std**2)):.3f}")

# The slope where none was measured, and how it goes together with the value in draws of the posterior.
post = gp.condition(values + slopes)
p = post.predict(hg.Derivatives([5.0], axis=0))
print(f"slope at 5: {p.mean[0]:.2f} ± {p.std[0]:.2f}, truth {slope(5.0):.2f}")
draws = post.sample(200, key=0)
turning = new[0] + (grid.axes[0][1] - grid.axes[0][0]) * draws.argmax(axis=1)
print(f"the highest point of the curve: {turning.mean():.2f} ± {turning.std():.2f}")

axes = post.plot()
np.ravel(axes)[0].figure.savefig("derivatives.png", dpi=120)
