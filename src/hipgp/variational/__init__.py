"""The paper's engine: minibatches, natural gradients, mean-field, block and full-rank families.

It imports `vecchia` (for the grid's error) and the rooms below, and nothing of `batch`.
"""
