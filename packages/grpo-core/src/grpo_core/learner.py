"""Pieces of an optimizer step that need no trainer: accumulation over micro-batches, and a guard before the step."""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from ._checks import check_choice
from .aggregation import gradient_scale
from .metrics import Metrics, merge_metrics

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class StepOutcome:
    """What became of one optimizer step."""

    grad_norm: float
    """Euclidean norm of all gradients before clipping; nan or inf when the step was skipped."""
    clipped: bool
    """The gradients were scaled down to the maximum norm."""
    skipped: bool
    """The norm was not finite: parameters and optimizer state are what they were."""


def guarded_step(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    parameters: Iterable[Tensor],
    *,
    max_norm: float | None,
    group: dist.ProcessGroup | None = None,
) -> StepOutcome:
    """Clip by the global norm and step; skip a step whose norm is not finite, and say so. Gradients are cleared.

    Args:
        optimizer: any torch optimizer, or several that share the parameters out among them.
        parameters: those whose gradients count, each with ``.grad`` or None.
        max_norm: above 0; None never clips.
        group: ranks that must agree; one non-finite rank makes all of them skip. Sharded gradients (DTensor) bring their
            global norm themselves; for gradients that are already equal on all ranks leave it None.
    """
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"max_norm: expected a number above 0 or None, got {max_norm}")
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = _total_norm(gradients) if gradients else _zero(group)
    grad_norm = float(norm)
    finite = torch.isfinite(norm).to(torch.int32)
    if group is not None and dist.is_initialized():
        dist.all_reduce(finite, op=dist.ReduceOp.MIN, group=group)
    if not bool(finite):
        for each in optimizers:
            each.zero_grad(set_to_none=True)
        return StepOutcome(grad_norm if not math.isfinite(grad_norm) else math.nan, clipped=False, skipped=True)
    clipped = max_norm is not None and grad_norm > max_norm
    if clipped:
        for gradient in gradients:
            gradient.mul_(max_norm / grad_norm)  # type: ignore[operator]
    for each in optimizers:
        each.step()
        each.zero_grad(set_to_none=True)
    return StepOutcome(grad_norm, clipped, skipped=False)


def _total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Norm over sharded and whole gradients together; torch does not mix the two in one call."""
    sharded = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
    whole = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    norms = [torch.nn.utils.get_total_norm(part) for part in (sharded, whole) if part]
    norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def accumulate_gradients(
    micro_batches: Sequence[Batch],
    loss_of: Callable[[Batch], tuple[Tensor, Metrics]],
    *,
    filler: Batch | None = None,
    group: dist.ProcessGroup | None = None,
    reduction: str = "mean",
    inputs: Sequence[Tensor] = (),
    pool: Executor | None = None,
) -> Metrics:
    """Backward of every micro-batch in turn; the gradients in ``.grad`` are then those of the whole step.

    The losses must share the step's denominator (``step_denominator``): they add up, nothing is divided by a count of
    micro-batches here. With ``group`` each loss is multiplied by the world size where averaging over ranks follows,
    and ranks with fewer micro-batches run ``filler`` (an all-masked one) until all have run equally many: a rank that
    stops early leaves the others waiting in their collectives for ever.

    Args:
        micro_batches: of this rank.
        loss_of: micro-batch → (0-d loss with a graph, metrics).
        filler: an all-masked micro-batch; needed when the counts differ between the ranks of ``group``.
        group: the data-parallel process group, or None.
        reduction: what is done with the ranks' gradients afterwards, ``mean`` (what wrappers do unless told otherwise) or
            ``sum`` (losses stay as they are; with a number of ranks that is no power of two, that rounds less).
        inputs: with ``pool``, the leaves whose ``.grad`` is wanted.
        pool: threads that run several micro-batches at a time, for small models on CPU cores (with one thread inside each
            operation). The gradients are added up in the order of the micro-batches, whatever finishes first, so they do
            not depend on the number of threads. ``loss_of`` is then called from those threads.

    Returns:
        The metrics of all micro-batches, merged.

    Raises:
        ValueError: a filler is missing; or ``pool`` without ``inputs``, or on several ranks, whose collectives need an order.
    """
    missing = _most(len(micro_batches), group) - len(micro_batches)
    if missing and filler is None:
        raise ValueError(f"filler: needed, this rank has {missing} micro-batches fewer than another, got None")
    check_choice("reduction", reduction, ("mean", "sum"))
    scale = gradient_scale(group) if reduction == "mean" else 1
    if pool is not None:
        if not inputs or gradient_scale(group) != 1:
            raise ValueError(f"pool: needs inputs and a single rank, got {len(inputs)} inputs on {gradient_scale(group)} ranks")
        return merge_metrics(_accumulate_side_by_side(micro_batches, loss_of, inputs, pool))
    metrics: list[Metrics] = []
    for batch in [*micro_batches, *[filler] * missing]:
        loss, parts = loss_of(batch)  # type: ignore[arg-type]
        (loss * scale).backward()
        metrics.append(parts)
    return merge_metrics(metrics)


def _accumulate_side_by_side(
    micro_batches: Sequence[Batch],
    loss_of: Callable[[Batch], tuple[Tensor, Metrics]],
    inputs: Sequence[Tensor],
    pool: Executor,
) -> list[Metrics]:
    def one(batch: Batch) -> tuple[tuple[Tensor | None, ...], Metrics]:
        with torch.enable_grad():  # the grad mode is each thread's own
            loss, parts = loss_of(batch)
            return torch.autograd.grad(loss, inputs, allow_unused=True), parts

    metrics: list[Metrics] = []
    for gradients, parts in pool.map(one, micro_batches):
        for leaf, gradient in zip(inputs, gradients, strict=True):
            if gradient is None:
                continue
            if leaf.grad is None:
                leaf.grad = gradient.clone(memory_format=torch.contiguous_format)
            else:
                leaf.grad.add_(gradient)
        metrics.append(parts)
    return metrics


def _zero(group: dist.ProcessGroup | None) -> Tensor:
    """0-d float64 where collectives of the group can reach it: NCCL takes no CPU tensors."""
    on_gpu = group is not None and dist.is_initialized() and dist.get_backend(group) == "nccl"
    return torch.zeros((), dtype=torch.float64, device="cuda" if on_gpu else "cpu")


def _most(count: int, group: dist.ProcessGroup | None) -> int:
    if group is None or not dist.is_initialized():
        return count
    most = _zero(group) + count
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    return int(most)
