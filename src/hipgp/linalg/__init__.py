"""Linear algebra without any Gaussian process.

`matrices` factors many small matrices, `krylov` has conjugate gradients and Lanczos quadrature, `csr` holds sparse
matrices by rows, `sparse` lays them out for products, `pivoted_cholesky` and `low_rank` approximate by low rank, and
`preconditioner` defines what a preconditioner is. This room imports `runtime` alone.
"""
