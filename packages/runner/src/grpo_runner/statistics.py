"""What the numbers of a run say: an interval for a solve rate, an exact test for two, rates by stratum; curves. No numpy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from statistics import NormalDist
from typing import Any


@dataclass(frozen=True)
class Stratum:
    """The solve rate of the episodes that share one value of a label."""

    stratum: Any  # the label's value; None gathers the episodes that do not have the label
    solved: int
    total: int
    interval: tuple[float, float]  # Wilson, 95 %


class Fate(StrEnum):
    """How one task went in two evaluations."""

    WON = "won"  # solved in the second only
    LOST = "lost"  # solved in the first only
    KEPT = "kept"  # solved in both
    NEVER = "never"  # solved in neither


def wilson_interval(solved: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion, both ends in [0, 1].

        centre = (p + z²/2n) / (1 + z²/n),   half width = z/(1 + z²/n) · √(p(1−p)/n + z²/4n²)

    with p = solved/n and z the (1 + confidence)/2 quantile of the normal distribution. Unlike p ± z·√(p(1−p)/n) it keeps
    its coverage near 0 and 1 and for few tasks. Nothing is known of an empty sample: (0, 1).

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927), 209–212;
    formula and worked examples in R. G. Newcombe, Statistics in Medicine 17 (1998), 857–872 (method 3).

    Raises:
        ValueError: not 0 ≤ solved ≤ total, or not 0 < confidence < 1.
    """
    if not 0 <= solved <= total:
        raise ValueError(f"wilson_interval: solved must be between 0 and total, got solved={solved}, total={total}")
    if not 0 < confidence < 1:
        raise ValueError(f"wilson_interval: confidence must lie between 0 and 1, got {confidence}")
    if total == 0:
        return 0.0, 1.0
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    rate = solved / total
    centre = rate + z2 / (2 * total)
    half = math.sqrt(z2 * (rate * (1 - rate) / total + z2 / (4 * total**2)))
    scale = 1 + z2 / total
    # At none and at all solved one end is 0 or 1 exactly; the square root would leave it a rounding error beside.
    low = 0.0 if solved == 0 else (centre - half) / scale
    high = 1.0 if solved == total else (centre + half) / scale
    return low, high


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of the exact McNemar test on paired outcomes.

        p = min(1, 2 · Σ_{i ≤ min(b, c)} C(b+c, i) / 2^(b+c))

    Of the tasks that one evaluation solved and the other did not, each is as likely to fall to either side if nothing has
    changed: b = `only_first` is Binomial(b + c, ½). Tasks that both solved, or neither, do not count. No discordant pair: 1.

    Source: Q. McNemar, Psychometrika 12 (1947), 153–157; exact form in A. Agresti, Categorical Data Analysis, section 10.1
    (R's `exact2x2::mcnemar.exact`, statsmodels' `mcnemar(exact=True)`).

    Raises:
        ValueError: a negative count.
    """
    if only_first < 0 or only_second < 0:
        raise ValueError(f"mcnemar_exact: counts must not be negative, got {only_first} and {only_second}")
    discordant = only_first + only_second
    tail = sum(math.comb(discordant, i) for i in range(min(only_first, only_second) + 1))
    return float(min(Fraction(1), Fraction(2 * tail, 2**discordant)))


def compare(first: Mapping[str, bool], second: Mapping[str, bool]) -> dict[str, Fate]:
    """Say how each task (uid → solved) that is in both evaluations went, in the order of the second."""
    fates = {(False, True): Fate.WON, (True, False): Fate.LOST, (True, True): Fate.KEPT, (False, False): Fate.NEVER}
    return {uid: fates[bool(first[uid]), bool(solved)] for uid, solved in second.items() if uid in first}


def choose(fates: Mapping[str, Fate]) -> list[str]:
    """Pick example tasks by rule from tasks (uid → fate) in order of difficulty, so that nobody picks the prettiest.

    Of the newly solved the first, the middle and the last (of the always solved, where none is new); the first that is
    still unsolved; the first that was lost.
    """
    by_fate = {fate: [uid for uid in fates if fates[uid] == fate] for fate in Fate}
    solved = by_fate[Fate.WON] or by_fate[Fate.KEPT]
    picked = [solved[0], solved[len(solved) // 2], solved[-1]] if solved else []
    return [*dict.fromkeys(picked), *by_fate[Fate.NEVER][:1], *by_fate[Fate.LOST][:1]]


def summarize(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how episodes went: solve rate with its interval, how they ended, how long they were.

    Of `{"success", "ending", "moves", "invalid", "labels"}` each. `detour` is the mean of moves beyond the label
    `shortest` over the solved episodes; None where no episode has it.
    """
    solved = [row for row in rows if row["success"]]
    return {
        "solved": len(solved),
        "total": len(rows),
        "interval": wilson_interval(len(solved), len(rows)),
        "endings": Counter(str(row.get("ending", "success" if row["success"] else "limit")) for row in rows),
        "invalid": sum(row["invalid"] for row in rows),
        "all_moves": sum(row["moves"] for row in rows),
        "moves": mean(row["moves"] for row in rows),
        "detour": mean(row["moves"] - row["labels"]["shortest"] for row in solved if "shortest" in row["labels"]),
    }


