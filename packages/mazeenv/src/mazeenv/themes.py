"""Colours, and what a prompt calls them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from mazeenv.maze import Maze
from vismaze_hooks import pick
from vismaze_hooks.integers import Integers

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Theme:
    """The colours of a picture, and the words that a prompt uses for them."""

    floor: Colour
    wall: Colour
    goal: Colour
    player: Colour
    legend: str
    radius: float = 0.36  # of the player's disc, in cells
    grid: Colour | None = None  # of the lines between cells; None: no lines
    trail: Colour | None = None  # of the dots on cells that were walked on; None: no dots
    fog: Colour = (0, 0, 0)  # of what is out of sight, where a view has fog

    @property
    def flat(self) -> bool:
        """Whether four colours are all there is: no lines and no dots."""
        return self.grid is None and self.trail is None


_PLAIN = Theme(
    floor=(255, 255, 255),
    wall=(40, 44, 52),
    goal=(220, 40, 40),
    player=(30, 90, 230),
    legend="dark squares are walls, white squares are free, you are the blue disc, the goal is the red square",
)
THEMES = {
    "plain": _PLAIN,
    "visgym": Theme(
        floor=(255, 255, 255),
        wall=(169, 169, 169),
        goal=(255, 0, 0),
        player=(0, 0, 255),
        legend="gray squares are walls, white squares are free, you are the blue disc, the goal is the red square",
        radius=0.25,
    ),
    "grid": replace(_PLAIN, grid=(150, 155, 165)),
    "trail": replace(_PLAIN, trail=(60, 160, 90), legend=f"{_PLAIN.legend}, green dots are on squares where you have been"),
    # Okabe and Ito's colours, which every kind of colour vision tells apart; their brightness differs too.
    "colourblind": Theme(
        floor=(255, 255, 255),
        wall=(0, 0, 0),
        goal=(230, 159, 0),
        player=(0, 114, 178),
        legend="black squares are walls, white squares are free, you are the blue disc, the goal is the orange square",
        fog=(90, 90, 90),
    ),
    "dark": Theme(
        floor=(30, 32, 40),
        wall=(200, 204, 214),
        goal=(255, 190, 60),
        player=(90, 200, 255),
        legend="light squares are walls, dark squares are free, you are the light blue disc, the goal is the yellow square",
        fog=(110, 110, 110),
    ),
    "random": _PLAIN,  # stands for the colours that `look` draws for each maze
}

# What the random theme draws from. Floors are lighter than everything else, walls darker, and goal and player two of six hues.
_FLOORS = {"white": (255, 255, 255), "cream": (250, 243, 220), "light gray": (222, 224, 228), "light pink": (252, 226, 230)}
_WALLS = {"black": (15, 15, 20), "dark gray": (70, 74, 82), "dark brown": (78, 50, 32), "dark blue": (24, 34, 92)}
_HUES = {
    "red": (215, 38, 45),
    "green": (30, 150, 62),
    "orange": (240, 140, 20),
    "purple": (140, 60, 190),
    "blue": (40, 110, 235),
    "magenta": (225, 60, 170),
}


@lru_cache(maxsize=512)
def look(theme: str, maze: Maze) -> Theme:
    """Return the theme in which a maze is shown: the named one, or, for "random", colours that are a function of the maze.

    Raises:
        ValueError: an unknown theme; the nearest is suggested.
    """
    chosen = pick("theme", theme, THEMES)
    if theme != "random":
        return chosen
    integers = Integers(int(maze.sha256[:16], 16))
    floor = sorted(_FLOORS)[integers.below(len(_FLOORS))]
    wall = sorted(_WALLS)[integers.below(len(_WALLS))]
    hues = sorted(_HUES)
    goal = hues.pop(integers.below(len(hues)))
    player = hues.pop(integers.below(len(hues)))
    legend = f"{wall} squares are walls, {floor} squares are free, you are the {player} disc, the goal is the {goal} square"
    return Theme(_FLOORS[floor], _WALLS[wall], _HUES[goal], _HUES[player], legend, fog=(120, 122, 126))
