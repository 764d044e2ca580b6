"""The automatic choice of grid and engine, each with its reason.

The functions are pure: they take the data, the kernel, the noise and the memory into account, and return a choice and its
reason. `gp.py` calls them and puts the reasons into the diagnostics.
"""
