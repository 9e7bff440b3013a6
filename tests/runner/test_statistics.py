"""Statistics of solve rates: published values and what must hold for all counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_runner.statistics import (
    Fate,
    by_stratum,
    choose,
    compare,
    mcnemar_exact,
    moving_mean,
    phases,
    summarize,
    thin,
    wilson_interval,
)

counts = st.integers(0, 600).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total)))


@pytest.mark.parametrize(
    ("solved", "total", "low", "high"),
    [  # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_newcombes_published_values(solved, total, low, high):
    assert wilson_interval(solved, total) == pytest.approx((low, high), abs=5e-5)


def test_wilson_of_the_reference_checkpoint():
    assert wilson_interval(28, 64) == pytest.approx((0.32294, 0.55914), abs=1e-5)


@given(counts, st.floats(0.5, 0.999))
def test_wilson_holds_the_rate_and_stays_between_0_and_1(count, confidence):
    solved, total = count
    low, high = wilson_interval(solved, total, confidence)
    assert 0 <= low <= high <= 1
    assert total == 0 or low <= solved / total <= high


@given(counts)
def test_wilson_is_symmetric_in_solved_and_unsolved(count):
    solved, total = count
    low, high = wilson_interval(solved, total)
    assert (1 - high, 1 - low) == pytest.approx(wilson_interval(total - solved, total), abs=1e-12)


@given(counts.filter(lambda count: count[1] > 0))
def test_wilson_ends_are_where_the_score_test_rejects(count):
    """Each end p₀ inside (0, 1) solves |p − p₀| = z √(p₀ (1 − p₀) / n): the interval inverts the test."""
    solved, total = count
    for end in wilson_interval(solved, total):
        if 0 < end < 1:
            assert abs(solved / total - end) == pytest.approx(1.959963985 * math.sqrt(end * (1 - end) / total), abs=1e-7)


@given(counts.filter(lambda count: count[1] > 0), st.integers(2, 9))
def test_wilson_narrows_with_more_of_the_same(count, times):
    narrow, wide = wilson_interval(count[0] * times, count[1] * times), wilson_interval(*count)
    assert narrow[1] - narrow[0] < wide[1] - wide[0]


@pytest.mark.parametrize(("solved", "total", "confidence"), [(3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0), (1, 2, 0.0)])
def test_wilson_refuses_what_is_no_proportion(solved, total, confidence):
    with pytest.raises(ValueError, match="wilson_interval"):
        wilson_interval(solved, total, confidence)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [
        (0, 0, 1.0),
        (0, 6, 2 / 64),  # all six on one side: 2 · ½⁶
        (6, 16, 220_112 / 2**22),  # 2 · (1 + 22 + 231 + 1540 + 7315 + 26334 + 74613) / 2²²
        (5, 5, 1.0),
        (1, 31, 2 * 33 / 2**32),
    ],
)
def test_mcnemar_is_the_two_sided_binomial_tail(only_first, only_second, p):
    assert mcnemar_exact(only_first, only_second) == pytest.approx(p, rel=1e-12)


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_is_a_symmetric_probability(a, b):
    p = mcnemar_exact(a, b)
    assert 0 < p <= 1
    assert p == mcnemar_exact(b, a)
    assert mcnemar_exact(a, a) == 1


@given(st.integers(1, 120), st.data())
def test_mcnemar_falls_as_the_sides_draw_apart(discordant, data):
    fewer = data.draw(st.integers(0, (discordant - 1) // 2))
    assert fewer == 0 or mcnemar_exact(fewer - 1, discordant - fewer + 1) <= mcnemar_exact(fewer, discordant - fewer)


def test_mcnemar_refuses_negative_counts():
    with pytest.raises(ValueError, match="must not be negative"):
        mcnemar_exact(-1, 2)


def row(success, moves=5, **labels):
    return {"success": success, "ending": "success" if success else "limit", "moves": moves, "invalid": 1, "labels": labels}


def test_strata_are_ordered_and_hold_everything():
    rows = [row(True, shortest=10), row(False, shortest=2), row(True, shortest=2), row(True), row(False, shortest="odd")]
    strata = by_stratum(rows, "shortest")
    assert [(s.stratum, s.solved, s.total) for s in strata] == [(2, 1, 2), (10, 1, 1), ("odd", 0, 1), (None, 1, 1)]
    assert strata[0].interval == wilson_interval(1, 2)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5))))
def test_strata_add_up(outcomes):
    strata = by_stratum([row(success, n=n) for success, n in outcomes], "n")
    assert sum(s.total for s in strata) == len(outcomes)
    assert sum(s.solved for s in strata) == sum(success for success, _ in outcomes)


def test_fates_and_the_examples_chosen_from_them():
    first = {"a": False, "b": False, "c": True, "d": True, "e": False, "f": False, "g": True}
    second = {"a": True, "b": False, "c": False, "d": True, "e": True, "f": True, "new": True}
    fates = compare(first, second)
    assert fates == {"a": Fate.WON, "b": Fate.NEVER, "c": Fate.LOST, "d": Fate.KEPT, "e": Fate.WON, "f": Fate.WON}
    assert choose(fates) == ["a", "e", "f", "b", "c"]
    assert choose({"x": Fate.KEPT, "y": Fate.NEVER}) == ["x", "y"]
    assert choose({}) == []


def test_summary_counts_endings_and_detours():
    summary = summarize([row(True, moves=7, shortest=6), row(True, moves=9, shortest=6), row(False, moves=12, shortest=8)])
    assert (summary["solved"], summary["total"], summary["invalid"], summary["all_moves"]) == (2, 3, 3, 28)
    assert (summary["detour"], summary["endings"]) == (2.0, {"success": 2, "limit": 1})
    assert summarize([])["moves"] is None
    assert summarize([row(True)])["detour"] is None


def test_phases_name_what_nobody_claims():
    assert phases({"rollout": 30.0, "update": 50.0, "total": 100.0}, []) == (
        {"rollout": 30.0, "update": 50.0, "everything else": 20.0},
        100.0,
    )
    assert phases({}, [{"seconds/rollout": 1.0}, {"seconds/rollout": 2.0, "step": 2}]) == ({"rollout": 3.0}, 3.0)
    assert phases({}, []) == ({}, 0)


def test_thinned_curves_keep_peaks_and_gaps():
    records = [{"step": n, "a_max": float(n % 5), "b": float(n)} for n in range(1, 11)] + [{"step": 11}]
    assert thin(records, "b", parts=100)[-2:] == [(10, 10.0), (11, None)]
    assert thin(records, "a_max", parts=3) == [(4, 4.0), (8, 3.0), (11, 4.0)]
    assert thin(records, "b", parts=3) == [(4, 2.5), (8, 6.5), (11, 9.5)]
    assert thin([], "b", parts=3) == []


def test_moving_mean_is_centred_and_leaves_gaps():
    assert moving_mean([1.0, 2.0, 6.0, None, 4.0], 3) == [1.5, 3.0, 4.0, None, 4.0]
    with pytest.raises(ValueError, match="odd"):
        moving_mean([1.0], 2)
