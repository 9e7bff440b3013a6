"""Mazes seen from inside."""
