"""Jigsaw puzzles of procedural pictures."""
