"""Small numbers around a run: penalty for overlong answers, pass@k, and how sure a solve rate is."""

import math


def soft_overlong_penalty(length: int, *, max_length: int, cache: int) -> float:
    """DAPO's length penalty (arXiv 2503.14476): 0 up to max_length − cache, then linear to −1 at max_length, −1 beyond.

    Args:
        length: tokens of the answer.
        max_length: the hard limit.
        cache: how many tokens before the limit the penalty starts; above 0.
    """
    if not 0 < cache <= max_length:
        raise ValueError(f"cache: expected 1 to max_length={max_length}, got {cache}")
    return -min(max(length - (max_length - cache), 0) / cache, 1.0)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased pass@k = 1 − C(n−c, k) / C(n, k) for c correct of n samples. Chen et al., arXiv 2107.03374."""
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"correct, k: expected 0..{samples} and 1..{samples}, got {correct}, {k}")
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def rate_standard_error(rate: float, trials: int) -> float:
    """√(p (1 − p) / n): on 64 mazes 0.0625 at p = 0.5, so a gain of three points says nothing."""
    if not 0 <= rate <= 1 or trials < 1:
        raise ValueError(f"rate, trials: expected 0..1 and at least 1, got {rate}, {trials}")
    return math.sqrt(rate * (1 - rate) / trials)
