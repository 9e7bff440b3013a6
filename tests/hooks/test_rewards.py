"""The configured sum."""

from __future__ import annotations

import pytest

from vismaze_hooks import Ending, RewardSum, Transition

STEP = Transition(None, "up", 0, None, Ending.RUNNING)


def test_the_total_is_the_weighted_sum_and_the_parts_are_unweighted():
    priced = RewardSum((("a", 2.0, lambda _: 3.0), ("b", -0.5, lambda _: 4.0)))(STEP)
    assert priced.total == 4.0 and priced.parts == {"a": 3.0, "b": 4.0}


@pytest.mark.parametrize("order", [0, 1])
def test_none_from_any_part_leaves_the_sample_out(order):
    terms = [("a", 1.0, lambda _: 3.0), ("b", 0.0, lambda _: None)]
    priced = RewardSum(tuple(terms[::-1] if order else terms))(STEP)
    assert priced.total is None and priced.parts == {"a": 3.0, "b": None}
