"""Which samples go together: micro-batches by token budget, and equal work for every rank. Pure and deterministic."""

import bisect
import heapq
from collections.abc import Sequence
from itertools import accumulate

from ._checks import check_choice, check_positive

LAYOUTS = ("packed", "padded")


def token_budget_batches(lengths: Sequence[int], budget: int, *, layout: str = "packed") -> list[list[int]]:
    """Group sample numbers into micro-batches of at most ``budget`` tokens, longest first.

    packed counts Σ length (best fit, decreasing); padded counts rows × longest row, so neighbours in length share one.

    Args:
        lengths: tokens of each sample, at least 0.
        budget: tokens that one micro-batch may hold.
        layout: packed or padded.

    Returns:
        Lists of positions in ``lengths``; every position once, the same answer for the same lengths.

    Raises:
        ValueError: one sample alone is longer than the budget.
    """
    check_choice("layout", layout, LAYOUTS)
    check_positive("budget", budget)
    order = _longest_first(lengths)
    if order and lengths[order[0]] > budget:
        raise ValueError(f"lengths: expected at most the budget of {budget}, got {lengths[order[0]]} at {order[0]}")
    if layout == "padded":
        return _pad_neighbours(lengths, budget, order)
    batches: list[list[int]] = []
    space: list[tuple[int, int]] = []  # (tokens left, batch), ascending: the tightest that fits is found by bisection
    for sample in order:
        place = bisect.bisect_left(space, (lengths[sample], -1))
        if place == len(space):
            batches.append([])
            left, batch = budget, len(batches) - 1
        else:
            left, batch = space.pop(place)
        batches[batch].append(sample)
        bisect.insort(space, (left - lengths[sample], batch))
    return batches


def _pad_neighbours(lengths: Sequence[int], budget: int, order: Sequence[int]) -> list[list[int]]:
    batches: list[list[int]] = []
    for sample in order:
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return batches


def balance_over_ranks(lengths: Sequence[int], ranks: int, *, neighbours: bool = False) -> list[list[int]]:
    """Give every rank about equally many tokens.

    Args:
        lengths: tokens of each sample, [samples].
        neighbours: every rank takes a stretch of the row, within one sample of its fair share, so that what stands
            together stays together: samples of one task, whose pictures are then encoded on one rank. Otherwise the
            longest sample goes to the rank with the fewest tokens so far (Graham 1969: at most 4/3 of the best
            possible maximum).

    Returns:
        One list of positions in ``lengths`` per rank. Ranks may hold different numbers of samples, and of
        micro-batches: see ``accumulate_gradients``.

    Raises:
        ValueError: no rank, or a length below 0.
    """
    check_positive("ranks", ranks)
    shares: list[list[int]] = [[] for _ in range(ranks)]
    if neighbours:
        _check(lengths)
        total, ends = sum(lengths), accumulate(lengths)
        for sample, (end, tokens) in enumerate(zip(ends, lengths, strict=True)):
            rank = (2 * end - tokens) * ranks // (2 * total or 1)  # where its middle lies
            shares[min(rank, ranks - 1)].append(sample)
        return shares
    load = [(0, 0, rank) for rank in range(ranks)]  # tokens, samples, rank
    for sample in _longest_first(lengths):
        tokens, samples, rank = heapq.heappop(load)
        shares[rank].append(sample)
        heapq.heappush(load, (tokens + lengths[sample], samples + 1, rank))
    return shares


def _longest_first(lengths: Sequence[int]) -> list[int]:
    _check(lengths)
    return sorted(range(len(lengths)), key=lambda sample: (-lengths[sample], sample))


def _check(lengths: Sequence[int]) -> None:
    for place, length in enumerate(lengths):
        if length < 0:
            raise ValueError(f"lengths: expected counts of at least 0, got {length} at {place}")
