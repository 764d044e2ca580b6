"""The batch engine: the exact full-rank posterior from one certified solve, its samples and standard deviations.

`engine` has the settings, `decisions` the automatic choices and their reasons. `build` makes the system; `systems` and
`grid_space` solve it in data space and in grid space. `posterior` predicts and draws, `variances` and `exact_variances`
compute standard deviations, and `evidence` the log evidence and its gradient.
"""
