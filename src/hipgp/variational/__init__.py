"""The paper's engine: minibatches, natural gradients, mean-field, block and full-rank families.

It imports `vecchia` (to check the grid) and the rooms below, and not `batch`.
"""
