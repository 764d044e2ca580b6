"""Preconditioners of a symmetric positive matrix A: a root S with S'S ~ A^-1."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Preconditioner(eqx.Module):
    """A root S with S'S = P^-1, where P is close to A; vectors are rows."""

    log_determinant: eqx.AbstractVar[Float[Array, ""]]  # log|P|

    @property
    @abc.abstractmethod
    def description(self) -> str | None:
        """The size of the preconditioner in words; None where it only scales."""

    @abc.abstractmethod
    def whiten(self, r: Float[Array, "... N"]) -> Float[Array, "... k"]:
        """Return S r."""

    @abc.abstractmethod
    def whiten_transpose(self, v: Float[Array, "... k"]) -> Float[Array, "... N"]:
        """Return S' v."""

    def precondition(self, r: Float[Array, "... N"]) -> Float[Array, "... N"]:
        """Return P^-1 r."""
        return self.whiten_transpose(self.whiten(r))

    @property
    def rows_used(self) -> Float[Array, " k"] | None:
        """Return 1 for each row of S and 0 for padding; None if there is no padding."""
        return None


class Scaling(Preconditioner):
    """P is diagonal: A with other entries left out, or a matrix that stands for it."""

    diagonal: Float[Array, " N"]
    log_determinant: Float[Array, ""]

    @property
    def description(self) -> None:
        return None

    @staticmethod
    def by(diagonal: Float[Array, " N"]) -> "Scaling":
        """Return the one whose P has this diagonal."""
        return Scaling(diagonal=diagonal, log_determinant=jnp.sum(jnp.log(diagonal)))

    def whiten(self, r: Float[Array, "... N"]) -> Float[Array, "... N"]:
        return r / jnp.sqrt(self.diagonal)

    def whiten_transpose(self, v: Float[Array, "... N"]) -> Float[Array, "... N"]:
        return v / jnp.sqrt(self.diagonal)

    def precondition(self, r: Float[Array, "... N"]) -> Float[Array, "... N"]:
        return r / self.diagonal
