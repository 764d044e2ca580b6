"""Learning of kernel and noise: the vector of parameters, the Vecchia likelihood, Fisher scoring, and the search.

The last steps maximise the log evidence of an engine, which is given. It imports `vecchia` and the rooms below.
"""
