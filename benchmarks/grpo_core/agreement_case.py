"""grpo-core against TRL's own GRPO loss (``GRPOTrainer._compute_loss``) on random batches, gradient by gradient.

``agree``: settings where TRL is right; the largest difference of the gradients, over 20 batches each. ``differ``: settings
where it is not, with the value that the step should have. The trainer is replaced by a stand-in with the fields that
the loss reads, so what runs is TRL's code.
"""

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from trl import GRPOTrainer

from grpo_core import kl_loss, policy_loss, step_denominator

BATCHES = 20


@dataclass(frozen=True)
class Batch:
    """Padded [B, T] tensors of one micro-batch."""

    logprobs: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor


def make_batch(seed: int, rows: int = 4, width: int = 9) -> Batch:
    """Random log-probs and ragged masks."""
    draw = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, width, generator=draw) * 3
    new = old + 0.3 * torch.randn(rows, width, generator=draw)
    ref = old + 0.3 * torch.randn(rows, width, generator=draw)
    mask = torch.arange(width)[None] < torch.randint(1, width + 1, (rows, 1), generator=draw)
    return Batch(new, old, ref, torch.randn(rows, generator=draw), mask)


def trl_gradients(batches: list[Batch], items: int, **settings) -> list[torch.Tensor]:
    """TRL's gradients of one optimizer step; ``items`` is the token count that its generation batch would have."""
    args = SimpleNamespace(
        delta=settings.get("delta"),
        use_bias_correction_kl=False,
        steps_per_generation=settings.get("steps_per_generation", len(batches)),
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
    )
    same = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
    trainer = SimpleNamespace(
        args=args, accelerator=same, model=SimpleNamespace(training=True), _metrics=defaultdict(lambda: defaultdict(list)),
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, _entropy_bonus_enabled=False,
        importance_sampling_level=settings.get("level", "token"), beta=settings.get("beta", 0.0),
        loss_type=settings["loss_type"], epsilon_low=0.2, epsilon_high=settings.get("epsilon_high", 0.28), use_vllm=False,
        vllm_importance_sampling_correction=False, current_gradient_accumulation_steps=len(batches),
        max_completion_length=16,
    )  # fmt: skip
    gradients = []
    for batch in batches:
        new = batch.logprobs.clone().requires_grad_()
        trainer._get_per_token_logps_and_entropies = lambda *a, new=new, **k: (new, torch.zeros_like(new), None)
        ids = torch.zeros_like(batch.mask, dtype=torch.int64)
        inputs = {
            "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids,
            "completion_mask": batch.mask.long(), "advantages": batch.advantages, "old_per_token_logps": batch.old,
            "ref_per_token_logps": batch.ref, "num_items_in_batch": torch.tensor(items),
        }  # fmt: skip
        GRPOTrainer._compute_loss(trainer, None, inputs).backward()
        gradients.append(new.grad)
    return gradients


def our_gradients(batches: list[Batch], aggregation: str, constant=None, beta: float = 0.0, **options) -> list[torch.Tensor]:
    """grpo-core's gradients of the same step."""
    total = step_denominator([batch.mask for batch in batches], aggregation=aggregation, constant=constant)
    gradients = []
    for batch in batches:
        new = batch.logprobs.clone().requires_grad_()
        rest = {"denominator": total, "aggregation": aggregation}
        loss, _ = policy_loss(new, batch.old, batch.advantages[:, None], batch.mask, **rest, **options)
        loss = loss + beta * kl_loss(new, batch.ref, batch.mask, **rest)[0]
        loss.backward()
        gradients.append(new.grad)
    return gradients


