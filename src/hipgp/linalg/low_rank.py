"""The identity plus a matrix of low rank, I + L L': its inverse, the root of the inverse, and its determinant.

With L L' = U diag(s) U', where U has orthonormal columns, any function g of the matrix is g(1) I + U diag(g(1 + s) - g(1)) U',
applied with two products.

    >>> import numpy as np
    >>> matrix = IdentityPlusLowRank.from_factor(np.array([[1.0], [0.0]]))
    >>> matrix.solve(np.ones((1, 2))).tolist(), round(float(matrix.log_determinant), 4)
    ([[0.5, 1.0]], 0.6931)
"""

import functools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.runtime.arrays import on_device

NEGLIGIBLE = 1e-14  # eigenvalues relative to the largest that count as rounding errors


class IdentityPlusLowRank(eqx.Module):
    """I + U diag(s) U', U of orthonormal columns; vectors are rows."""

    vectors: Float[Array, "N r"]
    eigenvalues: Float[Array, " r"]  # s, the largest last; zero where a column of U is zero

    @staticmethod
    def from_factor(factor: Float[np.ndarray, "N r"], dtype: Any = np.float64) -> "IdentityPlusLowRank":
        """Return I + L L' from any L."""
        found, rotation = np.linalg.eigh(factor.T @ factor)
        kept = found > NEGLIGIBLE * np.max(found, initial=0.0)
        scale = np.where(kept, 1 / np.sqrt(np.where(kept, found, 1.0)), 0.0)
        vectors = factor @ (rotation * scale)
        return IdentityPlusLowRank(on_device(vectors, dtype), on_device(np.where(kept, found, 0.0), dtype))

    def solve(self, x: Float[Array, "... N"]) -> Float[Array, "... N"]:
        """Return (I + L L')^-1 x."""
        return self._damped(x, self.eigenvalues / (1 + self.eigenvalues))

    def inverse_root_matmul(self, x: Float[Array, "... N"]) -> Float[Array, "... N"]:
        """Return (I + L L')^(-1/2) x, of the symmetric root."""
        root = jnp.sqrt(1 + self.eigenvalues)
        return self._damped(x, self.eigenvalues / (root * (1 + root)))  # 1 - 1 / root, without cancellation

    def _damped(self, x: Array, share: Float[Array, " r"]) -> Array:
        product = functools.partial(
            jnp.matmul, precision="highest"
        )  # a GPU would round float32 to three digits
        return x - product(product(x, self.vectors) * share, self.vectors.T)

    @property
    def log_determinant(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log1p(self.eigenvalues))
