"""The environments that the plugins offer, as small as they come, so that a thousand of their levels are soon played."""

from __future__ import annotations

from typing import Any

GAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "klotski": ("Klotski-v0", {"size": (4, 3), "dominoes": 1, "singles": 3, "moves": (1, 8), "cell_px": 8}),
    "jigsaw": ("Jigsaw-v0", {"tiles": 2, "px": 16}),
    "jigsaw 3x3": ("Jigsaw-v0", {"tiles": 3, "px": 24}),
    "matchstick": ("Matchstick-v0", {"unit": 6}),
    "matchstick 2": ("Matchstick-v0", {"unit": 6, "changes": 2}),
    "first person": ("FirstPersonMaze-v0", {"size": 7, "width": 24, "height": 16}),
    "frozen lake": (
        "Gymnasium-v0",
        {
            "env": "FrozenLake-v1",
            "words": ["left", "down", "right", "up"],
            "kwargs": {"is_slippery": False},
            "scramble": 10,
            "shrink": 16,
            "evaluation": 4,
            "tuning": 2,
        },
    ),
    "cliff walking": (
        "Gymnasium-v0",
        {
            "env": "CliffWalking-v1",
            "words": ["up", "right", "down", "left"],
            "success": "terminated",
            "scramble": 8,
            "shrink": 15,
            "evaluation": 8,
            "tuning": 8,
        },
    ),
    "minigrid": (
        "Gymnasium-v0",
        {
            "env": "minigrid:MiniGrid-Empty-Random-5x5-v0",
            "words": {"left": 0, "right": 1, "forward": 2},
            "kwargs": {"tile_size": 8, "highlight": False},
            "evaluation": 8,
            "tuning": 8,
        },
    ),
}


SLOW = {"cliff walking"}
"""Whose frames take so long that the whole kit and many seeds would take a quarter of an hour; the kit knows the same offer by
FrozenLake and MiniGrid."""


def pytest_generate_tests(metafunc: Any) -> None:
    """Run a test that takes `game` on each of them, a slow one on those that are quick to draw."""
    if "game" in metafunc.fixturenames:
        left_out = SLOW if metafunc.definition.get_closest_marker("slow") else set()
        chosen = {name: game for name, game in GAMES.items() if name not in left_out}
        metafunc.parametrize("game", chosen.values(), ids=chosen)
