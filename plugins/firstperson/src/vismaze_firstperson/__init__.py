"""Mazes seen from inside."""

# First of all: importing mazeenv loads every plugin, this package's among them, and that must not happen half way through
# the import of one of its modules.
import mazeenv  # noqa: F401
