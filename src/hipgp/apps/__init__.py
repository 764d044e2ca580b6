"""What stands on the library: pictures, reports, simulated problems, demos and the command line.

Nothing else imports it.
"""
