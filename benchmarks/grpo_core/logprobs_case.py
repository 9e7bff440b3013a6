"""One measurement in a process of its own: log-probs, GRPO loss and backward on fixed tensors.

    python logprobs_case.py <grpo_core|trl|liger> <frozen|trained> [selected|all]

Prints JSON: seconds by the clock and of CPU work (best of the repetitions), and megabytes that the call needs at its peak
beyond what stood before it: inputs and weights, and, for a trained head, the head's gradient. ``selected`` gives every
candidate the 1,024 trained positions; ``all`` gives the peer all 8,192, as it is used in its own trainer.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

TOKENS, TRAINED, VOCABULARY, SIZE, ROWS = 8192, 1024, 151_936, 1024, 8
MEGABYTE = 2**20


def resident(field: str) -> float:
    """VmRSS or VmHWM of this process in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def reset_peak() -> None:
    """Let VmHWM start again from the present value."""
    Path("/proc/self/clear_refs").write_text("5")


def make_inputs(head: str, vocabulary: int = VOCABULARY, size: int = SIZE) -> dict[str, torch.Tensor]:
    """Hidden states of all positions, head, targets, mask with TRAINED ones, advantages per row."""
    torch.manual_seed(0)
    mask = torch.zeros(ROWS, TOKENS // ROWS, dtype=torch.bool)
    mask[:, -TRAINED // ROWS :] = True
    return {
        "hidden": torch.randn(ROWS, TOKENS // ROWS, size).mul_(0.5).requires_grad_(),
        "weight": torch.randn(vocabulary, size).mul_(0.05).requires_grad_(head == "trained"),
        "targets": torch.randint(0, vocabulary, (ROWS, TOKENS // ROWS)),
        "mask": mask,
        "advantages": torch.randn(ROWS),
    }


def ours(data: dict[str, torch.Tensor], positions: str) -> torch.Tensor:
    """token_logprobs on the trained positions, then policy_loss."""
    from grpo_core import policy_loss, token_logprobs

    mask = data["mask"]
    logprobs, _ = token_logprobs(data["hidden"][mask], data["weight"], data["targets"][mask])
    advantages = data["advantages"][:, None].expand_as(mask)[mask]
    trained = torch.ones_like(logprobs, dtype=torch.bool)
    return policy_loss(logprobs, logprobs.detach(), advantages, trained, denominator=float(TRAINED), clip_high=0.2)[0]


def trl(data: dict[str, torch.Tensor], positions: str) -> torch.Tensor:
    """Full logits of the positions, TRL's selective_log_softmax, and the clipped loss in its form."""
    from trl.trainer.utils import selective_log_softmax

    hidden, targets, mask = shaped(data, positions)
    logprobs = selective_log_softmax(hidden @ data["weight"].T, targets)
    ratio, advantages = (logprobs - logprobs.detach()).exp(), data["advantages"][:, None]
    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return (loss * mask).sum() / mask.sum()


def liger(data: dict[str, torch.Tensor], positions: str) -> torch.Tensor:
    """LigerFusedLinearGRPOLoss without a reference model; not compiled: torch.compile of the loss gains nothing here."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    hidden, targets, mask = shaped(data, positions)
    loss = LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False, compiled=False, chunk_size=ROWS, loss_type="dapo")
    return loss(hidden, data["weight"], targets, mask, data["advantages"])[0]


def shaped(data: dict[str, torch.Tensor], positions: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, targets, mask as [ROWS, T, …]: all positions, or only the trained ones (equally many in each row)."""
    if positions == "all":
        return data["hidden"], data["targets"], data["mask"].float()
    mask, width = data["mask"], TRAINED // ROWS
    return (
        data["hidden"][mask].reshape(ROWS, width, -1),
        data["targets"][mask].reshape(ROWS, width),
        torch.ones(ROWS, width),
    )


def measure(call: Callable[..., torch.Tensor], head: str, positions: str, repetitions: int) -> dict[str, float]:
    """Seconds (by the clock, and of this process's own work) and peak megabytes of loss and backward."""
    call(make_inputs(head, vocabulary=64, size=8), positions).backward()  # loads the libraries
    data = make_inputs(head)
    seconds, work, peaks, loss = [], [], [], None
    for _ in range(repetitions):
        data["hidden"].grad = data["weight"].grad = None
        ctypes.CDLL(None).malloc_trim(0)  # what an earlier call freed is not part of what stands before this one
        before = resident("VmRSS")
        reset_peak()
        start, own = time.perf_counter(), time.process_time()
        loss = call(data, positions)
        loss.backward()
        seconds.append(time.perf_counter() - start)
        work.append(time.process_time() - own)
        kept = data["weight"].numel() * 4 / MEGABYTE if head == "trained" else 0.0
        peaks.append(resident("VmHWM") - before - kept)
    assert loss is not None and data["hidden"].grad is not None
    return {
        "seconds": min(seconds),
        "cpu_seconds": min(work),
        "peak_megabytes": max(peaks),
        "loss": loss.item(),
        "hidden_gradient_norm": data["hidden"].grad.norm().item(),
        "weight_gradient_norm": data["weight"].grad.norm().item() if head == "trained" else 0.0,
    }


if __name__ == "__main__":
    name, head, positions = [*sys.argv[1:], "selected"][:3]
    repetitions = 1 if positions == "all" else 2
    print(json.dumps(measure({"grpo_core": ours, "trl": trl, "liger": liger}[name], head, positions, repetitions)))
