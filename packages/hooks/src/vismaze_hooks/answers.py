"""The default answer grammar: `<action>word</action>`."""

from __future__ import annotations

from collections.abc import Sequence

OPEN, CLOSE = "<action>", "</action>"
_PLAIN = {wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}


def parse_tagged(answer: str, words: Sequence[str]) -> int | None:
    """Return the index of the word in the last `<action>…</action>` of an answer, or None when there is none.

    Takes any string in linear time and never raises. Case and surrounding white space do not matter, full-width
    letters count as their plain forms, and anything around the tags (code fences, reasoning) is passed over. The last
    complete tag decides: if its word is unknown the answer is unreadable, whatever stood before. A tag that is opened
    and not closed decides nothing.
    """
    text = plain(answer)
    end = text.rfind(CLOSE)
    if end < 0:
        return None
    start = text.rfind(OPEN, 0, end)
    if start < 0:
        return None
    word = text[start + len(OPEN) : end].strip()
    for action, known in enumerate(words):
        if word == known.casefold():
            return action
    return None


def plain(answer: str) -> str:
    """Return the text without case, full-width forms as plain ones.

    Not Unicode's NFKC, which takes quadratic time on long runs of combining marks.
    """
    return answer.translate(_PLAIN).casefold()


def tagged(word: str) -> str:
    """Return the well-formed answer for a word."""
    return f"{OPEN}{word}{CLOSE}"
