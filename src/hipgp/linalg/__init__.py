"""Linear algebra that knows nothing of Gaussian processes.

`matrices` factors many small matrices. Modules here import nothing else of hipgp.
"""
