"""Who is near whom: an order of the observations, in groups, and for each group the nearest that come before it.

A group is one observation, or some that lie close together: those of several nodes share the price of their
covariances that way. Places are features of a functional in lengthscales (`features`); trees are SciPy's.
"""

import itertools
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float, Int

from hipgp.model.nodes import Nodes, Segments
from hipgp.runtime.threads import run_both


class Neighbours(NamedTuple):
    """For each target, the observations it is conditioned on; `used` marks the real ones."""

    index: Int[np.ndarray, "T k"]
    used: np.ndarray


class Groups(NamedTuple):
    """Groups of observations, each after those it is conditioned on: `index` holds the nearest earlier ones and, last,
    the `own` members; `used` marks the real ones."""

    index: Int[np.ndarray, "G k"]
    used: np.ndarray
    group_size: int


def location_features(nodes: Nodes | Segments, scale: Float[np.ndarray, " D"]) -> Float[np.ndarray, "N F"]:
    """Where each functional is, in lengthscales: its place, or both its ends in a fixed order."""
    first, last = (np.asarray(end) / scale for end in nodes.ends())
    if nodes.per == 1:
        return first
    swap = (first[:, 0] > last[:, 0])[:, None]
    together = np.concatenate([np.where(swap, last, first), np.where(swap, first, last)], axis=1)
    return last if share_one_end(first, last) else together


def share_one_end(first: Float[np.ndarray, "N D"], last: Float[np.ndarray, "N D"]) -> bool:
    """Whether the lines between these begin, all but, at one place: their ends then tell all."""
    return bool(np.ptp(first, axis=0).max() < 0.1 * np.ptp(last, axis=0).max())


