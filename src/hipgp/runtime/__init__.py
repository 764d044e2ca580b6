"""Services without any Gaussian process: precision, threads, compiled programs, memory, processes, signals, files.

These modules import only one another. Every other room may use them.
"""
