"""A trend, and whether the error bars are true: hold data out, and count."""

import numpy as np

import hipgp as hg
from hipgp import plots

rng = np.random.default_rng(0)

# Temperatures: colder to the north and with height (a column of our own), plus weather.
x = rng.uniform(0, 10, (600, 2))
height = rng.gamma(2.0, 300.0, 600)
weather = 2 * np.sin(x[:, 0]) * np.cos(0.8 * x[:, 1])
y = 25 - 1.2 * x[:, 1] - 0.0065 * height + weather + 0.5 * rng.standard_normal(600)

train, test = np.arange(600) < 450, np.arange(600) >= 450
columns = np.stack([np.ones(600), x[:, 1], height], axis=1)
data = hg.observe(hg.Points(x[train]), y[train])
grid = hg.Grid.cover((0, 0), (10, 10), shape=(40, 40))

gp = hg.GP(hg.Matern32(), grid, trend=columns[train]).learn(data)
post = gp.condition(data)
beta, spread = post.engine.beta, np.sqrt(np.diag(post.engine.beta_covariance))
print(f"northwards {beta[1]:.2f} ± {spread[1]:.2f} degrees a unit (truth -1.20)")
print(f"upwards {1000 * beta[2]:.2f} ± {1000 * spread[2]:.2f} degrees a kilometre (truth -6.50)")

# The trend's uncertainty is in the predictions. Measurements scatter by the noise as well.
p = post.predict(hg.Points(x[test]), columns=columns[test])
z = (y[test] - p.mean) / np.hypot(p.std, gp.noise)
print(
    f"held out: error {np.sqrt(np.mean((y[test] - p.mean) ** 2)):.2f}, std of standardised errors {np.std(z):.2f}"
)
for level, limit in ((0.5, 0.674), (0.8, 1.282), (0.95, 1.960)):
    print(f"  {level:.0%} intervals hold {np.mean(np.abs(z) < limit):.0%}")

# What happens if the noise is claimed to be half of what it is?
wrong = hg.GP(gp.kernel, grid, noise=gp.noise / 2, trend=columns[train]).condition(data)
p = wrong.predict(hg.Points(x[test]), columns=columns[test])
z = (y[test] - p.mean) / np.hypot(p.std, gp.noise / 2)
print(f"with half the noise, 95% intervals hold {np.mean(np.abs(z) < 1.96):.0%}")

from_too_little = plots.calibration(p.mean, np.hypot(p.std, gp.noise / 2), y[test], "Half the noise claimed")
from_too_little.savefig("calibration.png", dpi=120)
