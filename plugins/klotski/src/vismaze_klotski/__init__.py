"""Sliding blocks: bring the red one to the exit."""
