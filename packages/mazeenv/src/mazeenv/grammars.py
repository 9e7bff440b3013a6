"""How answers are written and read. Both readers take any string in linear time and never raise."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vismaze_hooks import parse_tagged
from vismaze_hooks.answers import plain, tagged

_TUPLE = re.compile(r"""\(\s*+(['"]?)(\w{1,16})\1\s*+,\s*+(['"]?)(\w{1,16})\3\s*+,?\s*+\)""")
_VISGYM_MOVES = {"0": "right", "1": "up", "2": "left", "3": "down"}
_VISGYM_WORDS = {word: f"('move', {number})" for number, word in _VISGYM_MOVES.items()} | {"stop": "('stop', 'stop')"}


@dataclass(frozen=True)
class Grammar:
    """A way to write answers."""

    parse: Callable[[str, Sequence[str]], int | None]  # answer, words -> action; None: unreadable
    answer: Callable[[str], str]  # word -> a well-formed answer
    describe: Callable[[Sequence[str]], str]  # words -> how to answer, for the prompt


def parse_tuple(answer: str, words: Sequence[str]) -> int | None:
    """Read VisGym's tuples: `('move', 0)` right, 1 up, 2 left, 3 down; `('stop', 'stop')`.

    The last pair in parentheses decides, whatever stands around it (code fences, reasoning). Quotes around the name may
    be missing; case does not matter.
    """
    found = collections.deque(_TUPLE.finditer(plain(answer)), maxlen=1)
    if not found:
        return None
    last = found[0]
    name, quote, value = last[2], last[3], last[4]
    word = _VISGYM_MOVES.get(value) if name == "move" and not quote else "stop" if name == value == "stop" else None
    return words.index(word) if word in words else None


def write_tuple(word: str) -> str:
    """Return VisGym's answer for a word."""
    return _VISGYM_WORDS[word]


def _describe_tags(words: Sequence[str]) -> str:
    return f"Each turn, answer with one of {', '.join(words)} in this form: {tagged(words[0])}"


def _describe_tuples(words: Sequence[str]) -> str:
    listed = ", ".join(f"{_VISGYM_WORDS[word]} for {word}" for word in words)
    return f"Each turn, answer with one of {listed}."


GRAMMARS = {
    "tags": Grammar(parse_tagged, tagged, _describe_tags),
    "tuples": Grammar(parse_tuple, write_tuple, _describe_tuples),
}
