"""One advantage per sample, compared inside the group of samples that answered the same task.

Axes: N samples, G groups. Notation: group mean m, group standard deviation s, n samples in the group, L trained tokens.
A sample whose reward is None (or NaN) is left out: no part in any mean, advantage 0; see :func:`kept_mask` for its tokens.
"""

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ._checks import check_choice, check_device, check_shape
from .groups import Groups, make_groups

ESTIMATORS = ("grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "maxrl", "opo")
SCALES = ("std", "none", "batch")


def group_advantages(
    rewards: Tensor | Sequence[float | None],
    uids: Sequence[Hashable] | Tensor,
    *,
    estimator: str = "grpo",
    scale: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """Advantage of each sample; groups may be ragged, unordered, and of any kind of id.

        grpo                   (r − m) / (s + eps)           DeepSeekMath, arXiv 2402.03300
          scale="none"         r − m                         Dr.GRPO, arXiv 2503.20783
          scale="batch"        (r − m) / (s_batch + eps)     s of all rewards that are kept
        rloo                   n/(n−1) (r − m)               arXiv 2402.14740: r − mean of the others
        reinforce_pp           whiten_L(r)                   arXiv 2501.03262 with discount 1: moments over all tokens
        reinforce_pp_baseline  whiten_L(r − m)               same paper
        maxrl                  (r − m) / m, 0 when m ≤ 0     weighs a solved sample by 1 / pass rate
        opo                    r − Σ L r / Σ L               arXiv 2505.23585: the variance-optimal baseline

    A group of one, and a group of equal rewards of any value, gives exactly 0 (reinforce_pp knows no groups: there it is
    the whole batch). Sums run in float64, the variance in two passes, so 8 × 0.35 leaves no residue to divide by.

    Args:
        rewards: [N], a tensor or a list; None or NaN leaves the sample out.
        uids: [N] ids of the task instances, never their prompt text: hashables, or an integer tensor.
        estimator: a name of the table.
        scale: read by ``grpo`` only.
        ddof: 1 divides the variance by n − 1, 0 by n; read by ``grpo``.
        eps: added to the standard deviation.
        lengths: [N] trained tokens of each sample; for ``opo`` and the two ``reinforce_pp``.

    Returns:
        [N] on the rewards' device, float64 if the rewards are a float64 tensor, else float32.
    """
    check_choice("estimator", estimator, ESTIMATORS)
    check_choice("scale", scale, SCALES)
    if scale != "std" and estimator != "grpo":
        raise ValueError(f"scale: read by estimator 'grpo' only, got {scale!r} with {estimator!r}")
    if ddof not in (0, 1):
        raise ValueError(f"ddof: expected 0 or 1, got {ddof!r}")
    raw_N, keep_N, dtype = _read_rewards(rewards)
    groups = make_groups(uids, raw_N.numel())
    groups = Groups(groups.index_N.to(raw_N.device), groups.groups)
    lengths_N = _read_lengths(lengths, raw_N, estimator)
    if estimator == "grpo":
        result_N = _grpo(raw_N, groups, keep_N, scale, ddof, eps)
    elif estimator == "reinforce_pp":
        result_N = _whiten(raw_N if keep_N is None else torch.where(keep_N, raw_N, 0.0), lengths_N, keep_N, eps)
    else:
        result_N = _unscaled(raw_N, groups, keep_N, lengths_N, estimator, eps)
    return (result_N if keep_N is None else torch.where(keep_N, result_N, 0.0)).to(dtype)


def _centred(raw_N: Tensor, groups: Groups, keep_N: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards minus their group's mean [N], that mean [G], kept samples [G]; exactly 0 in a group of equal rewards."""
    anchor_G, count_G = groups.anchor(raw_N, keep_N), groups.count(keep_N)
    inside_N = raw_N - groups.spread(anchor_G)
    inside_N = inside_N if keep_N is None else torch.where(keep_N, inside_N, 0.0)
    offset_G = groups.sum(inside_N) / count_G.clamp(min=1)
    return inside_N - groups.spread(offset_G), anchor_G + offset_G, count_G


def _unscaled(raw_N: Tensor, groups: Groups, keep_N: Tensor | None, lengths_N: Tensor, estimator: str, eps: float) -> Tensor:
    centred_N, mean_G, count_G = _centred(raw_N, groups, keep_N)
    if estimator == "rloo":
        return centred_N * groups.spread(count_G / (count_G - 1).clamp(min=1))
    if estimator == "maxrl":
        return centred_N * groups.spread(torch.where(mean_G > 0, 1 / torch.where(mean_G > 0, mean_G, 1.0), 0.0))
    if estimator == "opo":
        weights_N = lengths_N if keep_N is None else lengths_N * keep_N
        total_G = groups.sum(weights_N)
        baseline_G = groups.sum(weights_N * centred_N) / torch.where(total_G > 0, total_G, 1.0)
        return centred_N - groups.spread(baseline_G)
    varied_N = groups.spread(groups.sum(centred_N.abs() if keep_N is None else centred_N.abs() * keep_N)) > 0
    return torch.where(varied_N, _whiten(centred_N, lengths_N, keep_N, eps), 0.0)


def _grpo(raw_N: Tensor, groups: Groups, keep_N: Tensor | None, scale: str, ddof: int, eps: float) -> Tensor:
    centred_N, _, count_G = _centred(raw_N, groups, keep_N)
    if scale == "none":
        return centred_N
    if scale == "batch":
        kept_N = raw_N if keep_N is None else raw_N[keep_N]
        deviation = kept_N.var(correction=ddof).sqrt() if kept_N.numel() > ddof else kept_N.new_ones(())
        return centred_N / (deviation + eps)
    squares_N = (centred_N if keep_N is None else torch.where(keep_N, centred_N, 0.0)).square()
    deviation_G = (groups.sum(squares_N) / (count_G - ddof).clamp(min=1)).sqrt()
    return centred_N * groups.spread(torch.where(deviation_G > 0, (deviation_G + eps).reciprocal(), 0.0))


def _whiten(values_N: Tensor, lengths_N: Tensor, keep_N: Tensor | None, eps: float) -> Tensor:
    """Mean 0 and deviation 1 over a batch in which value i stands on each of its ``lengths_N[i]`` tokens."""
    weights_N = lengths_N if keep_N is None else lengths_N * keep_N
    used_N = values_N[weights_N > 0]
    total = weights_N.sum()
    if used_N.numel() == 0 or bool((used_N == used_N[0]).all()):
        return torch.zeros_like(values_N)
    centred_N = values_N - (weights_N * values_N).sum() / total
    variance = (weights_N * centred_N.square()).sum() / (total - 1)
    return centred_N / (variance.sqrt() + eps)


def _read_rewards(rewards: Tensor | Sequence[float | None]) -> tuple[Tensor, Tensor | None, torch.dtype]:
    """Rewards as float64, which are kept (None: all of them), and the dtype of the answer."""
    if isinstance(rewards, Tensor):
        if rewards.dim() != 1:
            raise ValueError(f"rewards: expected shape [N], got {tuple(rewards.shape)}")
        raw_N, dtype = rewards.detach().double(), torch.float64 if rewards.dtype == torch.float64 else torch.float32
    else:
        raw_N = torch.tensor([math.nan if reward is None else float(reward) for reward in rewards], dtype=torch.float64)
        dtype = torch.float32
    total = float(raw_N.sum())
    if math.isfinite(total):
        return raw_N, None, dtype
    if bool(torch.isinf(raw_N).any()):
        raise ValueError("rewards: expected finite numbers (None or NaN leaves a sample out), got inf")
    keep_N = ~torch.isnan(raw_N)
    return raw_N, keep_N, dtype


def _read_lengths(lengths: Tensor | Sequence[int] | None, rewards_N: Tensor, estimator: str) -> Tensor:
    if lengths is None:
        if estimator in ("opo", "reinforce_pp", "reinforce_pp_baseline"):
            raise ValueError(f"lengths: needed for estimator {estimator!r} (trained tokens of each sample), got None")
        return rewards_N.new_zeros(0)
    lengths_N = torch.as_tensor(lengths)
    check_shape("lengths", lengths_N, rewards_N.shape, "rewards")
    if isinstance(lengths, Tensor):
        check_device("lengths", lengths, rewards_N, "rewards")
    if bool((lengths_N < 0).any()):
        raise ValueError(f"lengths: expected counts of at least 0, got {int(lengths_N.min())}")
    return lengths_N.to(rewards_N.device).double()


def kept_mask(rewards: Tensor | Sequence[float | None], mask: Tensor) -> Tensor:
    """Take the tokens of samples without a reward out of a padded mask [N, T], and so out of its denominator.

    Args:
        rewards: [N], as in :func:`group_advantages`.
        mask: [N, T] bool.
    """
    raw_N, keep_N, _ = _read_rewards(rewards)
    if mask.dtype != torch.bool or mask.dim() != 2 or mask.shape[0] != raw_N.numel():
        raise ValueError(f"mask: expected bool of shape ({raw_N.numel()}, T), got {mask.dtype} {tuple(mask.shape)}")
    return mask.clone() if keep_N is None else mask & keep_N.to(mask.device).unsqueeze(1)
