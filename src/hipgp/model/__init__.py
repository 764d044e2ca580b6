"""What is measured, and the prior: grids, kernels, functionals with their nodes, data, trends.

This is the part that users write down. It imports `runtime` alone. Add a kernel in `kernels`, a functional in
`functionals`.
"""
