"""Equations of matchsticks as bit masks, all puzzles there are, and shortest solutions.

A digit has seven places for a match, the operator one that makes a plus of a minus: 22 bits in all, in the order of `PLACES`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

SEGMENTS = ("top", "upper-left", "upper-right", "middle", "lower-left", "lower-right", "bottom")
DIGITS = ("1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011")
PLACES = (*(f"{number}-{segment}" for number in (1, 2, 3) for segment in SEGMENTS), "sign")
SIGN = 21  # bit of the operator's upright match


def _digit_mask(digit: int, number: int) -> int:
    return sum(1 << 7 * number + place for place, there in enumerate(DIGITS[digit]) if there == "1")


def mask_of(first: int, plus: bool, second: int, result: int) -> int:
    """Return the matches of an equation."""
    return _digit_mask(first, 0) | _digit_mask(second, 1) | _digit_mask(result, 2) | plus << SIGN


@lru_cache(maxsize=1)
def equations() -> dict[int, str]:
    """Return every readable equation, true or false: matches -> text such as `8-3=4`."""
    found = {}
    for first, plus, second, result in product(range(10), (False, True), range(10), range(10)):
        found[mask_of(first, plus, second, result)] = f"{first}{'+' if plus else '-'}{second}={result}"
    return found


def is_true(text: str) -> bool:
    first, second, result = (int(text[place]) for place in (0, 2, 4))
    return (first + second if text[1] == "+" else first - second) == result


@lru_cache(maxsize=1)
def true_masks() -> tuple[int, ...]:
    """Return the matches of every true equation."""
    return tuple(mask for mask, text in equations().items() if is_true(text))


@lru_cache(maxsize=65_536)
def target(matches: int, held: bool) -> int | None:
    """Return the true equation that the fewest moved matches lead to, None when no true one has as many matches."""
    count = matches.bit_count() + held
    fitting = [mask for mask in true_masks() if mask.bit_count() == count]
    return min(fitting, key=lambda mask: ((matches & ~mask).bit_count(), mask), default=None)


@lru_cache(maxsize=8)
def puzzles(changes: int) -> tuple[int, ...]:
    """Return every false equation that becomes true by moving exactly this many matches, and by no fewer."""
    found = []
    for mask, text in equations().items():
        to = None if is_true(text) else target(mask, False)
        if to is not None and (mask & ~to).bit_count() == changes:
            found.append(mask)
    return tuple(found)


def solution(matches: int, held: bool) -> tuple[int, ...]:
    """Return a shortest sequence of places to take from and put to.

    Raises:
        ValueError: no true equation has as many matches.
    """
    to = target(matches, held)
    if to is None:
        raise ValueError(f"no true equation has {matches.bit_count() + held} matches")
    surplus = [place for place in range(len(PLACES)) if (matches & ~to) >> place & 1]
    lacking = [place for place in range(len(PLACES)) if (to & ~matches) >> place & 1]
    actions = [lacking.pop(0)] if held else []
    for take, put in zip(surplus, lacking, strict=True):
        actions += [take, put]
    return tuple(actions)
