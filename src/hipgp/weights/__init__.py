"""Functionals on the grid: K as a Toeplitz operator, covariances, the weights W, and the residuals that W leaves.

`toeplitz` has K and its root, `covariance` the covariances of functionals under the kernel. `operator` defines W: `exact`
computes the paper's weights, `stencils` local ones, and `matrix_free` weights of lines without storing them.
`residual_variance` and `joint_residuals` compute the variance of functionals that the grid misses. It imports `model`, `linalg` and `runtime`.
"""
