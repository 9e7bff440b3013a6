"""What must not change a step's gradient, as checks for any adapter: splitting, ranks, padding, packing, order, scale.

Every check takes the adapter and returns differences; an empty list passes. The batches are drawn from a fixed seed.
"""

import datetime
import multiprocessing
import random
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .conformance import AdapterError, differences, function_of, resolve_adapter

TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
_PLAIN = {"form": "padded", "side": "right", "width": 12}
_ALL = [[0, 1, 2, 3, 4, 5, 6, 7]]
_RANK_ROWS = ([0, 1, 2, 3, 4], [5, 6, 7])
_RANK_BATCHES = ([[0, 1], [2, 3], [4]], [[0, 1], [2]])
_TIMEOUT = datetime.timedelta(seconds=600)

Rows = list[dict[str, list[Any]]]


def make_rows(seed: int = 0) -> Rows:
    """Eight sequences of 1 to 12 tokens with holes in their masks, one of them without any trained token."""
    draw = random.Random(seed)
    rows: Rows = []
    for place in range(8):
        length = 12 if place == 0 else draw.randint(1, 11)
        old = [-draw.expovariate(1.0) for _ in range(length)]
        mask = [0 if place == 5 else int(draw.random() < 0.7) for _ in range(length)]
        mask[-1] = 0 if place == 5 else 1
        rows.append(
            {
                "logprobs": [value + draw.gauss(0, 0.25) for value in old],
                "old_logprobs": old,
                "advantages": [draw.gauss(0, 1)] * length,
                "mask": mask,
            }
        )
    return rows


def _settings() -> Iterator[dict[str, Any]]:
    aggregations = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant")
    for aggregation, kind, dtype in product(aggregations, ("ppo", "gspo"), TOLERANCE):
        constant = 16.0 if aggregation == "constant" else None
        yield {"aggregation": aggregation, "kind": kind, "dtype": dtype, "constant": constant}


def _needed(adapter: Any, name: str) -> Callable[..., Any]:
    function = function_of(adapter, name)
    if function is None:
        raise AdapterError(f"adapter: offers no function {name!r}")
    return function


def _same_step(adapter: Any, variants: dict[str, tuple[list[list[int]], dict[str, Any]]]) -> list[str]:
    """Every variant (micro-batches, layout) must give the loss and gradient of one right-padded batch."""
    step, rows, found = _needed(adapter, "step"), make_rows(), []
    for setting in _settings():
        whole = step(rows, micro_batches=_ALL, layout=_PLAIN, distributed=False, **setting)
        for name, (micro_batches, layout) in variants.items():
            other = step(rows, micro_batches=micro_batches, layout=layout, distributed=False, **setting)
            place = f"{name}, {setting['aggregation']}, {setting['kind']}, {setting['dtype']}"
            found += differences(whole, other, TOLERANCE[setting["dtype"]], place)
    return found


def micro_batches(adapter: Any) -> list[str]:
    """1, 2 and 4 micro-batches, even and uneven: the same gradient."""
    splits = {
        "2 micro-batches": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "2 uneven micro-batches": [[0], [1, 2, 3, 4, 5, 6, 7]],
        "4 micro-batches": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "4 micro-batches, one all-masked": [[0, 1, 2], [3, 4], [5], [6, 7]],
    }
    return _same_step(adapter, {name: (split, _PLAIN) for name, split in splits.items()})


def padding(adapter: Any) -> list[str]:
    """Padded on the left and on the right, to two lengths: the same gradient."""
    layouts = {
        f"padded {side} to {width}": {"form": "padded", "side": side, "width": width}
        for side, width in product(("left", "right"), (12, 20))
    }
    return _same_step(adapter, {name: (_ALL, layout) for name, layout in layouts.items()})


def packing(adapter: Any) -> list[str]:
    """Packed without padding, in one and in three micro-batches: the same gradient."""
    packed = {"form": "packed"}
    return _same_step(adapter, {"packed": (_ALL, packed), "packed in 3": ([[0, 1, 2], [3, 4, 5], [6, 7]], packed)})


def permutation(adapter: Any) -> list[str]:
    """Rows in another order, padded and packed: the same gradient for each row."""
    order = [[6, 2, 7, 0, 5, 1, 4, 3]]
    return _same_step(adapter, {"permuted": (order, _PLAIN), "permuted, packed": (order, {"form": "packed"})})


