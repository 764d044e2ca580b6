"""Linear algebra without any Gaussian process.

`matrices` factors many small matrices, `krylov` has conjugate gradients and Lanczos quadrature, `csr` holds sparse
matrices by rows, `sparse` lays them out for products, and `pivoted_cholesky` and `low_rank` approximate by low rank. This
room imports `runtime` alone.
"""
