"""Advantages per token and per turn: discounted returns that cross observations, whitening, REINFORCE++.

Axes: B rows, T width, N tokens, U units of a row (its model tokens, or its turns). Masks are True on model-made tokens.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from ._checks import check_choice, check_like, check_mask, widen

UNITS = ("token", "turn")


def discounted_returns(rewards: Tensor, mask: Tensor, *, gamma: float = 1.0, unit: str = "token") -> Tensor:
    """G_u = Σ_{v ≥ u} γ^(v−u) r_v over the *model's* tokens (or turns) of each row; observations cost no discount.

    A reward that stands on an observation token belongs to the unit before it: no reward is lost across an observation.
    REINFORCE++ (arXiv 2501.03262) over turns. With ``unit="turn"`` a turn is a run of model tokens, its tokens share one
    return, and γ applies from turn to turn.

    Args:
        rewards: [B, T] floating-point.
        mask: [B, T] bool.
        gamma: 0 to 1.
        unit: token or turn.

    Returns:
        [B, T], 0 outside the mask.
    """
    check_choice("unit", unit, UNITS)
    check_mask("mask", mask)
    if mask.dim() != 2:
        raise ValueError(f"mask: expected shape [B, T], got {tuple(mask.shape)}")
    check_like("rewards", rewards, mask, "mask")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma: expected 0 to 1, got {gamma}")
    starts_BT = mask.clone()
    if unit == "turn":
        starts_BT[:, 1:] &= ~mask[:, :-1]
    unit_BT = starts_BT.cumsum(1)  # 0 before the first unit
    units = int(unit_BT.max()) if unit_BT.numel() else 0
    rewards_BT = widen(rewards)
    rewards_BT = torch.where(torch.isnan(rewards_BT) & ~mask, 0.0, rewards_BT)
    returns_BU = rewards_BT.new_zeros(mask.shape[0], units + 1).scatter_add(1, unit_BT, rewards_BT)
    for place in range(units - 1, -1, -1):
        returns_BU[:, place] += gamma * returns_BU[:, place + 1]
    return torch.where(mask, returns_BU.gather(1, unit_BT), 0.0)


def whiten(values: Tensor, mask: Tensor, *, eps: float = 1e-8, group: dist.ProcessGroup | None = None) -> Tensor:
    """(x − mean) / (std + eps) over the masked values of all ranks of ``group``; exactly 0 when none of them differ.

    Two passes in float64, divisor n − 1. Fewer than two values give 0, never NaN.

    Args:
        values: [B, T] or [N]; what stands outside the mask has no part in the moments.
        mask: same shape, bool.
        eps: added to the standard deviation.
        group: process group, or None for this process alone.

    Returns:
        Like ``values``, 0 outside the mask.
    """
    check_mask("mask", mask)
    check_like("values", values, mask, "mask")
    chosen_N = values[mask].double()
    count, total = _summed(group, chosen_N.new_tensor(chosen_N.numel()), chosen_N.sum())
    centred_N = chosen_N - total / count.clamp(min=1)
    (squares,) = _summed(group, centred_N.square().sum())
    ends = torch.stack((-chosen_N.min(), chosen_N.max())) if chosen_N.numel() else chosen_N.new_full((2,), -torch.inf)
    if group is not None and dist.is_initialized():
        dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
    result = torch.zeros_like(widen(values))
    if float(count) > 1 and float(-ends[0]) < float(ends[1]):
        deviation = (squares / (count - 1)).sqrt()
        result[mask] = (centred_N / (deviation + eps)).to(result.dtype)
    return result


def _summed(group: dist.ProcessGroup | None, *values: Tensor) -> Tensor:
    stacked = torch.stack(values)
    if group is not None and dist.is_initialized():
        dist.all_reduce(stacked, group=group)
    return stacked


def reinforce_pp_advantages(
    rewards: Tensor,
    mask: Tensor,
    *,
    gamma: float = 1.0,
    unit: str = "token",
    eps: float = 1e-8,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """REINFORCE++ (arXiv 2501.03262): discounted returns of every token, whitened over all model tokens of the batch.

    Args and result as in :func:`discounted_returns` and :func:`whiten`: [B, T] → [B, T].
    """
    return whiten(discounted_returns(rewards, mask, gamma=gamma, unit=unit), mask, eps=eps, group=group)