def bisected_groups(places: Float[np.ndarray, "N F"], size: int) -> list[Int[np.ndarray, " n"]]:
    """All places in compact groups of at most `size`, as equal as can be: cut in two along the widest axis, again and
    again, those with as many places and as many groups to come together."""
    components = np.ascontiguousarray(places.T)
    out: list[np.ndarray] = []
    todo = {(len(places), -(-len(places) // size)): [np.arange(len(places))[None]]}
    while todo:
        halves = defaultdict(list)
        for (count, groups), parts in todo.items():
            rows = np.concatenate(parts)
            if groups == 1:
                out += list(rows)
                continue
            cut = round(count * (groups // 2) / groups)
            at = np.take(components, rows, axis=1)
            widest = np.argmax(np.ptp(at, axis=2), axis=0)
            split = np.argpartition(at[widest, np.arange(len(rows))], cut, axis=1)
            rows = np.take_along_axis(rows, split, axis=1)
            halves[cut, groups // 2].append(rows[:, :cut])
            halves[count - cut, groups - groups // 2].append(rows[:, cut:])
        todo = dict(halves)
    return out


def ordered_groups(
    nodes: Nodes | Segments, places: Float[np.ndarray, "N F"], size: int, k: int, seed: int = 0
) -> Groups:
    """Groups of at most `size`, short functionals before long ones, each with its k nearest predecessors."""
    order, begin = _ordered(nodes, places, size, np.random.default_rng(seed))
    near = _nearest_predecessors(places[order], begin, min(k, max(1, len(places) - 1)))
    return _append_members(Neighbours(order[near.index], near.used), order, begin)


def _ordered(
    nodes: Nodes | Segments, places: np.ndarray, size: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " G+1"]]:
    """All observations, group after group, and where each group begins; at random among groups of equal length."""
    first, last = nodes.ends()
    length = np.linalg.norm(last - first, axis=-1)
    if size == 1:
        return np.lexsort((rng.permutation(len(length)), length)), np.arange(len(length) + 1)
    groups = bisected_groups(places, size)
    members, begin = _concatenated(groups)
    mean = np.add.reduceat(length[members], begin[:-1]) / np.diff(begin)
    order = np.lexsort((rng.permutation(len(groups)), mean))
    return _concatenated([groups[i] for i in order])


def _nearest_predecessors(x: np.ndarray, begin: np.ndarray, k: int) -> Neighbours:
    """For each group x[begin[g] : begin[g + 1]], the k places before it that are nearest to its middle."""
    count = len(begin) - 1
    index, used = np.zeros((count, k), int), np.zeros((count, k), bool)
    middle = np.add.reduceat(x, begin[:-1], axis=0) / np.diff(begin)[:, None]
    few = int(np.searchsorted(begin[:-1], 2 * k))
    for g in range(1, few):
        near = np.argsort(np.sum((x[: begin[g]] - middle[g]) ** 2, axis=1), kind="stable")[:k]
        index[g, : len(near)], used[g, : len(near)] = near, True
    cuts = [max(few, 1)]
    while cuts[-1] < count:
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(begin, 2 * begin[cuts[-1]], side="right")) - 1))

    def search(first: int, last: int) -> None:
        index[first:last] = _search_level(x, begin, middle, np.arange(first, last), k)
        used[first:last] = True

    levels = list(itertools.pairwise(cuts))
    if levels:  # the last is half of it
        run_both(lambda: [search(*level) for level in levels[:-1]], lambda: search(*levels[-1]))
    return Neighbours(index, used)


def _search_level(
    x: np.ndarray, begin: np.ndarray, middle: np.ndarray, groups: np.ndarray, k: int
) -> np.ndarray:
    """For consecutive `groups`, the k nearest places before each.

    Looked for among the 3k nearest of all up to the last one's, and for those with too few earlier ones among ever
    more. To settle for less there is a false economy: a few badly conditioned observations double the solver's steps.
    """
    end = int(begin[groups[-1]])
    tree = scipy.spatial.KDTree(x[:end])
    found = np.empty((len(groups), k), int)
    rows, count = groups, 3 * k
    while len(rows):
        count = min(count, end)
        near = np.asarray(tree.query(middle[rows], k=count, workers=-1)[1])
        late = near >= begin[rows][:, None]
        enough = np.sum(~late, axis=1) >= k
        first = np.argsort(late[enough], axis=1, kind="stable")[:, :k]
        found[rows[enough] - groups[0]] = np.take_along_axis(near[enough], first, axis=1)
        rows, count = rows[~enough], 3 * count
    return found


def target_groups(
    places: Float[np.ndarray, "N F"], targets: Float[np.ndarray, "T F"], size: int, k: int
) -> Groups:
    """Targets in groups of at most `size`, each with the k observations nearest to its middle.

    Targets are numbered after the observations.
    """
    groups = bisected_groups(targets, size) if size > 1 else list(np.arange(len(targets))[:, None])
    members, begin = _concatenated(groups)
    middle = np.add.reduceat(targets[members], begin[:-1], axis=0) / np.diff(begin)[:, None]
    k = min(k, len(places))
    if places.shape[1] == 1:
        near = _either_side(places[:, 0], middle[:, 0], k)
    else:
        near = np.asarray(scipy.spatial.KDTree(places).query(middle, k=k, workers=-1)[1]).reshape(
            len(groups), k
        )
    return append_targets(Neighbours(near, np.ones_like(near, bool)), groups, len(places))


def _concatenated(
    groups: list[Int[np.ndarray, " n"]],
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " G+1"]]:
    """All members, group after group, and where each group begins."""
    return np.concatenate(groups), np.concatenate([[0], np.cumsum([len(rows) for rows in groups])])


def _either_side(places: np.ndarray, middle: np.ndarray, k: int) -> Int[np.ndarray, "G k"]:
    """On a line, as many from below as from above: across a gap the nearest ones may all be on one side."""
    order = np.argsort(places, kind="stable")
    first = np.searchsorted(places[order], middle) - k // 2
    return order[np.clip(first, 0, len(places) - k)[:, None] + np.arange(k)]


def append_targets(near: Neighbours, groups: list[Int[np.ndarray, " n"]], count: int) -> Groups:
    """Groups of targets, numbered from `count` on, after their neighbours."""
    members, begin = _concatenated(groups)
    return _append_members(near, members + count, begin)


def _append_members(
    near: Neighbours, members: Int[np.ndarray, " N"], begin: Int[np.ndarray, " G+1"]
) -> Groups:
    """Groups' neighbours and, last, their own members[begin[g] : begin[g + 1]]; of short groups the last again."""
    within, count = np.arange(np.max(np.diff(begin))), np.diff(begin)[:, None]
    own = members[begin[:-1, None] + np.minimum(within, count - 1)]
    used = np.concatenate([near.used, within < count], axis=1)
    return Groups(np.concatenate([near.index, own], axis=1), used, len(within))
