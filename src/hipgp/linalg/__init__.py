"""Linear algebra that knows nothing of Gaussian processes.

`matrices` factors many small matrices, `krylov` has conjugate gradients and Lanczos quadrature, `csr` holds
sparse matrices row by row, `sparse` lays them out for products. It imports `runtime` alone.
"""
