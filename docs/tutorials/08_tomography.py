"""Tomography: a slice from what parallel beams lose on their way through it."""

import numpy as np

import hipgp as hg

rng = np.random.default_rng(0)


# Two discs, one denser, in the unit circle.
def slice_(x):
    inside = lambda centre, radius: np.linalg.norm(x - np.asarray(centre), axis=-1) < radius
    return 0.5 * inside((0.0, 0.0), 0.7) + 1.0 * inside((0.25, -0.2), 0.25)


# 24 directions, 31 parallel beams from each; every beam from one side of the circle to the other.
angle = np.repeat(np.linspace(0, np.pi, 24, endpoint=False), 31)
offset = np.tile(np.linspace(-0.9, 0.9, 31), 24)
across = np.stack([np.cos(angle), np.sin(angle)], axis=1)
along = np.stack([-np.sin(angle), np.cos(angle)], axis=1)
half = np.sqrt(1 - offset**2)[:, None]
start, end = (offset[:, None] * across + sign * half * along for sign in (-1, 1))
t = (np.arange(400) + 0.5)[:, None, None] / 400
loss = slice_(start + t * (end - start)).mean(axis=0) * np.linalg.norm(end - start, axis=1)
measured = loss + 0.02 * rng.standard_normal(len(loss))

# Beams cross everywhere and none is predicted by its neighbours: no preconditioner is best here.
data = hg.observe(hg.LineIntegrals(start, end), measured, noise=0.02)
grid = hg.Grid.cover((-1, -1), (1, 1), shape=(48, 48))
gp = hg.GP(hg.Matern32(variance=0.15, lengthscale=0.2), grid)  # sharp edges: a rough kernel, given
post = gp.condition(data, hg.Batch(neighbours=0))
print(f"{len(data)} beams, {post.diagnostics['iterations']} steps")

truth = slice_(grid.coordinates()).reshape(grid.shape)
seen = np.linalg.norm(grid.coordinates(), axis=1).reshape(grid.shape) < 0.85
print(f"correlation with the slice: {np.corrcoef(post.mean[seen], truth[seen])[0, 1]:.3f}")
middle = post.predict(hg.Points([[0.25, -0.2], [-0.4, 0.0]]))
print("in the dense disc and beside it:", middle.mean.round(2), "±", middle.std.round(2))

# Anything linear in the slice has an answer, such as the mean over the dense disc's box.
box = post.predict(hg.BoxAverages([[0.15, -0.3]], [[0.35, -0.1]]))
print(f"mean over a box in the dense disc: {box.mean[0]:.2f} ± {box.std[0]:.2f} (truth 1.50)")

axes = post.labelled(name="density").plot(data=False)
np.ravel(axes)[0].figure.savefig("tomography.png", dpi=120)
