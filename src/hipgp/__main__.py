"""`python -m hipgp`: the command, where it is not on the path."""

from hipgp.cli import main

main()
