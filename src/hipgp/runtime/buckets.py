"""Array sizes rounded up to few values, to limit recompilation.

XLA compiles a program for each new shape and keeps it for the life of the process. Arrays whose sizes depend on the
data, such as the rows of a sparse matrix, would cost a second and some megabytes for every new data set.
"""

# Entries of a small sparse matrix: a product takes at most a millisecond, compiling a program for a new layout seconds.
SMALL = 2**20


def round_up(count: int, steps: int = 32) -> int:
    """Round up to a multiple of 8, with at least `steps` values from one power of two to the next."""
    step = max(8, 1 << max(0, count.bit_length() - steps.bit_length()))
    return -(-count // step) * step


def round_up_entries(count: int) -> int:
    """Round up the length of an array of a sparse matrix's entries: to a power of two for a small matrix."""
    return round_up_to_power_of_two(count) if count < SMALL else round_up(count)


def round_up_geometrically(size: int, ratio: int = 4, least: int = 16) -> int:
    """Round up to `least`, least * ratio, least * ratio^2, ..."""
    found = least
    while found < size:
        found *= ratio
    return found


def round_up_to_power_of_two(size: int) -> int:
    """Round up to a power of two."""
    return 1 << max(size - 1, 0).bit_length()
