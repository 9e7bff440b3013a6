"""KL to a reference policy: estimators per token, and the loss made of them.

Axes: B rows, T width, N tokens. With d = log p − log f (policy minus reference), Schulman 2020,
"Approximating KL divergence" (joschu.net/blog/kl-approx.html):

    k1 = d                      value unbiased; as an on-policy *loss* its expected gradient is 0
    k2 = d² / 2                 biased value; as an on-policy loss the right expected gradient
    k3 = exp(−d) + d − 1        value unbiased and ≥ 0; its gradient per token is 1 − exp(−d)
    k1+, k3+                    straight-through: the value of k1 (k3) with the gradient of k2
"""

import torch
from torch import Tensor

from ._checks import check_choice, check_like, widen
from .aggregation import weighted_sum
from .metrics import Metrics
from .tokens import MAX_LOG_RATIO, Tokens, flatten

KL_KINDS = ("k1", "k2", "k3", "k1+", "k3+")


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, *, kind: str = "k3") -> Tensor:
    """The estimator of the table above for every token, shaped like ``logprobs``; no reduction, no mask.

    Use it detached and *subtracted* for a penalty inside the reward; :func:`kl_loss` is *added* to the loss.
    """
    check_choice("kind", kind, KL_KINDS)
    check_like("ref_logprobs", ref_logprobs, logprobs, "logprobs")
    d = widen(logprobs) - widen(ref_logprobs)
    if kind == "k1":
        return d
    if kind == "k2":
        return d.square() / 2
    if kind == "k3":
        return torch.expm1((-d).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) + d
    value = kl_estimate(logprobs, ref_logprobs, kind=kind[:-1]).detach()
    carrier = d.square() / 2
    return value + carrier - carrier.detach()


def kl_loss(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    *,
    denominator: float | Tensor,
    kind: str = "k3",
    old_logprobs: Tensor | None = None,
    aggregation: str = "token_mean",
    sequence_ids: Tensor | None = None,
    token_weights: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """Σ_t c_t k_t / denominator; multiply by the coefficient and *add* it to the policy loss.

    With ``old_logprobs`` every k_t is multiplied by w = p/q, through which the gradient flows too: the estimator is then
    right off policy, and on policy (w = 1) its expected gradient is the KL's own for k1 and k3 alike.

    Args:
        logprobs: [B, T] or [N] of the policy, with a graph.
        ref_logprobs: same shape, of the reference; no gradient reaches it.
        mask: same shape, bool.
        denominator: of the whole step, see ``step_denominator``.
        kind: k1, k2, k3, k1+ or k3+.
        old_logprobs: same shape: the policy that sampled, for the factor w.
        aggregation, sequence_ids, token_weights: as in ``aggregate``.

    Returns:
        The 0-d loss, and metrics ``kl/loss``, ``kl/tokens``, ``kl/value_sum``, ``kl/value_max``.
    """
    check_choice("kind", kind, KL_KINDS)
    check_like("logprobs", logprobs, mask, "mask")
    check_like("ref_logprobs", ref_logprobs, logprobs, "logprobs")
    tokens = flatten(mask, sequence_ids)
    logprobs_N = tokens.select(widen(logprobs))
    kl_N = kl_estimate(logprobs_N, tokens.select(widen(ref_logprobs.detach())), kind=kind)
    weighted_N = kl_N
    if old_logprobs is not None:
        check_like("old_logprobs", old_logprobs, logprobs, "logprobs")
        log_ratio_N = logprobs_N - tokens.select(widen(old_logprobs.detach()))
        weighted_N = kl_N * log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss = weighted_sum(weighted_N, tokens, denominator, aggregation, token_weights)
    return loss, _metrics(kl_N.detach(), tokens, loss)


def _metrics(kl_N: Tensor, tokens: Tokens, loss: Tensor) -> Metrics:
    return {
        "kl/loss": loss.detach(),
        "kl/tokens": tokens.mask_N.sum(),
        "kl/value_sum": kl_N.sum(),
        "kl/value_max": kl_N.max() if kl_N.numel() else kl_N.sum(),
    }
