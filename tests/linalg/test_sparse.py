"""Sparse products as gathers, against scipy's."""

import jax
import numpy as np
import pytest
import scipy.sparse

from hipgp.linalg import csr
from hipgp.linalg.csr import CSR
from hipgp.linalg.sparse import LONGEST_ROW, SparseMatrix, common_layout, laid_out, sliced_ellpack


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
    "full": lambda rng: scipy.sparse.csr_array(rng.normal(size=(3, LONGEST_ROW + 7))),
}


@pytest.mark.parametrize("laid_out_by", ["the host", "the device"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", MATRICES.values(), ids=MATRICES.keys())
def test_products_are_scipy_s(make, dtype, laid_out_by, monkeypatch):
    """Sums of up to 384 terms: a few roundings."""
    monkeypatch.setattr("hipgp.linalg.sparse.on_cpu", lambda: laid_out_by == "the host")
    rng = np.random.default_rng(0)
    matrix = make(rng)
    full = matrix.toarray()
    m, n = full.shape
    with jax.enable_x64(True):  # as all of hipgp's own calls have it
        ours = SparseMatrix.from_scipy(matrix, dtype)
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


@pytest.mark.parametrize("make", MATRICES.values(), ids=MATRICES.keys())
def test_the_entries_of_a_layout_are_those_that_went_in(make):
    matrix = make(np.random.default_rng(0))
    again = sliced_ellpack(CSR.from_scipy(scipy.sparse.csr_array(matrix)), float).to_scipy(matrix.shape[1])
    np.testing.assert_array_equal(again.toarray(), matrix.toarray())


@pytest.mark.parametrize("laid_out_by", ["the host", "the device"])
def test_matrices_laid_out_alike_have_arrays_of_equal_shapes(laid_out_by, monkeypatch):
    """Long rows in one of them, none in another, and one without entries: what the parts of W on a mesh are."""
    monkeypatch.setattr("hipgp.linalg.sparse.on_cpu", lambda: laid_out_by == "the host")
    rng = np.random.default_rng(0)
    full = np.where(rng.random((3, 6, LONGEST_ROW + 7)) < 0.02, 1.0, 0.0)
    full[0, 2], full[1] = rng.normal(size=LONGEST_ROW + 7), 0.0
    parts = [CSR.from_scipy(scipy.sparse.csr_array(part)) for part in full]
    layout = common_layout([part.starts for part in parts])
    x = rng.normal(size=LONGEST_ROW + 7)
    with jax.enable_x64(True):
        laid = [laid_out(part, layout, float) for part in parts]
        found = [np.asarray(part.matmul(x)) for part in laid]
    assert len({str(jax.tree.map(np.shape, part)) for part in laid}) == 1
    np.testing.assert_allclose(found, full @ x, rtol=0, atol=1e-12)


def stored(rows):
    return sum(part.values.size for part in rows.slices)


def test_rows_alike_need_no_padding():
    ours = SparseMatrix.from_scipy(alike(np.random.default_rng(1)), np.float64)
    assert stored(ours.rows) == 150
    assert ours.rows.position is None


@pytest.mark.quick
def test_padding_is_dear_where_rows_are_many(monkeypatch):
    """100,000 rows of up to 30 entries, ten of 900 and one of 5,000: the long ones do not make the others wide."""
    monkeypatch.setattr(
        "hipgp.linalg.sparse.SLICE_COST", (2**18, 2**18)
    )  # on a GPU another slice is dearer, and padding cheaper
    rng = np.random.default_rng(2)
    counts = rng.permutation(np.concatenate([rng.integers(0, 31, 100_000), np.full(10, 900), [5000]]))
    columns = np.concatenate([rng.integers(0, 6000) + np.arange(n) for n in counts]) % 6000
    entries = rng.normal(size=len(columns)), columns, np.concatenate([[0], np.cumsum(counts)])
    matrix = scipy.sparse.csr_array(entries, shape=(len(counts), 6000))
    ours = SparseMatrix.from_scipy(matrix, np.float64)
    assert matrix.nnz < stored(ours.rows) < 1.5 * matrix.nnz
    assert len(ours.rows.slices) > 1 and ours.rows.long_rows is not None
    x, y = rng.normal(size=6000), rng.normal(size=len(counts))
    np.testing.assert_allclose(ours.matmul(x), matrix @ x, atol=1e-11)
    np.testing.assert_allclose(ours.transpose_matmul(y), matrix.T @ y, atol=1e-11)


@pytest.mark.parametrize("laid_out_by", ["the host", "the device"])
def test_a_few_entries_more_or_less_are_no_other_shapes(monkeypatch, laid_out_by):
    """What has been compiled for some neighbours serves those of another lengthscale."""
    monkeypatch.setattr("hipgp.linalg.sparse.on_cpu", lambda: laid_out_by == "the host")
    rng = np.random.default_rng(6)
    counts = rng.integers(3, 18, 4000)
    counts[:10], counts[-1] = 1, 0
    shapes = []
    for none in (0, 5):  # rows that have their one entry no more
        fewer = counts - (np.arange(4000) < none)
        columns = np.concatenate([rng.choice(500, n, replace=False) for n in fewer])
        pointers = np.concatenate([[0], np.cumsum(fewer)])
        table = scipy.sparse.csr_array((np.ones(len(columns)), columns, pointers), shape=(4000, 500))
        with jax.enable_x64(True):
            ours = SparseMatrix.from_scipy(table, np.float64).rows
        shapes.append(jax.tree.map(np.shape, ours))
        x = rng.normal(size=500)
        np.testing.assert_allclose(ours.matmul(x), table @ x, atol=1e-12)
    assert jax.tree.all(jax.tree.map(np.array_equal, *shapes))


def test_the_longest_row_of_a_small_matrix_changes_no_shape_on_a_cpu(monkeypatch):
    """Rows of some hundred entries, as those of W' for lines: cut into pieces, whose number hardly varies."""
    monkeypatch.setattr("hipgp.linalg.sparse.on_cpu", lambda: True)
    rng, shapes = np.random.default_rng(7), []
    for longest in (280, 500, 530, 1100):  # on either side of powers of two, and of LONGEST_ROW
        counts = np.append(rng.integers(30, 250, 399), longest)
        columns = np.concatenate([rng.choice(1500, n, replace=False) for n in counts])
        entries = rng.normal(size=len(columns)), columns, np.concatenate([[0], np.cumsum(counts)])
        table = scipy.sparse.csr_array(entries, shape=(400, 1500))
        ours = SparseMatrix.from_scipy(table, np.float64).rows
        shapes.append(jax.tree.map(np.shape, ours))
        x = rng.normal(size=(2, 1500))
        np.testing.assert_allclose(ours.matmul(x), (table @ x.T).T, atol=1e-11)
        assert stored(ours) < 2.5 * table.nnz
    for shape in shapes[1:]:
        assert jax.tree.all(jax.tree.map(np.array_equal, shapes[0], shape))


def test_similar_matrices_are_laid_out_on_a_device_by_the_same_programs(monkeypatch, compilations):
    """After two matrices, others of somewhat more or fewer entries compile nothing, whichever rows are read."""
    monkeypatch.setattr("hipgp.linalg.sparse.on_cpu", lambda: False)
    rng = np.random.default_rng(5)
    for number, fewest in enumerate((23, 20, 21, 22, 24)):
        if number == 2:
            compilations.clear()
        counts = rng.integers(fewest, fewest + 5, 300)
        columns = np.concatenate([(first + np.arange(n)) % 300 for first, n in enumerate(counts)])
        entries = rng.normal(size=len(columns)), columns, np.concatenate([[0], np.cumsum(counts)])
        matrix = scipy.sparse.csr_array(entries, shape=(300, 300))
        on_device = CSR.from_scipy(matrix).to_device()
        SparseMatrix.from_csr(on_device, np.float64)
        rows = np.arange(70 + 10 * number)
        np.testing.assert_allclose(on_device.padded_rows(rows)[1].sum(axis=1), matrix.sum(axis=1)[rows])
    assert not compilations


def test_a_transpose_that_is_rarely_asked_for():
    rng = np.random.default_rng(4)
    matrix, y = uneven(rng), rng.normal(size=(3, 45))
    ours = SparseMatrix.from_csr(CSR.from_scipy(matrix), np.float64, store_transpose=False)
    np.testing.assert_allclose(ours.transpose_matmul(y), y @ matrix.toarray(), atol=1e-12)
    np.testing.assert_allclose(ours.transpose_matmul(y[0]), y[0] @ matrix.toarray(), atol=1e-12)


def test_sides_together_are_sides_in_turn(monkeypatch):
    """What a GPU does with several sides, here in its own layout: all entries unrolled, sides behind."""
    rng = np.random.default_rng(3)
    matrix = uneven(rng)
    monkeypatch.setattr("hipgp.linalg.sparse.on_cpu", lambda: False)
    ours = SparseMatrix.from_scipy(matrix, np.float64)
    x, y = rng.normal(size=(3, 400)), rng.normal(size=(3, len(matrix.toarray())))
    np.testing.assert_allclose(ours.matmul(x), x @ matrix.toarray().T, atol=1e-12)
    np.testing.assert_allclose(ours.matmul(x[:1]), x[:1] @ matrix.toarray().T, atol=1e-12)
    np.testing.assert_allclose(ours.transpose_matmul(y), y @ matrix.toarray(), atol=1e-12)


def test_the_transpose_in_threads_is_scipy_s(monkeypatch):
    """Parts of few entries, some rows and columns empty, many rows of one entry."""
    monkeypatch.setattr(csr, "ENTRIES_PER_THREAD", 50)
    monkeypatch.setattr(csr, "thread_count", lambda: 5)
    rng = np.random.default_rng(0)
    tall = rng.normal(size=(90, 20)) * (rng.uniform(size=(90, 20)) < 0.5)
    tall[:3], tall[40:60], tall[:, [0, 7]] = 0.0, 0.0, 0.0
    few = np.zeros((30, 20))
    few[11], few[:, 3] = rng.normal(size=20), rng.normal(size=30)
    for matrix in (scipy.sparse.csr_array(tall), scipy.sparse.csr_array(np.tile(few, (9, 1)))):
        assert matrix.nnz // (4 * 20) >= 5
        ours, theirs = csr._transpose_in_threads(matrix), matrix.T.tocsr()
        np.testing.assert_array_equal(ours.indptr, theirs.indptr)
        np.testing.assert_array_equal(ours.indices, theirs.indices)
        np.testing.assert_array_equal(ours.data, theirs.data)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_product_with_no_sides_has_none(monkeypatch, on_cpu):
    """A trend without columns is solved for as no right-hand side at all."""
    monkeypatch.setattr("hipgp.linalg.sparse.on_cpu", lambda: on_cpu)
    rows, columns = 9, 7 + on_cpu  # other shapes: what was compiled for the one is not taken for the other
    ours = SparseMatrix.from_scipy(scipy.sparse.random_array((rows, columns), density=0.5, rng=1), np.float64)
    assert ours.matmul(np.zeros((0, columns))).shape == (0, rows)
    assert ours.transpose_matmul(np.zeros((0, rows))).shape == (0, columns)
