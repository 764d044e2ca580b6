"""Each decision of the batch engine: its choice, the reason it gives, and that both change when what they rest on does."""

import re

import numpy as np
import pytest

import hipgp as hg
from hipgp.batch import decisions
from hipgp.batch.decisions import Work

RNG = np.random.default_rng(0)


def points(count, ndim=2):
    return hg.observe(hg.Points(RNG.uniform(0, 1, (count, ndim))), np.zeros(count), noise=0.1)


def lines(count, ndim=2):
    return hg.observe(hg.LineIntegrals(*RNG.uniform(0, 1, (2, count, ndim))), np.zeros(count), noise=0.1)


def space(data, grid_points, method=None, joint=False, gain=1.0):
    return decisions.space(method or hg.Batch(), data, grid_points, joint, lambda: gain)


@pytest.mark.parametrize(
    ("decision", "choice", "words"),
    [
        (space(points(201), 100), "grid", "201 points are 2 for each of the 100 grid points.* gain 1, below 1.5e"),
        (space(points(200), 100), "data", "200 points are 2 for each of the 100 grid points, and .* beyond 2"),
        (space(points(300), 100, gain=400.0), "data", "3 for each .* has gain 4e.02, not below 3.2e.02"),
        (space(points(300), 100, gain=300.0), "grid", "3 for each .* has gain 3e.02, below 3.2e.02"),
        (space(points(300), 100, joint=True), "data", "but residuals are joint"),
        (space(lines(101), 100), "grid", "101 observations .* more than 1"),
        (space(lines(100), 100), "data", "100 observations .* beyond 1"),
        (space(lines(101, 3), 100), "data", "101 observations .* beyond 10"),
        (space(lines(1001, 3), 100), "grid", "1,001 observations .* more than 10"),
        (space(points(300), 100, hg.Batch(neighbours=5)), "data", r"Batch\(neighbours=...\) is given"),
        (space(points(300), 100, hg.Batch(weights="exact")), "data", "needs local weights, not exact"),
        (space(points(10), 100, hg.Batch(space="grid")), "grid", r'Batch\(space="grid"\) asks for it'),
    ],
)  # fmt: skip
def test_space(decision, choice, words):
    check(decision, choice, words)


@pytest.mark.parametrize(
    ("method", "data", "ratio", "share_a_cell", "choice", "words"),
    [
        (hg.Batch(), points(9), 0.3, True, "joint", "0.3 noise variances, between 0.05 and 100"),
        (hg.Batch(), points(9), 0.05, True, "noise", "0.05 noise variances, too few"),
        (hg.Batch(), points(9), 100.0, True, "noise", "1e.02 noise variances, too many to certify"),
        (hg.Batch(), points(9), 0.3, False, "noise", "no two points share a cell"),
        (hg.Batch(), lines(9), 0.3, True, "noise", "not all observations are values at points"),
        (hg.Batch(space="grid"), points(9), 0.3, True, "noise", "only data space"),
        (hg.Batch(weights="exact"), points(9), 0.3, True, "noise", "only data space with local weights"),
        (hg.Batch(residual="noise"), points(9), 0.3, True, "noise", "asks for it"),
        (hg.Batch(residual="bound"), points(9), 0.3, True, "bound", "asks for it"),
    ],
)
def test_residual(method, data, ratio, share_a_cell, choice, words):
    check(decisions.residual(method, data, ratio, lambda: share_a_cell), choice, words)


def test_weights_and_stencils():
    check(decisions.weights(hg.Batch()), "local", "the default")
    check(decisions.weights(hg.Batch(weights="exact")), "exact", 'weights="exact"')
    point, line = points(3, 3).blocks[0].functional, lines(3, 3).blocks[0].functional
    check(decisions.stencil(hg.Batch(), [line], 2), 4, "the default in 2 dimensions")
    check(decisions.stencil(hg.Batch(), [point], 3), 4, "a single node")
    check(decisions.stencil(hg.Batch(), [point, line], 3), 2, "in 3 dimensions sums over many nodes")
    check(decisions.stencil(hg.Batch(stencil=6), [point, line], 3), 6, r"Batch\(stencil=6\)")


def test_preconditioner():
    check(decisions.preconditioner(hg.Batch(), "grid", "7 modes"), "7 modes and a circulant", "grid space")
    check(decisions.preconditioner(hg.Batch(), "data", "20 neighbours"), "Vecchia, 20 neighbours", "default")
    given = decisions.preconditioner(hg.Batch(neighbours=5), "data", "5 neighbours")
    check(given, "Vecchia, 5 neighbours", r"Batch\(neighbours=5\)")
    check(decisions.preconditioner(hg.Batch(neighbours=0), "data", None), "none", r"Batch\(neighbours=0\)")


@pytest.mark.parametrize(
    ("method", "crosses", "tried"),
    [
        (hg.Batch(), True, True),
        (hg.Batch(), False, False),
        (hg.Batch(neighbours=5), True, False),
        (hg.Batch(weights="exact"), True, False),
        (hg.Batch(preconditioner="vecchia"), True, False),
        (hg.Batch(preconditioner="low-rank"), False, True),
    ],
)
def test_low_rank_is_tried(method, crosses, tried):
    assert decisions.tries_low_rank(method, lambda: crosses) == tried


@pytest.mark.parametrize(
    ("data", "work", "one_place", "choice", "words"),
    [
        (points(9), Work(9, 1, 100), False, "vecchia", "points given points"),
        (
            lines(9),
            Work(9, 1, 100),
            True,
            "exact",
            "one kind of functional given others.* 9 rows is within reach",
        ),
        (points(9) + lines(9), Work(20_000, 1, 10**7), False, "samples", "20,000 rows .*at most 10,000"),
        (points(9) + lines(9), Work(20_000, 7, 10**5), False, "exact", "100 solves of about 7 steps each"),
        (lines(9), Work(9_000, 1, 10**9), False, "samples", "more products than the samples"),
        (lines(9), Work(9_000, 1000, 10**9), False, "exact", "9,000 rows is within reach"),
    ],
)
def test_standard_deviations_of_points(data, work, one_place, choice, words):
    target = points(100).blocks[0].functional
    check(
        decisions.standard_deviations(data, target, 100, 64, lambda: work, lambda f: one_place), choice, words
    )


def test_no_more_solves_than_samples_are_exact():
    target, of = points(64).blocks[0].functional, Work(20_000, 200, 10**9)
    for count, choice in ((64, "exact"), (65, "samples")):
        found = decisions.standard_deviations(lines(9), target, count, 64, lambda: of, lambda f: False)
        assert found.choice == choice


@pytest.mark.parametrize(("one_place", "choice"), [(True, "vecchia"), (False, "exact")])
def test_standard_deviations_of_lines(one_place, choice):
    target = lines(100).blocks[0].functional
    found = decisions.standard_deviations(
        lines(9), target, 100, 64, lambda: Work(9, 1, 100), lambda f: one_place
    )
    check(
        found, choice, "lines given lines from the same place" if one_place else "do not start from one place"
    )


def check(decision, choice, words):
    assert decision.choice == choice
    assert re.search(words, decision.reason), decision.reason
