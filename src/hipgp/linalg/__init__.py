"""Linear algebra that knows nothing of Gaussian processes.

`matrices` factors many small matrices, `krylov` has conjugate gradients and Lanczos quadrature, `csr` and `sparse` hold
sparse matrices and their products. It imports `runtime` alone.
"""
