"""Operators cut over several devices: K and its root by slabs of the grid, W by the slabs' columns, preconditioners by rows.

Vectors of the data's length are replicated; vectors on the grid are cut along its first axis, one slab a device. The engine
takes these operators in place of those of one device, and knows no more of the mesh than `devices.py` tells.
"""
