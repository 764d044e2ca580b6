"""Nearest-neighbour (Vecchia) conditionals: the preconditioner, the likelihood's terms, and local kriging.

`conditioning_sets` finds neighbours, `group_covariances` and `aggregation` prepare them, `factor` factors. `grid_error`
uses local kriging to say how far a grid is from the model. It imports `weights` and the rooms below.
"""
