"""Colours."""

from __future__ import annotations

from dataclasses import dataclass

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Theme:
    """The four colours of a picture, and the words that a prompt uses for them."""

    floor: Colour
    wall: Colour
    goal: Colour
    player: Colour
    legend: str
    radius: float = 0.36  # of the player's disc, in cells


THEMES = {
    "plain": Theme(
        floor=(255, 255, 255),
        wall=(40, 44, 52),
        goal=(220, 40, 40),
        player=(30, 90, 230),
        legend="dark squares are walls, white squares are free, you are the blue disc, the goal is the red square",
    ),
    "visgym": Theme(
        floor=(255, 255, 255),
        wall=(169, 169, 169),
        goal=(255, 0, 0),
        player=(0, 0, 255),
        legend="gray squares are walls, white squares are free, you are the blue disc, the goal is the red square",
        radius=0.25,
    ),
}
