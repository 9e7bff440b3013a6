"""Policy losses of the GRPO family: one function, one small formula per kind.

Axes: B rows, T width, N tokens, S sequences. Notation: log-probs p (new), q (old), ratio w = exp(p − q), advantage A,
sg = stop-gradient. Every kind gives a loss per token; ``aggregate`` says how the tokens become one number.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import check_choice, check_floating, check_like, check_positive, widen
from .aggregation import weighted_sum
from .metrics import Metrics
from .tokens import MAX_LOG_RATIO, Tokens, flatten

DEFAULT_BOUNDS = {
    "ppo": (0.2, 0.28),  # clip-higher, DAPO
    "gspo": (3e-4, 4e-4),  # a mean over the sequence moves far less than a token
    "cispo": (0.2, 0.28),
    "sapo": (0.2, 0.28),  # only counted in the metrics: SAPO has no bounds
    "gmpo": (0.4, 0.4),  # in log space
    "dppo_tv": (0.2, 0.2),  # of a probability, not of a ratio
}
LOSS_KINDS = tuple(DEFAULT_BOUNDS)


@dataclass(frozen=True)
class _Bounds:
    """The settings of a kind, checked; what they mean is said in ``policy_loss``."""

    kind: str
    low: float
    high: float
    dual_clip: float | None
    ratio_min: float
    ratio_max: float
    tau_positive: float
    tau_negative: float
    drift_weight: float

    def __post_init__(self) -> None:
        for name, value in (("clip_low", self.low), ("clip_high", self.high), ("drift_weight", self.drift_weight)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}: expected a finite number of at least 0, got {value}")
        dual = self.dual_clip
        if dual is not None and (dual <= 1 or self.kind not in ("ppo", "gspo")):
            raise ValueError(f"dual_clip: expected a ratio above 1, for ppo or gspo, got {dual} for {self.kind}")
        if self.kind == "cispo" and not self.ratio_min <= 1 <= self.ratio_max:
            raise ValueError(
                "ratio_min, ratio_max: expected ratio_min ≤ 1 ≤ ratio_max (bounds of the ratio itself; one on the other "
                f"side of 1 would rescale every token), got {self.ratio_min}, {self.ratio_max}"
            )
        check_positive("tau_positive", self.tau_positive)
        check_positive("tau_negative", self.tau_negative)


@dataclass(frozen=True)
class _Terms:
    """What the formulas are made of: [N], selected by the mask, so that nothing from outside it is left."""

    logprobs_N: Tensor
    log_ratio_N: Tensor
    advantages_N: Tensor
    tokens: Tokens
    bounds: _Bounds


@dataclass(frozen=True)
class _Surrogate:
    """Loss of every token, and where a bound took its gradient away (or, for cispo and sapo, would have)."""

    loss_N: Tensor
    low_N: Tensor
    high_N: Tensor
    ratio_N: Tensor


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    denominator: float | Tensor,
    kind: str = "ppo",
    clip_low: float | None = None,
    clip_high: float | None = None,
    dual_clip: float | None = None,
    ratio_min: float | None = None,
    ratio_max: float | None = None,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
    drift_weight: float = 1e-3,
    correction: Tensor | None = None,
    aggregation: str = "token_mean",
    sequence_ids: Tensor | None = None,
    token_weights: Tensor | None = None,
    entropy: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """Σ_t c_t ℓ_t / denominator for the ``kind`` of ℓ: ppo, gspo, cispo, sapo, gmpo or dppo_tv.

    The formulas stand with ``_ppo``, ``_gspo``, … below. Sequence-level kinds need whole sequences in one micro-batch.

    Args:
        logprobs, old_logprobs: [B, T] padded, or [N] packed; no gradient reaches the old ones.
        advantages, mask: same shape (advantages also [B, 1]); bool mask, outside which nothing has any influence.
        denominator: of the whole optimizer step, see ``step_denominator``.
        clip_low, clip_high: distance from ratio 1 (gmpo: in log-ratio; dppo_tv: in probability), at least 0;
            None takes ``DEFAULT_BOUNDS[kind]``, 0.2 and 0.28 for ppo.
        dual_clip: ppo and gspo: the ratio beyond which a sample with A < 0 pushes no further; above 1.
        ratio_min, ratio_max: cispo's bounds as *ratios*; default 1 − clip_low and 1 + clip_high.
        tau_positive, tau_negative: sapo's temperatures by the advantage's sign.
        drift_weight: dppo_tv's factor of (p − q)².
        correction: same shape, detached factors of the token losses, from ``rollout_correction``.
        aggregation, sequence_ids, token_weights: as in ``aggregate``.
        entropy: same shape, only for the metrics (a bonus is ``−coefficient × aggregate(entropy, …)``).

    Returns:
        The 0-d loss, and detached, addable metrics under ``policy/`` (see ``metric_means``).
    """
    check_choice("kind", kind, LOSS_KINDS)
    if kind != "cispo" and (ratio_min is not None or ratio_max is not None):
        raise ValueError(f"ratio_min, ratio_max: read by kind 'cispo' only, got {ratio_min}, {ratio_max} with {kind!r}")
    low, high = (d if v is None else v for v, d in zip((clip_low, clip_high), DEFAULT_BOUNDS[kind], strict=True))
    least, most = 1 - low if ratio_min is None else ratio_min, 1 + high if ratio_max is None else ratio_max
    bounds = _Bounds(kind, low, high, dual_clip, least, most, tau_positive, tau_negative, drift_weight)
    terms = _read(logprobs, old_logprobs, advantages, flatten(mask, sequence_ids), mask, bounds)
    surrogate = _KINDS[kind](terms)
    loss_N = surrogate.loss_N
    if correction is not None:
        check_like("correction", correction, logprobs, "logprobs")
        loss_N = loss_N * terms.tokens.select(widen(correction.detach()))
    loss = weighted_sum(loss_N, terms.tokens, denominator, aggregation, token_weights)
    return loss, _metrics(terms, surrogate, loss.detach()) | _entropy_metric(entropy, logprobs, terms.tokens)


def _read(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, tokens: Tokens, mask: Tensor, bounds: _Bounds) -> _Terms:
    check_like("logprobs", logprobs, mask, "mask")
    check_like("old_logprobs", old_logprobs, logprobs, "logprobs")
    check_floating("advantages", advantages)
    if logprobs.dim() == 2 and advantages.shape == (logprobs.shape[0], 1):
        advantages = advantages.expand_as(logprobs)
    check_like("advantages", advantages, logprobs, "logprobs")
    logprobs_N = tokens.select(widen(logprobs))
    log_ratio_N = logprobs_N - tokens.select(widen(old_logprobs.detach()))
    return _Terms(logprobs_N, log_ratio_N, tokens.select(widen(advantages.detach())), tokens, bounds)


def _ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _clipped(ratio_N: Tensor, terms: _Terms) -> _Surrogate:
    """ℓ = max(−A w, −A clip(w, 1−low, 1+high)); for A < 0 with dual clip c also min(ℓ, −c A)."""
    advantages_N, dual = terms.advantages_N, terms.bounds.dual_clip
    low_N = (advantages_N < 0) & (ratio_N < 1 - terms.bounds.low)
    high_N = (advantages_N > 0) & (ratio_N > 1 + terms.bounds.high)
    bounded_N = torch.where(high_N, 1 + terms.bounds.high, torch.where(low_N, 1 - terms.bounds.low, ratio_N))
    if dual is not None:
        dual_N = (advantages_N < 0) & (ratio_N > dual)
        bounded_N, high_N = torch.where(dual_N, dual, bounded_N), high_N | dual_N
    return _Surrogate(-advantages_N * bounded_N, low_N, high_N, ratio_N.detach())


def _ppo(terms: _Terms) -> _Surrogate:
    """PPO clip (arXiv 1707.06347) with two bounds (DAPO, arXiv 2503.14476) and dual clip (arXiv 1912.09729)."""
    return _clipped(_ratio(terms.log_ratio_N), terms)


def _gspo(terms: _Terms) -> _Surrogate:
    """PPO clip on the ratio sg(w_seq) · exp(p − sg p), w_seq = exp(mean_t (p − q)). GSPO, arXiv 2507.18071.

    With ``seq_mean_token_mean`` the gradient to each of a sequence's L log-probs is −A w_seq / L.
    """
    sequence_N = terms.tokens.spread(terms.tokens.sequence_mean(terms.log_ratio_N.detach()))
    return _clipped(_ratio(sequence_N) * (terms.logprobs_N - terms.logprobs_N.detach()).exp(), terms)


def _cispo(terms: _Terms) -> _Surrogate:
    """ℓ = −sg(clip(w, ratio_min, ratio_max)) A p: no token ever loses its gradient. MiniMax-M1, arXiv 2506.13585."""
    ratio_N = _ratio(terms.log_ratio_N.detach())
    loss_N = -ratio_N.clamp(terms.bounds.ratio_min, terms.bounds.ratio_max) * terms.advantages_N * terms.logprobs_N
    return _Surrogate(loss_N, ratio_N < terms.bounds.ratio_min, ratio_N > terms.bounds.ratio_max, ratio_N)


def _sapo(terms: _Terms) -> _Surrogate:
    """ℓ = −A (4/τ) sigmoid(τ (w − 1)), τ by the sign of A: a soft gate, slope 1 at w = 1. SAPO, arXiv 2511.20347."""
    ratio_N = _ratio(terms.log_ratio_N)
    tau_N = torch.where(terms.advantages_N > 0, terms.bounds.tau_positive, terms.bounds.tau_negative)
    loss_N = -terms.advantages_N * (4 / tau_N) * torch.sigmoid(tau_N * (ratio_N - 1))
    return _Surrogate(loss_N, ratio_N < 1 - terms.bounds.low, ratio_N > 1 + terms.bounds.high, ratio_N.detach())


def _gmpo(terms: _Terms) -> _Surrogate:
    """ℓ = −A exp(mean_t x_t), x = p − q held by the pessimistic bound in log space. GMPO, arXiv 2507.20673.

    x = min(d, high) for A > 0 and max(d, −low) for A < 0; use it with ``seq_mean_token_mean``.
    """
    log_ratio_N, advantages_N = terms.log_ratio_N, terms.advantages_N
    low_N = (advantages_N < 0) & (log_ratio_N < -terms.bounds.low)
    high_N = (advantages_N > 0) & (log_ratio_N > terms.bounds.high)
    held_N = torch.where(high_N, terms.bounds.high, torch.where(low_N, -terms.bounds.low, log_ratio_N))
    mean_N = terms.tokens.spread(terms.tokens.sequence_mean(held_N))
    return _Surrogate(-advantages_N * _ratio(mean_N), low_N, high_N, _ratio(log_ratio_N.detach()))


def _dppo_tv(terms: _Terms) -> _Surrogate:
    """ℓ = −A w where the token's probability moved at most so far, else 0; plus drift_weight (p − q)².

    Left out: A > 0 and e^p − e^q > high, A < 0 and e^q − e^p > low: the token's share of a total variation, which does
    not punish rare tokens as a ratio does. DPPO, arXiv 2602.04879, in the form of prime-rl's default loss.
    """
    ratio_N, new_N = _ratio(terms.log_ratio_N), terms.logprobs_N.detach()
    moved_N = new_N.exp() - (new_N - terms.log_ratio_N.detach()).exp()
    low_N = (terms.advantages_N < 0) & (moved_N < -terms.bounds.low)
    high_N = (terms.advantages_N > 0) & (moved_N > terms.bounds.high)
    surrogate_N = torch.where(low_N | high_N, 0.0, -terms.advantages_N * ratio_N)
    return _Surrogate(surrogate_N + terms.bounds.drift_weight * terms.log_ratio_N.square(), low_N, high_N, ratio_N.detach())


_KINDS: dict[str, Callable[[_Terms], _Surrogate]] = {
    "ppo": _ppo,
    "gspo": _gspo,
    "cispo": _cispo,
    "sapo": _sapo,
    "gmpo": _gmpo,
    "dppo_tv": _dppo_tv,
}


def _metrics(terms: _Terms, surrogate: _Surrogate, loss: Tensor) -> Metrics:
    mask_N, log_ratio_N = terms.tokens.mask_N, terms.log_ratio_N.detach()
    ratio_N = torch.where(mask_N, surrogate.ratio_N, 1.0)
    drift_N = torch.expm1(log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) - log_ratio_N  # k3 of q to p: never below 0
    one = ratio_N.new_ones(1)
    return {
        "policy/loss": loss,
        "policy/tokens": mask_N.sum(),
        "policy/clip_low_sum": (surrogate.low_N & mask_N).sum(),
        "policy/clip_high_sum": (surrogate.high_N & mask_N).sum(),
        "policy/ratio_sum": torch.where(mask_N, ratio_N, 0.0).sum(),
        "policy/ratio_max": torch.cat((ratio_N, one)).max(),
        "policy/ratio_min": torch.cat((ratio_N, one)).min(),
        "policy/approx_kl_sum": drift_N.sum(),
    }


def _entropy_metric(entropy: Tensor | None, logprobs: Tensor, tokens: Tokens) -> Metrics:
    if entropy is None:
        return {}
    check_like("entropy", entropy, logprobs, "logprobs")
    return {"policy/entropy_sum": tokens.select(widen(entropy.detach())).sum()}