def group_order(adapter: Any) -> list[str]:
    """Samples in any order, groups not contiguous, ids of any kind: each sample keeps its advantage."""
    advantages, draw = _needed(adapter, "advantages"), random.Random(1)
    uids = [f"task-{number}" for number in (0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 3)]
    rewards = [draw.random() for _ in uids]
    grouped, found = advantages(rewards, uids), []
    for attempt in range(5):
        order = draw.sample(range(len(uids)), len(uids))
        mixed = advantages([rewards[place] for place in order], [uids[place] for place in order])
        found += differences([grouped[place] for place in order], mixed, 1e-6, f"order {attempt}")
    return found


def affine(adapter: Any) -> list[str]:
    """Rewards a + b r with b > 0: the same GRPO advantages."""
    advantages, draw = _needed(adapter, "advantages"), random.Random(2)
    uids = list("aaaabbbbbcc")
    rewards = [draw.random() for _ in uids]
    plain, found = advantages(rewards, uids, eps=0.0), []
    for shift, factor in ((2.0, 10.0), (-7.0, 0.5), (100.0, 1.0)):
        moved = advantages([shift + factor * reward for reward in rewards], uids, eps=0.0)
        found += differences(plain, moved, 3e-6, f"{shift} + {factor} r")
    return found


def first_inner_step(adapter: Any) -> list[str]:
    """New log-probs equal to the old ones: ratio exactly 1, nothing clipped."""
    policy_loss, found = _needed(adapter, "policy_loss"), []
    for seed, kind in product(range(3), ("ppo", "gspo")):
        row = make_rows(seed)[0]
        result = policy_loss(
            [row["old_logprobs"]], [row["old_logprobs"]], [row["advantages"]], [row["mask"]],
            denominator=float(sum(row["mask"])), kind=kind,
        )  # fmt: skip
        expected = {"ratio_max": 1.0, "clip_fraction": 0.0}
        found += differences(expected, result, 0.0, f"seed {seed}, {kind}")
    return found


def ranks(name: str) -> list[str]:
    """Two gloo processes with 3 and 2 micro-batches, gradients averaged: the gradient of one process.

    Args:
        name: the adapter as ``module:attribute``, for the processes to import.
    """
    adapter = resolve_adapter(name)
    step, rows = _needed(adapter, "step"), make_rows()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results = context.Queue()
        processes = [context.Process(target=_rank, args=(rank, name, folder, results)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_TIMEOUT.total_seconds())
            process.kill()
        if any(process.exitcode != 0 for process in processes):
            return [f"ranks: expected both processes to end, exit codes {[process.exitcode for process in processes]}"]
        averaged = results.get(timeout=10)
    found = []
    for setting, other in zip(_settings(), averaged, strict=True):
        whole = step(rows, micro_batches=_ALL, layout=_PLAIN, distributed=False, **setting)
        place = f"2 ranks, {setting['aggregation']}, {setting['kind']}, {setting['dtype']}"
        found += differences(_shared_gradient(rows, whole["gradient"]), other, TOLERANCE[setting["dtype"]], place)
    return found


def _rank(rank: int, name: str, folder: str, results: Any) -> None:
    store = (Path(folder) / "store").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=_TIMEOUT)
    step = _needed(resolve_adapter(name), "step")
    everything = make_rows()
    own = [everything[place] for place in _RANK_ROWS[rank]]
    averaged = []
    for setting in _settings():
        result = step(own, micro_batches=_RANK_BATCHES[rank], layout=_PLAIN, distributed=True, **setting)
        shared = torch.tensor(_shared_gradient(own, result["gradient"]), dtype=torch.float64)
        dist.all_reduce(shared)
        averaged.append((shared / 2).tolist())
    if rank == 0:
        results.put(averaged)
    dist.barrier()
    dist.destroy_process_group()


def _shared_gradient(rows: Rows, gradient: list[list[float]]) -> list[float]:
    """Gradient of two parameters that all ranks share, through which every log-prob would go: Σ g and Σ g · log p."""
    pairs = [(g, p) for row, own in zip(rows, gradient, strict=True) for g, p in zip(own, row["old_logprobs"], strict=True)]
    return [sum(g for g, _ in pairs), sum(g * p for g, p in pairs)]


INVARIANCES: dict[str, tuple[str, Callable[[Any], list[str]]]] = {
    "micro-batches": ("step", micro_batches),
    "padding": ("step", padding),
    "packing": ("step", packing),
    "permutation": ("step", permutation),
    "group-order": ("advantages", group_order),
    "affine": ("advantages", affine),
    "first-inner-step": ("policy_loss", first_inner_step),
}
"""Name → the adapter's function that it needs, and the check. ``ranks`` stands apart: it needs the adapter's name."""
