"""Travel times with outliers: some clocks were wrong, and the slowness of the ground cannot be negative."""

import numpy as np

import hipgp as hg

rng = np.random.default_rng(1)
slowness = lambda x: 0.3 * np.exp(0.25 * np.sin(6 * x[..., 0]) * np.cos(5 * x[..., 1]))  # s/km
stations = rng.uniform(0, 1, (24, 2))
a, b = np.triu_indices(24, 1)
keep = rng.permutation(len(a))[:120]
start, end = stations[a[keep]], stations[b[keep]]
along = (np.arange(200) + 0.5)[:, None, None] / 200
length = np.linalg.norm(end - start, axis=1)
time = slowness(start + along * (end - start)).mean(axis=0) * length
measured = time + 0.002 * rng.standard_normal(120)
wrong = rng.permutation(120)[:10]
measured[wrong] += 0.05 * rng.standard_normal(10)

paths = hg.LineIntegrals(start, end)
grid = hg.Grid.cover((0, 0), (1, 1), shape=(24, 24))
places = hg.Points(grid.coordinates())
maps = {}
for name, likelihood in (("Gaussian", None), ("Student's t", hg.StudentT(df=2.0))):
    data = hg.observe(
        paths, measured, likelihood=likelihood
    )  # neither says how large the noise is: it is learned
    gp = hg.GP(hg.Matern52(0.1, 0.3), grid, trend="constant", link="exp").learn(data, start="kernel")
    maps[name] = gp.condition(data)
    error = np.sqrt(np.mean((maps[name].mean / slowness(grid.coordinates()).reshape(grid.shape) - 1) ** 2))
    print(f"{name:12} noise {gp.noise:.4f} s, the map is {error:.1%} off")

# Which measurements does the robust map not believe?
robust = maps["Student's t"]
pull = np.abs(measured - robust.predict(paths).mean) / robust.noise
suspects = np.flatnonzero(pull > 5)
print(
    f"{len(suspects)} suspects, of which {len(set(suspects) & set(wrong))} are among the {len(wrong)} that are wrong"
)

axes = robust.labelled(name="slowness", unit="s/km").plot()
np.ravel(axes)[0].figure.savefig("travel-times.png", dpi=120)