def distance(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """Largest absolute difference; NaN counts as infinite."""
    return max(float((a - b).abs().nan_to_num(nan=math.inf).max()) for a, b in zip(left, right, strict=True))


AGREE = {
    "dapo": ({"loss_type": "dapo"}, {"aggregation": "token_mean"}),
    "dapo, KL k3": ({"loss_type": "dapo", "beta": 0.04}, {"aggregation": "token_mean", "beta": 0.04}),
    "dapo, delta": ({"loss_type": "dapo", "delta": 1.5}, {"aggregation": "token_mean", "dual_clip": 1.5}),
    "grpo": ({"loss_type": "grpo"}, {"aggregation": "seq_mean_token_mean"}),
    "grpo, sequence level": (
        {"loss_type": "grpo", "level": "sequence"},
        {"aggregation": "seq_mean_token_mean", "kind": "gspo", "clip_low": 0.2, "clip_high": 0.28},
    ),
    "dr_grpo": ({"loss_type": "dr_grpo"}, {"aggregation": "constant", "constant": 16.0}),
    "cispo, bound 5": (
        {"loss_type": "cispo", "epsilon_high": 5.0},
        {"aggregation": "token_mean", "kind": "cispo", "ratio_min": 0.0, "ratio_max": 5.0},
    ),
    "sapo": ({"loss_type": "sapo"}, {"aggregation": "seq_mean_token_mean", "kind": "sapo"}),
}


def agreement() -> dict[str, float]:
    """Largest gradient difference of every setting, steps of one and of two micro-batches of equally many rows."""
    worst: dict[str, float] = {}
    for name, (theirs, ours) in AGREE.items():
        for seed in range(BATCHES):
            for batches in ([make_batch(seed)], [make_batch(seed), make_batch(seed + 1000)]):
                items = sum(int(batch.mask.sum()) for batch in batches)
                left, right = trl_gradients(batches, items, **theirs), our_gradients(batches, **ours)
                worst[name] = max(worst.get(name, 0.0), distance(left, right))
    return worst


def differences() -> dict[str, dict[str, float | str]]:
    """Gradient norms of a step where the two must differ."""
    short, long = make_batch(1, width=9), make_batch(2, width=30)
    empty = make_batch(3)
    empty = Batch(empty.logprobs, empty.old, empty.ref, empty.advantages, empty.mask & (torch.arange(4) > 0)[:, None])
    poisoned = Batch(torch.where(short.mask, short.logprobs, torch.nan), short.old, short.ref, short.advantages, short.mask)
    both = int(short.mask.sum() + long.mask.sum())
    cases = {
        "bnpo, two micro-batches of unequal tokens": (
            [short, long], {"loss_type": "bnpo"}, both, {"aggregation": "token_mean"}, "mean of the micro-batches' means",
        ),
        "dapo, step = half of an uneven generation batch": (
            [short], {"loss_type": "dapo", "steps_per_generation": 2}, both, {"aggregation": "token_mean"},
            "denominator = the generation batch's tokens / 2, not this step's tokens",
        ),
        "grpo, one row without trained tokens": (
            [empty], {"loss_type": "grpo"}, 0, {"aggregation": "seq_mean_token_mean"}, "the empty row is counted",
        ),
        "cispo with the default epsilon_high 0.28": (
            [short], {"loss_type": "cispo"}, int(short.mask.sum()),
            {"aggregation": "token_mean", "kind": "cispo", "ratio_min": 0.0, "ratio_max": 1.28},
            "0.28 is read as the ratio's bound: every token is scaled down",
        ),
        "NaN on the padding": (
            [poisoned], {"loss_type": "dapo"}, int(short.mask.sum()), {"aggregation": "token_mean"},
            "the mask multiplies: 0 x NaN",
        ),
    }  # fmt: skip
    result = {}
    for name, (batches, theirs, items, ours, cause) in cases.items():
        left, right = trl_gradients(batches, items, **theirs), our_gradients(batches, **ours)
        norm = [math.sqrt(sum(float(g.square().sum()) for g in side)) for side in (left, right)]
        entry = {"trl_gradient_norm": str(norm[0]), "grpo_core_gradient_norm": norm[1], "cause": cause}
        result[name] = entry | {"largest_difference": str(distance(left, right))}
    return result


if __name__ == "__main__":
    print(json.dumps({"agree": agreement(), "differ": differences()}))
