"""The operator W, whatever its entries are and however they are held.

Given the field's grid values u, a functional L_n f has mean w_n'u and residual variance v_n = Var(L_n f - w_n'u).
"""

import abc

import equinox as eqx
from jaxtyping import Array, Float


class Weights(eqx.Module):
    """The operator W with one row w_n per functional, its transpose, and the residual variances; batched in front."""

    residual: eqx.AbstractVar[Float[Array, " N"]]

    @abc.abstractmethod
    def matmul(self, u: Float[Array, "... M"]) -> Float[Array, "... N"]:
        """Return W u, the conditional mean of every functional given grid values in C order."""

    @abc.abstractmethod
    def transpose_matmul(self, a: Float[Array, "... N"]) -> Float[Array, "... M"]:
        """Return W'a."""
