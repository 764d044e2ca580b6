"""Applications of the library: reports, simulated problems, demos and the command line.

Nothing else imports it.
"""
