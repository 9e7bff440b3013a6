"""`mazeenv play`, `mazeenv show`, `mazeenv replay`: any environment that an installed plugin offers, for people."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

USER_ERROR, LOST = 2, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0 done (and won), 1 not won, 2 something that the user can mend."""
    chosen = _parser().parse_args(arguments)
    try:
        return chosen.run(chosen)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mazeenv", description="Visual environments for people: play, draw, replay.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    play = commands.add_parser("play", help="play in the terminal")
    _where(play)
    play.add_argument("--letters", action="store_true", help="text in place of pictures, where the environment has one")
    play.add_argument("--save", type=Path, metavar="FILE", help="add the episode to a file, for `show` and `replay`")
    play.set_defaults(run=_play)
    show = commands.add_parser("show", help="write a level, its solution or a recorded episode as .png, .gif or .svg")
    show.add_argument("out", type=Path, metavar="OUT")
    _where(show)
    show.add_argument("--solution", action="store_true", help="the solver's way from the start")
    _recorded(show)
    show.set_defaults(run=_show)
    replay = commands.add_parser("replay", help="write a recorded episode as one HTML page")
    replay.add_argument("out", type=Path, metavar="OUT.html")
    _where(replay)
    _recorded(replay)
    replay.set_defaults(run=_replay)
    return parser


def _where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-e", "--environment", default="VisMaze-v0", metavar="ID", help="id that a plugin offers (VisMaze-v0)")
    parser.add_argument(
        "-o", "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the environment, a TOML value"
    )
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--seed", type=int, default=0, help="of the level")
    level.add_argument("--task", metavar="SET/NUMBER", help="a task of a fixed set, such as vismaze-64/3")


def _recorded(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--episode", type=Path, metavar="FILE", help="a file of `play --save`, or of an evaluation (then name its environment)"
    )
    parser.add_argument("--line", type=int, default=0, help="which of its episodes, from 0; negative from the end")


def _options(chosen: argparse.Namespace) -> dict[str, Any]:
    options = {}
    for given in chosen.option:
        name, equals, text = given.partition("=")
        if not equals:
            raise ValueError(f"option {given!r}: expected NAME=VALUE, such as size=7")
        try:
            options[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            options[name] = text
    return options


def _play(chosen: argparse.Namespace) -> int:
    from mazeenv.play import play

    episode, won = play(chosen.environment, _options(chosen), _task(chosen), letters=chosen.letters)
    if chosen.save:
        from mazeenv.episodes import write_episodes

        write_episodes(chosen.save, [episode])
    return 0 if won else LOST


def _show(chosen: argparse.Namespace) -> int:
    from mazeenv.episodes import play_back
    from mazeenv.show import write_show

    _, shown = play_back(_episode(chosen))
    write_show(chosen.out, shown)
    print(chosen.out)
    return 0


def _replay(chosen: argparse.Namespace) -> int:
    from mazeenv.show import replay_page

    chosen.solution = True  # without a file there is still the solver's episode to look at
    chosen.out.write_text(replay_page(_episode(chosen)), encoding="utf-8")
    print(chosen.out)
    return 0


def _task(chosen: argparse.Namespace) -> Any:
    from mazeenv.episodes import draw_task, find_task, offer_of

    offer = offer_of(chosen.environment, _options(chosen))
    return find_task(offer, chosen.task) if chosen.task else draw_task(offer, chosen.seed)


def _episode(chosen: argparse.Namespace) -> Any:
    from mazeenv.episodes import Recorded, read_episode, solved

    options = _options(chosen)
    if chosen.episode:
        return read_episode(chosen.episode, chosen.line, environment=chosen.environment, options=options)
    task = _task(chosen)
    return solved(chosen.environment, options, task) if chosen.solution else Recorded(chosen.environment, task, (), options)


if __name__ == "__main__":
    sys.exit(main())
