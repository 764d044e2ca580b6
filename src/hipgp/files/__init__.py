"""Posteriors on disk: the map format, what an engine needs to come back, names and units.

It imports the engines and the rooms below.
"""
