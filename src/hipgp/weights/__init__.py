"""Functionals on the grid: K as a Toeplitz operator, covariances, the weights W, and the residuals that W leaves.

`toeplitz` has K and its root, `covariance` the covariances of functionals under the kernel. `exact` computes the paper's
weights, `stencils` local ones, and `matrix_free` those of lines that are never stored. `residual_variance` and
`joint_residuals` have what the grid misses of functionals. It imports `model`, `linalg` and `runtime`.
"""
