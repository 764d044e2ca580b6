"""Posteriors on disk: the map format, what an engine needs to come back, names and units.

It imports `engines`, `model` and `runtime`. The engines themselves are imported when a map of theirs is loaded.
"""
