"""Functionals on the grid: K as a Toeplitz operator, covariances, the weights W and what they leave (residuals).

`exact` has the paper's weights, `stencils` the local ones, `matrix_free` those of lines that are not stored. It imports
`model`, `linalg` and `runtime`.
"""
