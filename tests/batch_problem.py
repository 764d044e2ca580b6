"""One small problem in two dimensions for the batch engine's tests: every functional, here and in the dense reference."""

import jax.numpy as jnp
import numpy as np

import dense
import hipgp as hg
from hipgp.batch.ordering import in_order

GRID = hg.Grid((-0.1, -0.1), (0.15, 0.2), (9, 7))
KERNEL = hg.Matern52(variance=1.3, lengthscale=(0.5, 0.6))
DENSE_KERNEL = dense.Matern52(1.3, (0.5, 0.6))
COUNT = 24


def places(seed, count=COUNT):
    return np.random.default_rng(seed).uniform(0.0, 1.0, (count, 2))


def boxes(seed, count=COUNT):
    lower = places(seed, count) * 0.8
    return lower, lower + np.random.default_rng(seed + 1).uniform(0.05, 0.2, (count, 2))


def own(seed, count=COUNT):
    nodes = places(seed, 3 * count).reshape(count, 3, 2)
    return nodes, np.random.default_rng(seed).normal(size=(count, 3))


def pair(name, seed, count=COUNT):
    """A functional and its dense twin."""
    x, end = places(seed, count), places(seed + 50, count)
    if name == "points":
        return hg.Points(x), dense.points(x)
    if name == "derivatives":
        direction = end - 0.5
        return hg.Derivatives(x, direction=direction), dense.derivatives(x, direction=direction)
    if name == "rays":
        return hg.LineIntegrals(x, end), dense.line_integrals(x, end)
    if name == "ray averages":
        return hg.LineIntegrals(x, end, average=True), dense.line_integrals(x, end, average=True)
    if name == "boxes":
        return hg.BoxAverages(*boxes(seed, count)), dense.box_averages(*boxes(seed, count))
    return hg.Functionals(*own(seed, count)), dense.functionals(*own(seed, count))


KINDS = ("points", "derivatives", "rays", "ray averages", "boxes", "own")


def mixture(names, noise=0.1, seed=0, count=COUNT):
    """Data of several kinds, their dense twin, y and the noise of each, in the order that the engine takes them in."""
    rng = np.random.default_rng(seed)
    pairs = [pair(name, seed + 7 * i, count) for i, name in enumerate(names)]
    f = dense.concatenate(*[p[1] for p in pairs])
    std = noise * rng.uniform(0.5, 1.5, len(f.value))
    y = np.linalg.cholesky(dense.covariance(DENSE_KERNEL, f, f) + np.diag(std**2)) @ rng.normal(size=len(std))
    parts = np.split(np.arange(len(y)), len(names))
    blocks = [hg.observe(p[0], y[i], noise=std[i]) for p, i in zip(pairs, parts, strict=True)]
    data = blocks[0]
    for block in blocks[1:]:
        data = data + block
    data, order = in_order(data)
    return data, f.rows(order), y[order], std[order]


def twin(nodes):
    """The dense functional with exactly these nodes and weights."""
    n, _, d = nodes.x.shape
    value = np.ones(n) if nodes.value is None else np.asarray(nodes.value)
    direction = np.zeros((n, d)) if nodes.direction is None else np.asarray(nodes.direction)
    return dense.Functional(np.asarray(nodes.x), np.asarray(nodes.weights), value, direction)


def linear_columns(f):
    """1, x and y as a dense functional sees them, in the engine's frame."""
    middle, half = (np.array(GRID.lower) + GRID.upper) / 2, (np.array(GRID.upper) - GRID.lower) / 2
    x = f.value[:, None] * np.einsum("nq,nqd->nd", f.weights, (f.nodes - middle) / half)
    slope = f.weights.sum(axis=1)[:, None] * f.direction / half
    return np.concatenate([(f.value * f.weights.sum(axis=1))[:, None], x + slope], axis=1)


def matrices(post):
    """W, K, N (with R, where residuals are joint) and X of a posterior's own system, dense."""
    system = post.engine.system
    eye = jnp.eye(post.grid.size)
    w = np.asarray(system.weights.matmul(eye)).T
    k = np.asarray(system.toeplitz.matmul(eye.reshape(-1, *post.grid.shape))).reshape(post.grid.size, -1)
    noise = np.asarray(system.noise_matmul(jnp.eye(len(system.noise))))
    return w, k, noise, post.engine.trend.of_data(post.engine.data, post.grid)


def true_kl(post):
    """The KL from the engine's posterior to the exact one: equal covariances, so half a squared distance of means."""
    w, k, noise, x = matrices(post)
    y = np.asarray(post.engine.data.y, float)
    both = np.concatenate([w, x], axis=1)
    precision = both.T @ np.linalg.solve(noise, both)
    precision[: len(k), : len(k)] += np.linalg.inv(k)
    exact = np.linalg.solve(precision, both.T @ np.linalg.solve(noise, y))
    gap = np.concatenate([np.asarray(post.engine.field), post.engine.beta]) - exact
    return 0.5 * gap @ precision @ gap
