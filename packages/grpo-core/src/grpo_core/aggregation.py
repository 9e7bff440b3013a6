"""How token losses become one number, and the denominator that makes this number a whole step's.

Axes: B rows, T width, N tokens, S sequences. For every aggregation

    loss = Σ_t c_t ℓ_t / denominator,      t over the trained tokens,

so that the losses of micro-batches and of ranks simply add up:

    aggregation            c_t           denominator of the step
    token_mean             1             trained tokens
    seq_mean_token_mean    1 / L_seq     sequences that have a trained token
    seq_mean_token_sum     1             sequences that have a trained token
    constant (Dr.GRPO)     1             sequences that have a trained token × ``constant``
    prompt_mean            1 / L_prompt  prompts that have a trained token

Sources: DAPO (arXiv 2503.14476) for token_mean, Dr.GRPO (arXiv 2503.20783) for the constant.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ._checks import check_choice, check_like, check_positive, check_shape, widen
from .tokens import Tokens, flatten

AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant", "prompt_mean")
_PER_UNIT = ("seq_mean_token_mean", "prompt_mean")


def aggregation_weights(
    mask: Tensor,
    *,
    aggregation: str = "token_mean",
    sequence_ids: Tensor | None = None,
    unit_tokens: Tensor | None = None,
) -> Tensor:
    """The factors c_t of the table above, float32 and shaped like ``mask``; 0 outside it.

    Args:
        mask: [B, T] or [N] bool.
        aggregation: a name of the table. ``prompt_mean`` wants the *prompt's* id of every token in ``sequence_ids``.
        sequence_ids: [N] integers, for packed tensors.
        unit_tokens: shaped like ``mask``: the trained tokens of the whole sequence (prompt) that the token belongs to.
            Needed only where a sequence (prompt) is spread over several micro-batches or ranks.
    """
    check_choice("aggregation", aggregation, AGGREGATIONS)
    if aggregation == "prompt_mean" and mask.dim() == 2 and unit_tokens is None:
        raise ValueError("unit_tokens: needed for prompt_mean with a padded mask, whose rows are not prompts, got None")
    tokens = flatten(mask, sequence_ids)
    return _weights(tokens, aggregation, unit_tokens).reshape(mask.shape)


def _weights(tokens: Tokens, aggregation: str, unit_tokens: Tensor | None) -> Tensor:
    ones_N = tokens.mask_N.to(torch.float64)
    if aggregation not in _PER_UNIT:
        return ones_N.float()
    if unit_tokens is None:
        count_N = tokens.spread(tokens.sequence_lengths())
    else:
        check_shape("unit_tokens", unit_tokens.reshape(-1), tokens.mask_N.shape, "mask")
        count_N = unit_tokens.reshape(-1)
    return (ones_N / count_N.clamp(min=1)).float()


def aggregate(
    values: Tensor,
    mask: Tensor,
    *,
    denominator: float | Tensor,
    aggregation: str = "token_mean",
    sequence_ids: Tensor | None = None,
    token_weights: Tensor | None = None,
) -> Tensor:
    """Σ_t c_t values_t / denominator over the trained tokens: 0-d, with a graph even when nothing is selected.

    Args:
        values: [B, T] or [N]; whatever stands outside ``mask``, NaN and inf included, has no influence.
        mask: bool, shaped like ``values``.
        denominator: of the whole optimizer step, see :func:`step_denominator`.
        aggregation: a name of the module's table; ignored when ``token_weights`` gives c_t itself.
        sequence_ids: [N] integers, for packed tensors.
        token_weights: shaped like ``values``, from :func:`aggregation_weights` or the caller's own.
    """
    check_like("values", values, mask, "mask")
    tokens = flatten(mask, sequence_ids)
    return weighted_sum(tokens.select(widen(values)), tokens, denominator, aggregation, token_weights)


def weighted_sum(
    values_N: Tensor, tokens: Tokens, denominator: float | Tensor, aggregation: str, token_weights: Tensor | None
) -> Tensor:
    """:func:`aggregate` for values that are selected and flat already."""
    check_choice("aggregation", aggregation, AGGREGATIONS)
    if token_weights is None:
        if aggregation == "prompt_mean":
            raise ValueError("token_weights: needed for prompt_mean, see aggregation_weights(), got None")
        weights_N = _weights(tokens, aggregation, None)
    else:
        check_shape("token_weights", token_weights.reshape(-1), tokens.mask_N.shape, "mask")
        weights_N = tokens.select(token_weights)
    if aggregation in _PER_UNIT and token_weights is None and values_N.dtype == torch.float64:
        # 1/L in float32 would cost a float64 caller half of the digits.
        weights_N = tokens.mask_N / tokens.spread(tokens.sequence_lengths()).clamp(min=1).double()
    return (values_N * weights_N).sum() / _usable(denominator, tokens)


def _usable(denominator: float | Tensor, tokens: Tokens) -> float | Tensor:
    if isinstance(denominator, Tensor):
        check_shape("denominator", denominator, ())
    value = float(denominator)
    if not 0 <= value < float("inf"):
        raise ValueError(f"denominator: expected a finite number of at least 0, got {value}")
    if value > 0:
        return denominator
    if bool(tokens.mask_N.any()):
        raise ValueError("denominator: expected a number above 0 because the mask selects tokens, got 0")
    return 1.0


def step_denominator(
    mask_or_count: Tensor | Sequence[Tensor] | float,
    *,
    aggregation: str = "token_mean",
    sequence_ids: Tensor | Sequence[Tensor] | None = None,
    constant: float | None = None,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """The denominator of one optimizer step: over all micro-batches of all ranks, known before the first backward.

    Data-parallel wrappers *average* gradients over ranks, so each rank's backward needs
    ``loss * gradient_scale(group)``; see :func:`gradient_scale`.

    Args:
        mask_or_count: a mask, the masks of all this rank's micro-batches, or this rank's count already made
            (tokens for token_mean, non-empty sequences or prompts for the others).
        aggregation: a name of the module's table.
        sequence_ids: for packed masks, one [N] tensor per mask. Sequences (prompts) must not share an id unless they are
            one; one that is split over ranks must be counted by the caller.
        constant: Dr.GRPO's constant, for ``aggregation="constant"`` only.
        group: process group to sum over; ``torch.distributed.group.WORLD`` for all ranks, None for this process alone.
        device: where the count lives for the all-reduce; default: the mask's, or the CPU for a count.

    Returns:
        0-d float64 tensor; 0.0 when no rank has a trained token.
    """
    check_choice("aggregation", aggregation, AGGREGATIONS)
    if (aggregation == "constant") != (constant is not None):
        raise ValueError(f"constant: expected a number with aggregation 'constant' and only there, got {constant}")
    count = _local_count(mask_or_count, aggregation, sequence_ids)
    total = torch.as_tensor(count, dtype=torch.float64, device=device)
    if group is not None and dist.is_initialized():
        total = total.clone()
        dist.all_reduce(total, group=group)
    if constant is not None:
        check_positive("constant", constant)
        total = total * constant
    return total


def _local_count(
    mask_or_count: Tensor | Sequence[Tensor] | float, aggregation: str, sequence_ids: Tensor | Sequence[Tensor] | None
) -> Tensor | float:
    if isinstance(mask_or_count, int | float):
        return mask_or_count
    if isinstance(mask_or_count, Tensor) and mask_or_count.dim() == 0:
        return mask_or_count.detach()
    masks = [mask_or_count] if isinstance(mask_or_count, Tensor) else list(mask_or_count)
    if aggregation == "token_mean":
        return sum((flatten(mask, None).mask_N.sum() for mask in masks), torch.zeros(()))
    if sequence_ids is None:
        if aggregation == "prompt_mean":
            raise ValueError("sequence_ids: needed for prompt_mean (the prompt of every token), got None")
        return sum(((flatten(mask, None).sequence_lengths() > 0).sum() for mask in masks), torch.zeros(()))
    ids = [sequence_ids] if isinstance(sequence_ids, Tensor) else list(sequence_ids)
    if len(ids) != len(masks):
        raise ValueError(f"sequence_ids: expected {len(masks)} tensors (one per mask), got {len(ids)}")
    for mask, own in zip(masks, ids, strict=True):
        check_shape("sequence_ids", own, mask.shape, "mask")
    return torch.unique(torch.cat([own[mask] for mask, own in zip(masks, ids, strict=True)])).numel()


def gradient_scale(group: dist.ProcessGroup | None = None) -> int:
    """What a rank's loss is multiplied by when gradients are averaged over ``group``: its world size (1 for None).

    mean over ranks of (world × local sum / global denominator) = global sum / global denominator.
    """
    return dist.get_world_size(group) if group is not None and dist.is_initialized() else 1
