"""The default answer grammar, on a table of what models write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vismaze_hooks import parse_tagged
from vismaze_hooks.answers import tagged

WORDS = ("up", "down", "left", "right", "stop")

READ = {
    "<action>up</action>": "up",
    "<action>down</action>": "down",
    "<action>left</action>": "left",
    "<action>right</action>": "right",
    "<action>stop</action>": "stop",
    "<ACTION>UP</ACTION>": "up",
    "<Action>Left</aCTION>": "left",
    "<action> right </action>": "right",
    "<action>\n\tdown\n</action>": "down",
    "<action>\u00a0stop\u3000</action>": "stop",
    "I think left is best. <action>left</action>": "left",
    "<action>left</action> and that is final": "left",
    "```\n<action>up</action>\n```": "up",
    "```xml\n<action>up</action>\n```": "up",
    "`<action>up</action>`": "up",
    "<think>up?</think><action>down</action>": "down",
    "<think><action>up</action></think><action>down</action>": "down",
    "<action>up</action><action>down</action>": "down",
    "<action>up</action> no: <action>right</action>": "right",
    "<action>nonsense</action><action>right</action>": "right",
    "don't go <action>left</action>, go <action>right</action>": "right",
    "<action><action>left</action>": "left",
    "<action>up <action>left</action>": "left",
    "<action>left</action></action>": None,
    "＜action＞left＜/action＞": "left",
    "<action>ｌｅｆｔ</action>": "left",
    "<ａｃｔｉｏｎ>ＬＥＦＴ</ａｃｔｉｏｎ>": "left",
    "<action>left</action>\x00": "left",
    "\ud800<action>left</action>": "left",
    "<action>left</action><action>": "left",
    "<action>left</action><action>up": "left",
    "</action><action>left</action>": "left",
    "<answer><action>left</action></answer>": "left",
    "<|im_start|>assistant\n<action>left</action><|im_end|>": "left",
}
UNREADABLE = (
    "",
    " ",
    "\n",
    "left",
    "go left",
    "('move', 2)",
    "<action>",
    "</action>",
    "<action></action>",
    "<action> </action>",
    "<action>left",
    "left</action>",
    "</action>left<action>",
    "<action>lef</action>",
    "<action>leftt</action>",
    "<action>left right</action>",
    "<action>left,</action>",
    "<action>'left'</action>",
    "<action>2</action>",
    "<action>left</action><action>nonsense</action>",
    "<action>left</ action>",
    "< action>left</action>",
    "<action/>left",
    "<action>left<action>",
    "[action]left[/action]",
    "<actions>left</actions>",
    "&lt;action&gt;left&lt;/action&gt;",
    "<action>gauche</action>",
    "<action>ｌｅｆ</action>",
    "\ufffd\ufffd",
    "<action>le\u0301ft</action>",
    "(" * 1_000_000,
)


@pytest.mark.parametrize(("answer", "word"), READ.items())
def test_what_is_read(answer, word):
    assert parse_tagged(answer, WORDS) == (None if word is None else WORDS.index(word))


@pytest.mark.parametrize("answer", UNREADABLE, ids=lambda answer: repr(answer[:30]))
def test_what_is_not(answer):
    assert parse_tagged(answer, WORDS) is None


@given(st.text(), st.binary())
def test_it_never_raises(text, data):
    for answer in (text, data.decode("utf-8", "replace"), data.decode("utf-8", "surrogateescape"), data.decode("latin-1")):
        assert parse_tagged(answer, WORDS) in (None, 0, 1, 2, 3, 4)


@given(st.sampled_from(WORDS), st.text(), st.text(alphabet="abc (){}[]\n"))
def test_a_well_formed_answer_is_read_whatever_stands_around_it(word, before, after):
    assert parse_tagged(before + tagged(word) + after, WORDS) == WORDS.index(word)


@pytest.mark.parametrize(
    "piece",
    ["<action>", "</action>", "<action>left</action>", "<", "(", "a\u0301\u0323", "ﷺ", "ß", "<action>" + " " * 100],
)
def test_work_grows_with_length_and_no_faster(piece):
    """Counted, not timed: a tracer counts the lines of Python that run, which must not depend on the answer's length.

    What runs inside C is str.translate, casefold, rfind and strip, each linear. (Unicode's NFKC was not.)
    """
    import sys

    def lines(answer: str) -> int:
        count = 0

        def trace(frame, event, argument):
            nonlocal count
            count += event == "line"
            return trace

        sys.settrace(trace)
        try:
            parse_tagged(answer, WORDS)
        finally:
            sys.settrace(None)
        return count

    assert lines(piece * 10) == lines(piece * 10_000) < 40
