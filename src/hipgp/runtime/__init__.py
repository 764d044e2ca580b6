"""How hipgp runs on this machine: precision, threads, compiled programs, memory, processes, signals, files on disk.

Nothing here knows what a Gaussian process is. These modules import only one another. Every other room may use them.
"""
