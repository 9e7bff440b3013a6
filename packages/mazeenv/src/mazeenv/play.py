"""Playing in a terminal: the picture in half-block characters, arrow keys or words for answers. Needs no window system."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import numpy as np
from PIL import Image

from mazeenv.episodes import Recorded, offer_of, picture_of
from vismaze_hooks import Task
from vismaze_hooks.answers import tagged
from vismaze_hooks.names import nearest
from vismaze_hooks.text import make_text_environment

ARROWS = {"A": ("up", "forward"), "B": ("down", "around"), "C": ("right",), "D": ("left",)}  # last letter of the key's sequence
QUIT = ("quit", "exit")
CLEAR, HOME = "\x1b[2J", "\x1b[H"


def half_blocks(picture: np.ndarray, columns: int, rows: int) -> str:
    """Return a picture as lines of `▀` in true colours, two pixels a character, no larger than columns × rows."""
    height, width = picture.shape[:2]
    scale = min(columns / width, 2 * rows / height, 1.0)
    size = (max(1, int(width * scale)), max(2, int(height * scale) // 2 * 2))
    small = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))
    lines = []
    for top, bottom in zip(small[::2], small[1::2], strict=True):
        cells = (
            f"\x1b[38;2;{a};{b};{c};48;2;{d};{e};{f}m▀"
            for (a, b, c), (d, e, f) in zip(top.tolist(), bottom.tolist(), strict=True)
        )
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)


def play(environment: str, options: dict[str, Any], task: Task, *, letters: bool = False) -> tuple[Recorded, bool]:
    """Let a person play a task; return the episode and whether it succeeded. The end of the input gives up.

    Args:
        letters: show the environment's own text in place of pictures, where it has one; always where no terminal is.
    """
    offer = offer_of(environment, options)
    env = make_text_environment(offer)
    if (letters or not sys.stdout.isatty()) and "ansi" in env.metadata.get("render_modes", ()):
        env.close()
        env = make_text_environment(offer_of(environment, {**options, "render_mode": "ansi"}))
    observation, info = env.start(task)
    answers: list[str] = []
    write, said, ended = offer.answer or tagged, "", False
    with keys(sys.stdin) as read:
        while not ended:
            screen = _screen(env, observation)
            _show(info["prompt"] if not answers else "", screen, said, offer.words)
            word = read(offer.words)
            if word is None or word in QUIT:
                said = "Given up."
                break
            if word not in offer.words:
                said = f"No such answer: {word!r}.{nearest(word, offer.words)}"
                continue
            answers.append(write(word))
            observation, _, terminated, truncated, more = env.step(answers[-1])
            ended, said = terminated or truncated, more["feedback"]
            if "moves_left" in more:
                said = f"{said} {more['moves_left']} moves left.".strip()
    success = ended and bool(more["success"])
    _show("", _screen(env, observation), said, ())
    env.close()
    return Recorded(environment, task, tuple(answers), options), success


def _screen(env: Any, observation: Any) -> str:
    if env.unwrapped.render_mode == "ansi":
        return env.unwrapped.render()
    columns, rows = shutil.get_terminal_size()
    return half_blocks(picture_of(env, observation), columns, max(4, rows - 12))


def _show(prompt: str, screen: str, said: str, words: tuple[str, ...]) -> None:
    columns = shutil.get_terminal_size().columns
    parts = [textwrap.fill(prompt, columns - 1)] if prompt else []
    parts += [screen, said]
    if words:
        listed = textwrap.shorten(", ".join(words), 2 * columns, placeholder=" …")
        parts.append(textwrap.fill(f"Answers: {listed}. Arrow keys, or a word and Enter; quit ends.", columns - 1))
    print((CLEAR + HOME if sys.stdout.isatty() else "") + "\n".join(parts), flush=True)


@contextmanager
def keys(stream: TextIO) -> Iterator[Callable[[tuple[str, ...]], str | None]]:
    """Give a function that reads one answer: at a terminal by key, elsewhere by line; None at the end of the input."""
    if not stream.isatty():
        yield lambda words: line.strip() if (line := stream.readline()) else None
        return
    import termios  # here, since they are not on every system, and a pipe needs neither
    import tty

    before = termios.tcgetattr(stream)
    try:
        tty.setcbreak(stream)
        yield lambda words: _read_keys(stream, words)
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)


def _read_keys(stream: TextIO, words: tuple[str, ...]) -> str | None:
    typed = ""
    while True:
        key = stream.read(1)
        if key in ("", "\x04"):
            return None
        if key == "\x1b":
            letter = stream.read(2)[-1:]
            meant = [word for word in ARROWS.get(letter, ()) if word in words]
            if meant and not typed:
                return meant[0]
        elif key in "\r\n":
            if typed.strip():
                print()
                return typed.strip()
        elif key in "\x7f\b":
            typed = typed[:-1]
        elif key.isprintable():
            typed += key
        print(f"\r\x1b[K> {typed}", end="", flush=True)
