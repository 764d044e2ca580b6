"""A band matrix is its dense form, whether its diagonals are taken together or one by one."""

import jax.numpy as jnp
import numpy as np
import pytest

from hipgp.linalg import band
from hipgp.linalg.band import Band


@pytest.mark.parametrize("together", [0, 32])
def test_products_are_those_of_the_dense_matrix(together, monkeypatch):
    monkeypatch.setattr(band, "FUSED", together)
    rng, offsets = np.random.default_rng(0), (0, 1, 4, 5)
    diagonals = rng.normal(size=(4, 11))
    full = sum(np.diag(row[: 11 - k], k) for row, k in zip(diagonals, offsets, strict=True))
    full = full + np.triu(full, 1).T
    inside = np.arange(11) + np.array(offsets)[:, None] < 11  # entries beyond the matrix are zero
    u = rng.normal(size=(2, 11))
    found = Band(jnp.asarray(diagonals * inside), offsets).matmul(jnp.asarray(u))
    np.testing.assert_allclose(found, u @ full, rtol=0, atol=1e-13)
