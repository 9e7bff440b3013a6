"""Metrics that survive micro-batches and ranks: sums and counts, turned into means only at the very end.

A metrics dict maps a name to a detached 0-d tensor. The name says how two of them are joined:
``…_max`` and ``…_min`` by maximum and minimum, everything else by addition. ``scope/x_sum`` over ``scope/tokens`` is the
mean of x, and ``scope/x_seq_sum`` over ``scope/sequences`` likewise.
"""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

Metrics = dict[str, Tensor]


def merge_metrics(parts: Iterable[Mapping[str, Tensor]]) -> Metrics:
    """Join the metrics of several micro-batches into those of all of them."""
    merged: Metrics = {}
    for part in parts:
        for name, value in part.items():
            merged[name] = _join(name, merged[name], value) if name in merged else value
    return merged


def _join(name: str, left: Tensor, right: Tensor) -> Tensor:
    if name.endswith("_max"):
        return torch.maximum(left, right)
    if name.endswith("_min"):
        return torch.minimum(left, right)
    return left + right


def all_reduce_metrics(metrics: Mapping[str, Tensor], group: dist.ProcessGroup | None = None) -> Metrics:
    """Join the metrics of all ranks of ``group`` (None: leave them as they are). All ranks must hold the same names."""
    if group is None or not dist.is_initialized():
        return dict(metrics)
    reduced: Metrics = {}
    for name in sorted(metrics):
        value = metrics[name].clone()
        op = dist.ReduceOp.SUM
        if name.endswith("_max"):
            op = dist.ReduceOp.MAX
        elif name.endswith("_min"):
            op = dist.ReduceOp.MIN
        dist.all_reduce(value, op=op, group=group)
        reduced[name] = value
    return reduced


def metric_means(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Plain numbers for a log: ``…_sum`` becomes the mean per token (per sequence), the rest is passed through.

    A mean over nothing is 0.0, not NaN: a step without trained tokens must not poison a chart.
    """
    means: dict[str, float] = {}
    for name, value in metrics.items():
        scope = name.rpartition("/")[0]
        if name.endswith("_seq_sum"):
            means[name.removesuffix("_seq_sum")] = _mean(value, metrics[f"{scope}/sequences"])
        elif name.endswith("_sum"):
            means[name.removesuffix("_sum")] = _mean(value, metrics[f"{scope}/tokens"])
        else:
            means[name] = float(value)
    return means


def _mean(total: Tensor, count: Tensor) -> float:
    return float(total / count) if float(count) > 0 else 0.0
