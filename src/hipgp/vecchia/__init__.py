"""Nearest-neighbour (Vecchia) conditionals: the preconditioner, the likelihood's terms, and local kriging.

`conditioning_sets` finds neighbours, `group_covariances` computes their covariances, `aggregation` clusters noisy points,
and `factor` factors. `grid_error` compares local kriging with and without the grid. It imports `weights` and the rooms
below.
"""
