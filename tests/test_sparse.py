"""Sparse products as gathers, against scipy's."""

import numpy as np
import pytest
import scipy.sparse

from hipgp.sparse import WIDTHS, Sparse


def uneven(rng):
    """Rows of 0 to 300 entries: padded ones, chunked ones, empty ones."""
    counts = np.concatenate([[0, 300, 1, 0], rng.integers(0, 9, 40), [0]])
    columns = np.concatenate([rng.choice(400, n, replace=False) for n in counts])
    pointers = np.concatenate([[0], np.cumsum(counts)])
    return scipy.sparse.csr_array(
        (rng.normal(size=len(columns)), columns, pointers), shape=(len(counts), 400)
    )


def alike(rng):
    columns = np.stack([rng.choice(90, 5, replace=False) for _ in range(30)])
    return scipy.sparse.csr_array((rng.normal(size=150), columns.ravel(), np.arange(31) * 5), shape=(30, 90))


MATRICES = {
    "uneven rows": uneven,
    "rows alike": alike,
    "one entry": lambda _: scipy.sparse.coo_array(([2.0], ([1], [3])), shape=(4, 6)),
    "no entry": lambda _: scipy.sparse.csr_array((4, 6)),
    "full": lambda rng: scipy.sparse.csr_array(rng.normal(size=(3, max(WIDTHS) * 3))),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", MATRICES.values(), ids=MATRICES.keys())
def test_products_are_scipy_s(make, dtype):
    """Sums of up to 384 terms: a few roundings."""
    rng = np.random.default_rng(0)
    matrix = make(rng)
    full = matrix.toarray()
    m, n = full.shape
    ours = Sparse.from_scipy(matrix, dtype)
    x, y = rng.normal(size=(2, 3, n)).astype(dtype), rng.normal(size=(2, 3, m)).astype(dtype)
    tolerance = {"atol": 100 * np.finfo(dtype).eps}
    forward, backward = ours.matmul(x), ours.transpose_matmul(y)
    assert (forward.dtype, backward.dtype) == (dtype, dtype)
    np.testing.assert_allclose(forward, x @ full.T, **tolerance)
    np.testing.assert_allclose(backward, y @ full, **tolerance)
    np.testing.assert_allclose(ours.matmul(x[0, 0]), full @ x[0, 0], **tolerance)
    np.testing.assert_allclose(
        np.sum(forward * y), np.sum(x * backward), rtol=1e3 * np.finfo(dtype).eps, **tolerance
    )


def test_rows_alike_need_no_padding():
    ours = Sparse.from_scipy(alike(np.random.default_rng(1)), np.float64)
    assert ours.forward.values.shape == (5, 30)
    assert ours.forward.rows is None


def test_padding_stays_small():
    """Storage is what is entered, plus less than one chunk a row: no row of 300 makes all others 300 wide."""
    matrix = uneven(np.random.default_rng(2))
    ours = Sparse.from_scipy(matrix, np.float64)
    assert ours.forward.values.size < 2 * matrix.nnz + 8 * matrix.shape[0]
