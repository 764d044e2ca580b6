"""Transformed fields and other than Gaussian noise: the Gaussian engines, iterated.

Each round replaces link and likelihood by a linear functional and Gaussian noise that fit best under the present
posterior, and an engine of its own room solves that (`iteration.py`). What comes out is a posterior as any other's.
"""
