"""Links and likelihoods, by iterated posterior linearisation with a Gaussian engine.

Each round replaces link and likelihood by the linear functional and Gaussian noise that fit best under the current
posterior, and the batch or the exact engine solves that problem (`iteration.py`).
"""
