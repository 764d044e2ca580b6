"""Learning kernel, noise and trend: parameters as a vector, the Vecchia likelihood, the exact evidence, the search.

It imports `batch` and the rooms below.
"""
