"""grpo-core behind the conformance suite's names: the example for anyone who points the suite at functions of their own.

Every function takes and returns lists and numbers. Offer as many as you have; the rest is reported as skipped.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import images, statistics
from .advantages import group_advantages
from .aggregation import aggregate as aggregate_values
from .aggregation import aggregation_weights, gradient_scale, step_denominator
from .correction import rollout_correction
from .gigpo import gigpo_advantages
from .kl import kl_loss as kl_loss_of
from .logprobs import token_logprobs
from .losses import policy_loss as policy_loss_of
from .metrics import metric_means
from .returns import discounted_returns
from .returns import whiten as whiten_values

Rows = list[list[float]]


def advantages(rewards: list[float | None], uids: list[str], **options: Any) -> list[float]:
    """[N] rewards and ids → [N] advantages. Options: estimator, scale, ddof, eps, lengths."""
    return group_advantages(rewards, uids, **options).tolist()


def returns(rewards: Rows, mask: list[list[int]], gamma: float) -> Rows:
    """[B, T] token rewards and mask → [B, T] discounted returns."""
    return discounted_returns(torch.tensor(rewards).float(), torch.tensor(mask).bool(), gamma=gamma).tolist()


def whiten(values: Rows, mask: list[list[int]]) -> Rows:
    """[B, T] → [B, T] with mean 0 and deviation 1 over the mask."""
    return whiten_values(torch.tensor(values).float(), torch.tensor(mask).bool()).tolist()


def gigpo(rewards: list[float], uids: list[str], episodes: list[str], state_keys: list[str], **options: Any) -> dict:
    """[S] steps → returns, step part and episode part, each [S]."""
    result = gigpo_advantages(rewards, uids, episodes, state_keys, **options)
    return {"returns": result.returns.tolist(), "step": result.step.tolist(), "episode": result.episode.tolist()}


def policy_loss(
    logprobs: Rows, old_logprobs: Rows, advantages: Rows, mask: list[list[int]], denominator: float, **options: Any
) -> dict:
    """[B, T] each → loss, its gradient to the log-probs (None without a graph), largest ratio, clipped share."""
    new, old, chosen = (torch.tensor(column).float() for column in (logprobs, old_logprobs, mask))
    loss, metrics = policy_loss_of(
        new.requires_grad_(), old, torch.tensor(advantages).float(), chosen.bool(), denominator=denominator, **options
    )
    means = metric_means(metrics)
    clipped = means["policy/clip_low"] + means["policy/clip_high"]
    return _with_gradient(loss, new) | {"ratio_max": means["policy/ratio_max"], "clip_fraction": clipped}


def kl_loss(logprobs: Rows, ref_logprobs: Rows, mask: list[list[int]], denominator: float, kind: str) -> dict:
    """[B, T] each → loss (to be added) and its gradient to the log-probs."""
    new = torch.tensor(logprobs).float().requires_grad_()
    reference, chosen = torch.tensor(ref_logprobs).float(), torch.tensor(mask).bool()
    return _with_gradient(kl_loss_of(new, reference, chosen, denominator=denominator, kind=kind)[0], new)


def _with_gradient(loss: Tensor, leaf: Tensor) -> dict:
    gradient = torch.autograd.grad(loss, leaf)[0].tolist() if loss.requires_grad else None
    return {"loss": loss.item(), "gradient": gradient}


def correction(logprobs: Rows, sampler_logprobs: Rows, mask: list[list[int]], **options: Any) -> Rows:
    """[B, T] each → [B, T] factors. Options: kind, level, low, high."""
    old, sampler = torch.tensor(logprobs).float(), torch.tensor(sampler_logprobs).float()
    return rollout_correction(old, sampler, torch.tensor(mask).bool(), **options)[0].tolist()


def logprobs(
    logits: Rows, targets: list[int], temperature: float = 1.0, banned_ids: list[int] | None = None
) -> dict[str, list[float]]:
    """[N, V] logits → log-prob of each target and entropy, [N] each."""
    raw = torch.tensor(logits).float()
    identity = torch.eye(raw.shape[1])  # hidden states @ identity = bias-free logits; −inf has to come by the bias
    finite, barred = raw.nan_to_num(neginf=0.0), torch.isneginf(raw).any(0)
    chosen, entropy = token_logprobs(
        finite, identity, torch.tensor(targets), bias=torch.where(barred, -torch.inf, 0.0), temperature=temperature,
        banned_ids=torch.tensor(banned_ids) if banned_ids else None, chunk_size=2, with_entropy=True,
    )  # fmt: skip
    assert entropy is not None
    return {"logprobs": chosen.tolist(), "entropy": entropy.tolist()}


def aggregate(
    losses: Rows, mask: list[list[int]], micro_batches: list[list[int]], aggregation: str,
    constant: float | None = None, prompts: list[int] | None = None,
) -> float:  # fmt: skip
    """Ragged rows of token losses → the loss of the step, made micro-batch by micro-batch."""
    units = prompts if prompts is not None else list(range(len(losses)))
    parts = [tuple(_flat(column, batch) for column in (losses, mask)) for batch in micro_batches]
    ids = [torch.tensor([units[row] for row in batch for _ in losses[row]]) for batch in micro_batches]
    masks = [chosen.bool() for _, chosen in parts]
    total = step_denominator(masks, aggregation=aggregation, sequence_ids=ids, constant=constant)
    tokens_of = torch.bincount(torch.cat(ids)[torch.cat(masks)], minlength=max(units) + 1)
    result = 0.0
    for (values, _), chosen, own in zip(parts, masks, ids, strict=True):
        weights = aggregation_weights(chosen, aggregation=aggregation, sequence_ids=own, unit_tokens=tokens_of[own])
        result += float(aggregate_values(values, chosen, denominator=total, token_weights=weights))
    return result


def _flat(column: Sequence[Sequence[float]], batch: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([value for row in batch for value in column[row]], dtype=dtype)


def step(
    rows: list[dict[str, list[float]]], *, micro_batches: list[list[int]], layout: dict[str, Any], aggregation: str,
    kind: str, dtype: str, constant: float | None, distributed: bool,
) -> dict[str, Any]:  # fmt: skip
    """One optimizer step's loss and its gradient to every row's log-probs, in the micro-batches and the layout asked for.

    Args:
        rows: one dict per sequence with logprobs, old_logprobs, advantages and mask, each [L].
        micro_batches: which rows go together.
        layout: ``{"form": "packed"}``, or ``{"form": "padded", "side": "left" | "right", "width": T}``.
        aggregation, kind, constant: as in ``policy_loss`` and ``step_denominator``.
        dtype: float32 or float64.
        distributed: these are the rows of one rank; ``torch.distributed`` is initialised, gradients will be averaged.
    """
    precise = getattr(torch, dtype)
    group = torch.distributed.group.WORLD if distributed else None
    laid = [_lay_out(rows, batch, layout, precise) for batch in micro_batches]
    total = step_denominator(
        [mask for *_, mask in laid], aggregation=aggregation, constant=constant, group=group,
        sequence_ids=[ids for ids, *_ in laid] if layout["form"] == "packed" else None,
    )  # fmt: skip
    loss_sum, gradient = 0.0, [[0.0] * len(row["logprobs"]) for row in rows]
    for batch, (ids, new, old, advantage, mask) in zip(micro_batches, laid, strict=True):
        loss, _ = policy_loss_of(
            new.requires_grad_(), old, advantage, mask, denominator=total, kind=kind, aggregation=aggregation,
            sequence_ids=ids if layout["form"] == "packed" else None,
        )  # fmt: skip
        (loss * gradient_scale(group)).backward()
        loss_sum += loss.item()
        assert new.grad is not None
        for row in batch:
            gradient[row] = new.grad[ids == row].tolist()
    return {"loss": loss_sum, "gradient": gradient}


def _lay_out(
    rows: list[dict[str, list[float]]], batch: list[int], layout: dict[str, Any], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Row of every place (−1 on padding), log-probs, old log-probs, advantages, mask."""
    columns = ("logprobs", "old_logprobs", "advantages", "mask")
    flat = [_flat([row[name] for row in rows], batch, dtype) for name in columns]
    ids = torch.tensor([row for row in batch for _ in rows[row]["logprobs"]])
    if layout["form"] == "packed":
        return ids, flat[0], flat[1], flat[2], flat[3].bool()
    width = layout["width"]
    lengths = [len(rows[row]["logprobs"]) for row in batch]
    starts = [place * width + (width - length if layout["side"] == "left" else 0) for place, length in enumerate(lengths)]
    places = torch.cat([torch.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)])
    shape = (len(batch), width)
    padded_ids = torch.full((len(batch) * width,), -1).index_copy(0, places, ids).reshape(shape)
    # NaN on the padding of everything but the mask: a layout that leaks shows at once.
    empty = torch.full((len(batch) * width,), torch.nan, dtype=dtype)
    filled = [empty.index_copy(0, places, column).reshape(shape) for column in flat[:3]]
    mask = torch.zeros(len(batch) * width, dtype=torch.bool).index_copy(0, places, flat[3].bool()).reshape(shape)
    return padded_ids, filled[0], filled[1], filled[2], mask


adapter = {
    "advantages": advantages,
    "returns": returns,
    "whiten": whiten,
    "gigpo": gigpo,
    "policy_loss": policy_loss,
    "kl_loss": kl_loss,
    "correction": correction,
    "logprobs": logprobs,
    "aggregate": aggregate,
    "step": step,
    "overlong_penalty": statistics.soft_overlong_penalty,
    "pass_at_k": statistics.pass_at_k,
    "standard_error": statistics.rate_standard_error,
    "mrope_positions": lambda segments: images.mrope_positions(
        part if isinstance(part, int) else tuple(part) for part in segments
    ).tolist(),
}