def by_stratum(rows: Iterable[Mapping[str, Any]], label: str) -> list[Stratum]:
    """Return the solve rate of each value of a label, ordered: numbers first, then words, episodes without the label last.

    Args:
        rows: episodes, `{"success": bool, "labels": {label: value, …}, …}`.
        label: the name of the label, such as `"shortest"`.
    """
    outcomes: dict[Hashable, list[bool]] = {}
    for row in rows:
        value = row.get("labels", {}).get(label)
        outcomes.setdefault(value, []).append(bool(row["success"]))
    return [
        Stratum(value, sum(solved), len(solved), wilson_interval(sum(solved), len(solved)))
        for value, solved in sorted(outcomes.items(), key=lambda item: _order(item[0]))
    ]


def mean(values: Iterable[float]) -> float | None:
    """Return the mean, or None of nothing."""
    values = list(values)
    return math.fsum(values) / len(values) if values else None


def moving_mean(values: Sequence[float | None], window: int) -> list[float | None]:
    """Return the centred mean over `window` (odd) values; gaps stay gaps, and the ends use what is there.

    Raises:
        ValueError: an even window, or one below 1.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"moving_mean: window must be odd and positive, got {window}")
    half = window // 2
    return [
        None if value is None else mean(v for v in values[max(0, i - half) : i + half + 1] if v is not None)
        for i, value in enumerate(values)
    ]


def phases(stated: Mapping[str, float], records: Sequence[Mapping[str, float]]) -> tuple[dict[str, float], float]:
    """Return the seconds of each phase of a run and of the whole, what no phase claims as "everything else".

    Args:
        stated: seconds by phase and `total`; empty while a run is going on.
        records: steps with keys `seconds/phase`, added up where nothing is stated.
    """
    seconds = dict(stated)
    for key in dict.fromkeys(key for record in records for key in record if key.startswith("seconds/") and not stated):
        seconds[key.removeprefix("seconds/")] = sum(record.get(key, 0.0) for record in records)
    total = max(seconds.pop("total", 0.0), sum(seconds.values()))
    rest = total - sum(seconds.values())
    return seconds | ({"everything else": rest} if rest > 0.005 * total else {}), total


def thin(records: Sequence[Mapping[str, float]], key: str, *, parts: int) -> list[tuple[float, float | None]]:
    """Return (step, value) of one metric, of a long run for at most `parts` stretches of steps; None where it is missing.

    The value of a stretch is the mean, or the maximum for a key that ends in `_max`: a peak must not be averaged away.
    """
    size = -(-len(records) // parts) or 1
    fold = max if key.endswith("_max") else mean
    stretches = [records[i : i + size] for i in range(0, len(records), size)]
    values = [[record[key] for record in stretch if key in record] for stretch in stretches]
    return [(stretch[-1]["step"], fold(found) if found else None) for stretch, found in zip(stretches, values, strict=True)]


def _order(value: Any) -> tuple[int, float, str]:
    if value is None:
        return 2, 0.0, ""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return 1, 0.0, str(value)
