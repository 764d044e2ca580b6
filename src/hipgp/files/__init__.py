"""Posteriors on disk: the map format, the state of engines, names and units.

It imports `engines`, `learning`, `model` and `runtime`. An engine is imported when a map that it made is loaded.
"""
