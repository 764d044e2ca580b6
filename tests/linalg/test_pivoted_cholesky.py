"""Partial Cholesky factors with random pivots, and the algebra of the identity plus a matrix of low rank."""

import jax.numpy as jnp
import numpy as np
import pytest

from hipgp.linalg.low_rank import IdentityPlusLowRank
from hipgp.linalg.pivoted_cholesky import pivoted_cholesky


def decaying(count=120, power=3.0, seed=0):
    """A positive matrix whose eigenvalues fall as a power, and those."""
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(count, count)))[0]
    values = 50.0 * np.arange(1, count + 1) ** -power
    return (rotation * values) @ rotation.T, values


def factored(matrix, most, **given):
    block = lambda rows, columns: matrix[np.ix_(rows, columns)]
    return pivoted_cholesky(block, np.diag(matrix), most, **given)


def test_all_of_a_matrix():
    matrix, _ = decaying(power=1.0)
    found = factored(matrix, len(matrix))
    assert sorted(found.pivots) == list(range(len(matrix)))
    np.testing.assert_allclose(found.factor @ found.factor.T, matrix, atol=1e-12 * matrix.max())
    assert np.sum(found.left) == 0


def test_what_is_left_is_positive_and_its_diagonal_is_known():
    matrix, values = decaying()
    found = factored(matrix, 40)
    left = matrix - found.factor @ found.factor.T
    np.testing.assert_allclose(np.diag(left), found.left, atol=1e-12)
    assert np.linalg.eigvalsh(left)[0] > -1e-12
    np.testing.assert_allclose(left[found.pivots], 0.0, atol=1e-11)  # the pivots are reproduced
    assert (
        found.left.sum() < 5 * values[40:].sum()
    )  # of the best factor of this rank, within a small multiple


def test_a_matrix_of_low_rank_with_repeated_rows_ends_by_itself():
    root = np.repeat(np.random.default_rng(1).normal(size=(20, 6)), 5, axis=0)
    found = factored(root @ root.T, 100)
    assert found.factor.shape == (100, 6)
    np.testing.assert_allclose(found.factor @ found.factor.T, root @ root.T, atol=1e-10)


def test_enough_and_most_end_it_and_the_seed_decides():
    matrix, values = decaying()
    some = factored(matrix, 120, enough=0.05 * values.sum())
    assert some.left.sum() <= 0.05 * values.sum() and some.factor.shape[1] < 120
    one, same, other = (factored(matrix, 30, seed=seed) for seed in (0, 0, 1))
    assert one.factor.shape[1] == 30
    np.testing.assert_array_equal(one.factor, same.factor)
    assert set(one.pivots) != set(other.pivots)


def test_a_diagonal_that_is_too_large_costs_no_columns_and_no_digits():
    """It is left over where pivots have explained all, as in repeated rows."""
    matrix, _ = decaying(60)
    matrix = np.kron(matrix, np.ones((2, 2)))
    diagonal = np.diag(matrix) * np.random.default_rng(3).uniform(1.0, 2.0, len(matrix))
    found = pivoted_cholesky(lambda rows, columns: matrix[np.ix_(rows, columns)], diagonal, 100)
    assert found.factor.shape[1] == 60
    np.testing.assert_allclose(found.factor @ found.factor.T, matrix, atol=1e-9 * matrix.max())


def test_pivots_are_drawn_in_proportion_to_the_diagonal():
    matrix = np.diag([1.0, 0.0, 3.0])
    first = [factored(matrix, 1, seed=seed).pivots[0] for seed in range(2000)]
    assert np.mean(np.equal(first, 2)) == pytest.approx(0.75, abs=4 * np.sqrt(0.75 * 0.25 / 2000))
    assert 1 not in first


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-9), (np.float32, 2e-5)])
def test_identity_plus_low_rank(dtype, rtol):
    rng = np.random.default_rng(2)
    factor = rng.normal(size=(50, 7)) * np.logspace(-2, 2, 7)
    factor[:, 2] = 0.0
    dense = np.eye(50) + factor @ factor.T
    matrix, x = IdentityPlusLowRank.from_factor(factor, dtype), rng.normal(size=(3, 50))
    values, vectors = np.linalg.eigh(dense)
    root = (vectors / np.sqrt(values)) @ vectors.T
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=rtol * np.max(np.abs(b)))
    close(matrix.solve(jnp.asarray(x, dtype)), x @ np.linalg.inv(dense))
    close(matrix.inverse_root_matmul(jnp.asarray(x, dtype)), x @ root)
    close(float(matrix.log_determinant), np.linalg.slogdet(dense)[1])
