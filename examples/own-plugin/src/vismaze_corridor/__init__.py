"""A corridor: the smallest visual environment that still needs eyes."""
