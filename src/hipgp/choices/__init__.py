"""What is chosen where the user gives none: the grid, and the engine; each with its reason.

The functions are pure: they look at the data, the kernel, the noise and the memory, and return a choice that says why it
was made. `gp.py` calls them and puts the reasons into the diagnostics.
"""
