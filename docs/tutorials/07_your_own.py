"""A functional and a kernel of your own: rings seen by a telescope, and a kernel that falls slowly."""

import numpy as np

import hipgp as hg
from hipgp.model.functionals import Functional, Nodes
from hipgp.model.kernels import Stationary


class CircleAverages(Functional):
    """The mean of the field around circles: `centre` (N, 2), `radius` (N,)."""

    centre: np.ndarray
    radius: np.ndarray

    def nodes(self, spacing):
        count = max(8, int(np.ceil(6 * np.pi * np.max(self.radius) / np.min(spacing))))
        angle = 2 * np.pi * np.arange(count) / count
        around = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        x = self.centre[:, None, :] + self.radius[:, None, None] * around
        return Nodes(x, np.full(x.shape[:2], 1 / count))

    def places(self):
        corners = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])
        return self.centre[:, None, :] + self.radius[:, None, None] * corners

    def take(self, rows):
        return CircleAverages(self.centre[rows], self.radius[rows])


class Cauchy(Stationary):
    """1 / (1 + s), s the squared scaled distance."""

    @property
    def differentiable(self):
        return 99

    def profile(self, s):
        return 1 / (1 + s)


rng = np.random.default_rng(0)
field = lambda x: np.sin(5 * x[..., 0]) + x[..., 1]
rings = CircleAverages(rng.uniform(0.3, 0.7, (80, 2)), rng.uniform(0.05, 0.25, 80))
fine = rings.nodes(0.005)
y = np.sum(fine.weights * field(fine.x), axis=1) + 0.01 * rng.standard_normal(80)

data = hg.observe(rings, y, noise=0.01)
grid = hg.Grid.cover((0, 0), (1, 1), shape=(25, 25))
gp = hg.GP(Cauchy(), grid, trend="constant").learn(data)
print("learned:", dict(zip(gp.learned.names, gp.learned.values.round(2).tolist(), strict=True)))
post = gp.condition(data)
print(f"{post.diagnostics['iterations']} steps; clipped mass {post.diagnostics['clipped_mass']:.0e}")
places = rng.uniform(0.2, 0.8, (5, 2))
p = post.predict(hg.Points(places), std="exact")
for place, mean, std in zip(places, p.mean, p.std, strict=True):
    print(f"at {place.round(2)}: {mean:6.3f} ± {std:.3f}, truth {field(place):6.3f}")

axes = post.plot()
np.ravel(axes)[0].figure.savefig("your-own.png", dpi=120)
