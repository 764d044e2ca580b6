"""Conditioning sets: an order of the observations in groups, and the nearest predecessors of each group.

A group is one observation, or several neighbouring ones: functionals of several nodes share a conditioning set and the
cost of its covariances. Distances are between locations of functionals in lengthscales (`location_features`).
"""

import itertools
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float, Int

from hipgp.model.kernel_scales import metric_coordinates
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes, Segments
from hipgp.runtime.threads import run_both


class Neighbours(NamedTuple):
    """For each of T targets, the k observations it is conditioned on; `used` is False for padding."""

    index: Int[np.ndarray, "T k"]
    used: np.ndarray


class Groups(NamedTuple):
    """Groups of observations with their conditioning sets.

    The last `group_size` columns of `index` are the members of a group, the columns before them its neighbours. `used` is
    False for padding.
    """

    index: Int[np.ndarray, "G k"]
    used: np.ndarray
    group_size: int


def location_features(nodes: Nodes | Segments, kernel: Kernel) -> Float[np.ndarray, "N F"]:
    """Return the location of each functional in the kernel's coordinates: its place, or both ends of a line or an area."""
    first, last = (metric_coordinates(kernel, np.asarray(end)) for end in nodes.ends())
    if nodes.rule_size == 1:
        return first
    return last if share_one_end(first, last) else ordered_ends(first, last)


def ordered_ends(
    first: Float[np.ndarray, "N D"], last: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, "N 2D"]:
    """Return both ends of each line, the one with the smaller first coordinate first, so that direction is ignored."""
    swap = (first[:, 0] > last[:, 0])[:, None]
    return np.concatenate([np.where(swap, last, first), np.where(swap, first, last)], axis=1)


def share_one_end(first: Float[np.ndarray, "N D"], last: Float[np.ndarray, "N D"]) -> bool:
    """Tell whether the lines between these places all start close to one place, so that their ends identify them."""
    return bool(np.ptp(first, axis=0).max() < 0.1 * np.ptp(last, axis=0).max())


def bisected_groups(places: Float[np.ndarray, "N F"], size: int) -> list[Int[np.ndarray, " n"]]:
    """Partition places into compact groups of at most `size`, as equal in size as possible, by recursive bisection.

    Each part is cut along its widest axis. Parts of equal size and number of groups are cut together, for speed.
    """
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
    nodes: Nodes | Segments,
    places: Float[np.ndarray, "N F"],
    size: int,
    k: int,
    seed: int = 0,
    most: int | None = None,
) -> Groups:
    """Order the observations in groups of at most `size`, short ones first, each with its k nearest predecessors.

    With `most`, return a random choice of at most `most` groups; their predecessors come from all observations.
    """
    rng = np.random.default_rng(seed)
    order, begin = _ordered(nodes, places, size, rng)
    count = len(begin) - 1
    chosen = np.sort(rng.permutation(count)[: count if most is None else most])
    neighbours = _nearest_predecessors(places[order], begin, chosen, min(k, max(1, len(places) - 1)))
    return _append_members(
        Neighbours(order[neighbours.index], neighbours.used), order, begin[chosen], begin[chosen + 1]
    )


def groups_of_last(places: Float[np.ndarray, "N F"], last: Int[np.ndarray, " n"], k: int) -> Groups:
    """Return groups of one for the observations `last`, each with its k nearest of all others and of those before it."""
    order = np.concatenate([np.setdiff1d(np.arange(len(places)), last), last])
    chosen = np.arange(len(places) - len(last), len(places))
    begin = np.arange(len(places) + 1)
    neighbours = _nearest_predecessors(places[order], begin, chosen, min(k, max(1, len(places) - 1)))
    return _append_members(Neighbours(order[neighbours.index], neighbours.used), order, chosen, chosen + 1)


def _ordered(
    nodes: Nodes | Segments, places: np.ndarray, size: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " G+1"]]:
    """Return all observations ordered by group, and where each group begins; groups of equal length are in random order."""
    first, last = nodes.ends()
    length = np.linalg.norm(last - first, axis=-1)
    length = np.round(
        length / max(float(np.max(length)), 1e-300), 9
    )  # differences of rounding size do not order lengths
    if size == 1:
        return np.lexsort((rng.permutation(len(length)), length)), np.arange(len(length) + 1)
    groups = bisected_groups(places, size)
    members, begin = _concatenated(groups)
    mean = np.add.reduceat(length[members], begin[:-1]) / np.diff(begin)
    order = np.lexsort((rng.permutation(len(groups)), mean))
    return _concatenated([groups[i] for i in order])


