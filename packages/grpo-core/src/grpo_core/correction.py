"""Rollout correction: factors for tokens that another policy (the sampling engine) drew.

Axes: B rows, T width, N tokens, S sequences. Notation: q = log-prob under the trainer, u = log-prob under the sampler,
w = exp(q − u) per token; per sequence Π_t w_t, and its geometric mean exp(mean_t (q − u)).
"""

import torch
from torch import Tensor

from ._checks import check_choice, check_floating, check_like, check_shape, widen
from .metrics import Metrics
from .tokens import MAX_LOG_RATIO, Tokens, flatten

LEVELS = ("token", "sequence", "geometric")
DEFAULTS: dict[str, tuple[str, float, float]] = {
    "tis": ("token", 0.0, 2.0),
    "icepop": ("token", 0.5, 5.0),
    "mis": ("geometric", 0.999, 1.001),
    "opsm": ("geometric", 0.0, 1e-4),
}
CORRECTIONS = tuple(DEFAULTS)


def rollout_correction(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    mask: Tensor,
    *,
    kind: str = "tis",
    level: str | None = None,
    low: float | None = None,
    high: float | None = None,
    advantages: Tensor | None = None,
    sequence_ids: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """Detached factors for the token losses (``policy_loss(correction=…)``), shaped like ``logprobs``; 0 outside the mask.

        tis      clip(w, low, high)             truncated importance sampling; default level token, 0 to 2
        icepop   w where low ≤ w ≤ high else 0  arXiv 2510.18855; default level token, 0.5 to 5
        mis      1 where low ≤ w ≤ high else 0  sequence mask; default level geometric, 0.999 to 1.001
        opsm     0 where A < 0 and mean_t (u − q) > high, else 1   DeepSeek-V3.2; default 1e-4, one decision per sequence

    icepop at level ``sequence`` is masked importance sampling with weights. Factors of two kinds may be multiplied (say,
    mis and tis). A token with factor 0 *stays in the denominator*: the step gets smaller by what was dropped, which keeps
    the estimate's weights; to take the tokens out of both, narrow the mask before ``step_denominator``.

    Args:
        logprobs: [B, T] or [N] of the trainer's old policy (for opsm: of the current one).
        sampler_logprobs: same shape, at the same temperature and with the same tokens banned.
        mask: same shape, bool.
        kind, level, low, high: see the table; level is token, sequence or geometric.
        advantages: same shape, or [B, 1]; for opsm, which decides by each sequence's mean advantage.
        sequence_ids: [N] integers, for packed tensors and any level but token.

    Returns:
        Factors, and metrics ``correction/*``: tokens, weight_sum, weight_max, truncated_sum, dropped_sum.
    """
    check_choice("kind", kind, CORRECTIONS)
    default_level, default_low, default_high = DEFAULTS[kind]
    level, low, high = level or default_level, default_low if low is None else low, default_high if high is None else high
    check_choice("level", level, LEVELS)
    if not 0 <= low <= high:
        raise ValueError(f"low, high: expected 0 ≤ low ≤ high, got {low}, {high}")
    if kind == "opsm" and level != "geometric":
        raise ValueError(f"level: expected 'geometric' (one decision per sequence) with opsm, got {level!r}")
    check_like("logprobs", logprobs, mask, "mask")
    check_like("sampler_logprobs", sampler_logprobs, logprobs, "logprobs")
    tokens = flatten(mask, sequence_ids)
    log_ratio_N = tokens.select(widen(logprobs.detach())) - tokens.select(widen(sampler_logprobs.detach()))
    if kind == "opsm":
        factor_N = _off_policy_mask(log_ratio_N, tokens, _negative(advantages, logprobs, tokens), high)
        raw_N = factor_N
    else:
        raw_N = _at_level(log_ratio_N, tokens, level).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        factor_N = _bounded(raw_N, kind, low, high)
    factor_N = torch.where(tokens.mask_N, factor_N, 0.0)
    return factor_N.reshape(mask.shape), _metrics(factor_N, raw_N, tokens)


def _at_level(log_ratio_N: Tensor, tokens: Tokens, level: str) -> Tensor:
    if level == "token":
        return log_ratio_N
    reduce = tokens.sequence_sum if level == "sequence" else tokens.sequence_mean
    return tokens.spread(reduce(log_ratio_N))


def _bounded(ratio_N: Tensor, kind: str, low: float, high: float) -> Tensor:
    if kind == "tis":
        return ratio_N.clamp(low, high)
    inside_N = (ratio_N >= low) & (ratio_N <= high)
    return torch.where(inside_N, ratio_N if kind == "icepop" else torch.ones_like(ratio_N), 0.0)


def _negative(advantages: Tensor | None, logprobs: Tensor, tokens: Tokens) -> Tensor:
    if advantages is None:
        raise ValueError("advantages: needed for kind 'opsm', got None")
    check_floating("advantages", advantages)
    if logprobs.dim() == 2 and advantages.shape == (logprobs.shape[0], 1):
        advantages = advantages.expand_as(logprobs)
    check_shape("advantages", advantages, logprobs.shape, "logprobs")
    return tokens.sequence_sum(tokens.select(widen(advantages.detach()))) < 0


def _off_policy_mask(log_ratio_N: Tensor, tokens: Tokens, negative_S: Tensor, most: float) -> Tensor:
    dropped_S = negative_S & (-tokens.sequence_mean(log_ratio_N) > most)
    return (~tokens.spread(dropped_S)).to(log_ratio_N.dtype)


def _metrics(factor_N: Tensor, raw_N: Tensor, tokens: Tokens) -> Metrics:
    mask_N = tokens.mask_N
    return {
        "correction/tokens": mask_N.sum(),
        "correction/weight_sum": factor_N.sum(),
        "correction/weight_max": torch.cat((factor_N, factor_N.new_zeros(1))).max(),
        "correction/truncated_sum": (mask_N & (factor_N != raw_N) & (factor_N > 0)).sum(),
        "correction/dropped_sum": (mask_N & (factor_N == 0)).sum(),
    }
