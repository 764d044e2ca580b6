"""The statistical model: grids, kernels, functionals with their nodes, data, likelihoods, links and trends.

Users describe their problem with these classes. This room imports `runtime` alone. Add a kernel in `kernels`, a
functional in `functionals`.
"""
