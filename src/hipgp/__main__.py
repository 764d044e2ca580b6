"""`python -m hipgp`: the command, where it is not on the path."""

from hipgp.cli import main

if __name__ == "__main__":
    main()
