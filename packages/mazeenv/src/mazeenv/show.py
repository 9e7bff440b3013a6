"""Pictures of mazes and episodes as files: PNG, GIF, SVG, and the replay as one HTML page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from mazeenv.episodes import Recorded, Shown, cells_of, play_back
from mazeenv.maze import Maze
from mazeenv.themes import THEMES

if TYPE_CHECKING:
    from jinja2 import Environment

GAP, ACROSS = 6, 6  # pixels between the pictures of a sheet, and pictures in a row
BACKGROUND = (128, 132, 138)
MILLISECONDS = 400  # a picture of a GIF


def sheet(pictures: Sequence[np.ndarray], across: int = ACROSS) -> np.ndarray:
    """Return pictures side by side, in rows: uint8 [height, width, 3]."""
    height, width = (max(picture.shape[axis] for picture in pictures) + GAP for axis in (0, 1))
    rows, columns = -(-len(pictures) // across), min(across, len(pictures))
    whole = np.full((rows * height + GAP, columns * width + GAP, 3), BACKGROUND, dtype=np.uint8)
    for number, picture in enumerate(pictures):
        top, left = number // across * height + GAP, number % across * width + GAP
        whole[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return whole


def write_show(path: Path, shown: Sequence[Shown]) -> None:
    """Write what an episode showed, as the file's ending says: a picture, or a sheet of them (.png), an animation (.gif), or
    the maze with the way that was walked (.svg).

    Raises:
        ValueError: another ending, or a drawing of something that is no maze.
    """
    pictures = [moment.picture for moment in shown]
    if path.suffix == ".png":
        Image.fromarray(pictures[0] if len(pictures) == 1 else sheet(pictures)).save(path)
    elif path.suffix == ".gif":
        first, *others = [Image.fromarray(picture) for picture in pictures]
        first.save(path, save_all=True, append_images=others, duration=MILLISECONDS, loop=0)
    elif path.suffix == ".svg":
        path.write_text(svg(shown), encoding="utf-8")
    else:
        raise ValueError(f"{path}: the ending must be .png, .gif or .svg")


def svg(shown: Sequence[Shown], theme: str = "plain") -> str:
    """Return a maze as SVG, a square of 1×1 for each cell, with the way that was walked.

    Raises:
        ValueError: the episode is not in a maze.
    """
    maze = getattr(shown[0].state, "maze", None)
    if not isinstance(maze, Maze):
        raise ValueError("an SVG shows mazes only; choose .png or .gif")
    way = [f"{column + 0.5},{row + 0.5}" for row, column in cells_of(shown)]
    return _templates().get_template("maze.svg.j2").render(
        maze=maze, walls=_outline(maze), way=" ".join(way) if len(way) > 1 else "", look=THEMES[theme],
        start=divmod(shown[0].state.cell, maze.width), goal=divmod(maze.goal, maze.width),
    )  # fmt: skip


def _outline(maze: Maze) -> str:
    """Return the walls as one path: a rectangle for each run of walls in a row."""
    parts = []
    for row in range(maze.height):
        line = maze.walls[row * maze.width : (row + 1) * maze.width] + b"\0"
        begun = None
        for column, wall in enumerate(line):
            if wall and begun is None:
                begun = column
            elif not wall and begun is not None:
                parts.append(f"M{begun} {row}h{column - begun}v1h{begun - column}z")
                begun = None
    return "".join(parts)


def replay_page(recorded: Recorded) -> str:
    """Return an episode as one HTML page that asks for nothing from anywhere: a slider, and per turn the picture, the answer,
    what was said to it and what it was paid.

    Raises:
        ValueError: see `play_back`.
    """
    prompt, shown = play_back(recorded)
    turns: list[dict[str, Any]] = [
        {
            "picture": _data_uri(moment.picture),
            "answer": after.answer if after else None,
            "readable": after.readable if after else True,
            "feedback": after.feedback if after else "",
            "reward": after.reward if after else 0.0,
        }
        for moment, after in zip(shown, [*shown[1:], None], strict=True)
    ]
    facts = {
        "environment": recorded.environment,
        "task": recorded.task.uid,
        "ending": shown[-1].ending,
        "moves": len(recorded.answers),
        "move limit": recorded.task.move_limit,
        "reward": sum(moment.reward for moment in shown),
        **recorded.task.labels,
    }
    return _templates().get_template("replay.html.j2").render(prompt=prompt, turns=turns, facts=facts)


def _data_uri(picture: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _templates() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise ValueError('this needs Jinja: pip install "mazeenv[players]"') from error
    return Environment(loader=PackageLoader("mazeenv"), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
