"""Matchstick equations."""