def _nearest_predecessors(x: np.ndarray, begin: np.ndarray, chosen: np.ndarray, k: int) -> Neighbours:
    """Find the k predecessors nearest to the middle of each of the `chosen` groups x[begin[g] : begin[g + 1]]."""
    count = len(begin) - 1
    index, used = np.zeros((len(chosen), k), int), np.zeros((len(chosen), k), bool)
    middle = np.add.reduceat(x, begin[:-1], axis=0) / np.diff(begin)[:, None]
    few = int(np.searchsorted(begin[:-1], 2 * k))
    for row, g in enumerate(chosen[chosen < few]):
        nearest = np.argsort(np.sum((x[: begin[g]] - middle[g]) ** 2, axis=1), kind="stable")[:k]
        index[row, : len(nearest)], used[row, : len(nearest)] = nearest, True
    cuts = [max(few, 1)]
    while cuts[-1] < count:
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(begin, 2 * begin[cuts[-1]], side="right")) - 1))

    def search(first: int, last: int) -> None:
        rows = slice(*np.searchsorted(chosen, (first, last)))
        if len(chosen[rows]):
            index[rows] = _search_level(x, begin, middle, chosen[rows], k)
            used[rows] = True

    levels = list(itertools.pairwise(cuts))
    if levels:  # the last level is half of the work
        run_both(lambda: [search(*level) for level in levels[:-1]], lambda: search(*levels[-1]))
    return Neighbours(index, used)


def _search_level(
    x: np.ndarray, begin: np.ndarray, middle: np.ndarray, groups: np.ndarray, k: int
) -> np.ndarray:
    """Find the k nearest predecessors of each of some groups in ascending order, with one tree for all.

    They are searched for among the 3k nearest places up to the last group, and among three times as many while too few of
    these are predecessors. Accepting fewer neighbours does not pay: a few observations with poor conditionals double the
    solver's steps.
    """
    end = int(begin[groups[-1]])
    tree = scipy.spatial.KDTree(x[:end])
    found = np.empty((len(groups), k), int)
    rows, count = np.arange(len(groups)), 3 * k
    while len(rows):
        count = min(count, end)
        nearest = np.asarray(tree.query(middle[groups[rows]], k=count, workers=-1)[1])
        late = nearest >= begin[groups[rows]][:, None]
        enough = np.sum(~late, axis=1) >= k
        first = np.argsort(late[enough], axis=1, kind="stable")[:, :k]
        found[rows[enough]] = np.take_along_axis(nearest[enough], first, axis=1)
        rows, count = rows[~enough], 3 * count
    return found


def target_groups(
    places: Float[np.ndarray, "N F"], targets: Float[np.ndarray, "T F"], size: int, k: int
) -> Groups:
    """Partition targets into groups of at most `size`, each with the k observations nearest to its middle.

    Targets are numbered after the observations.
    """
    groups = bisected_groups(targets, size) if size > 1 else list(np.arange(len(targets))[:, None])
    members, begin = _concatenated(groups)
    middle = np.add.reduceat(targets[members], begin[:-1], axis=0) / np.diff(begin)[:, None]
    k = min(k, len(places))
    if places.shape[1] == 1:
        nearest = _either_side(places[:, 0], middle[:, 0], k)
    else:
        nearest = np.asarray(scipy.spatial.KDTree(places).query(middle, k=k, workers=-1)[1]).reshape(
            len(groups), k
        )
    return append_targets(Neighbours(nearest, np.ones_like(nearest, bool)), groups, len(places))


def _concatenated(
    groups: list[Int[np.ndarray, " n"]],
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " G+1"]]:
    """Return all members ordered by group, and where each group begins."""
    return np.concatenate(groups), np.concatenate([[0], np.cumsum([len(rows) for rows in groups])])


def _either_side(places: np.ndarray, middle: np.ndarray, k: int) -> Int[np.ndarray, "G k"]:
    """Find neighbours in one dimension, half of them on either side, since the nearest may all lie on one side of a gap."""
    order = np.argsort(places, kind="stable")
    first = np.searchsorted(places[order], middle) - k // 2
    return order[np.clip(first, 0, len(places) - k)[:, None] + np.arange(k)]


def append_targets(neighbours: Neighbours, groups: list[Int[np.ndarray, " n"]], count: int) -> Groups:
    """Number the targets of `groups` from `count` on, and append them to their neighbours."""
    members, begin = _concatenated(groups)
    return _append_members(neighbours, members + count, begin[:-1], begin[1:])


def _append_members(
    neighbours: Neighbours, members: Int[np.ndarray, " N"], begin: np.ndarray, end: np.ndarray
) -> Groups:
    """Append members[begin[g] : end[g]] of each group to its neighbours; the last member repeated pads short groups."""
    count = (end - begin)[:, None]
    within = np.arange(np.max(count))
    member_index = members[begin[:, None] + np.minimum(within, count - 1)]
    used = np.concatenate([neighbours.used, within < count], axis=1)
    return Groups(np.concatenate([neighbours.index, member_index], axis=1), used, len(within))
