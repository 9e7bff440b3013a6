"""Functions with the usual faults, for showing that the suite finds them. Never an example."""

import math

import numpy as np
import torch


def advantages(rewards, uids, estimator="grpo", scale="std", ddof=1, eps=1e-6, lengths=None):
    # Fixed stride, population deviation, float32 without a guard.
    values = np.array([0.0 if reward is None else reward for reward in rewards], dtype=np.float32)
    size = uids.count(uids[0])
    result = []
    for start in range(0, len(values), size):
        group = values[start : start + size]
        total = np.float32(0)
        for value in group:
            total = np.float32(total + value)
        centred = group - np.float32(total / np.float32(len(group)))
        spread = centred.std() if len(group) > 1 else 1.0
        result += (centred / (spread + eps) if len(group) > 1 else group).tolist()
    return result


def returns(rewards, mask, gamma):
    # The running return is set to zero at every observation.
    out = []
    for row, chosen in zip(rewards, mask, strict=True):
        running, line = 0.0, []
        for reward, own in zip(reversed(row), reversed(chosen), strict=True):
            running = (reward + gamma * running) * own
            line.insert(0, running)
        out.append(line)
    return out


def whiten(values, mask):
    flat = torch.tensor(values).float()
    return ((flat - flat.mean()) / flat.std() * torch.tensor(mask)).tolist()


def policy_loss(logprobs, old_logprobs, advantages, mask, denominator, kind="ppo", clip_low=0.2, clip_high=0.2, **ignored):
    # Token ratios for every kind, no dual clip, masks by multiplication.
    new = torch.tensor(logprobs).float().requires_grad_()
    ratio = (new - torch.tensor(old_logprobs).float()).exp()
    advantage = torch.tensor(advantages).float()
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip_low, 1 + clip_high))
    total = (loss * torch.tensor(mask)).sum() / torch.tensor(mask).sum()
    return {"loss": total.item(), "gradient": torch.autograd.grad(total, new)[0].tolist(), "ratio_max": 1, "clip_fraction": 0}


def kl_loss(logprobs, ref_logprobs, mask, denominator, kind):
    new = torch.tensor(logprobs).float().requires_grad_()
    d = new - torch.tensor(ref_logprobs).float()
    value = {"k1": d, "k2": d.square() / 2}.get(kind, d.exp() - d - 1).sum()  # k3 with the two swapped
    return {"loss": value.item(), "gradient": torch.autograd.grad(value, new)[0].tolist()}


def logprobs(logits, targets, temperature=1.0, banned_ids=None):
    distribution = torch.tensor(logits).float().log_softmax(-1)
    entropy = -(distribution.exp() * distribution).sum(-1)
    return {"logprobs": distribution[range(len(targets)), targets].tolist(), "entropy": entropy.tolist()}


def aggregate(losses, mask, micro_batches, aggregation, constant=None, prompts=None):
    means = []
    for batch in micro_batches:
        if aggregation == "token_mean":
            values = [value * own for row in batch for value, own in zip(losses[row], mask[row], strict=True)]
            means.append(sum(values) / sum(own for row in batch for own in mask[row]))
        else:
            rows = [sum(v * m for v, m in zip(losses[r], mask[r], strict=True)) / max(sum(mask[r]), 1) for r in batch]
            means.append(sum(rows) / len(rows))
    return sum(means) / len(means)


def step(rows, *, micro_batches, layout, aggregation, kind, dtype, constant, distributed):
    # Every micro-batch is divided by its own padded size.
    gradient = [[0.0] * len(row["mask"]) for row in rows]
    total = 0.0
    for batch in micro_batches:
        size = len(batch) * layout.get("width", 10)
        for row in batch:
            own = rows[row]
            for place, chosen in enumerate(own["mask"]):
                slope = -own["advantages"][place] * chosen / size / len(micro_batches)
                gradient[row][place] = slope * math.exp(own["logprobs"][place] - own["old_logprobs"][place])
                total += gradient[row][place]
    return {"loss": total, "gradient": gradient}


adapter = {
    "advantages": advantages,
    "returns": returns,
    "whiten": whiten,
    "policy_loss": policy_loss,
    "kl_loss": kl_loss,
    "logprobs": logprobs,
    "aggregate": aggregate,
    "step": step,
}
