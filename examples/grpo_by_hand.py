"""GRPO by hand: a tiny policy learns to walk to the goal of a 5 × 5 room. grpo-core and torch only; well under a minute.

Each step: 16 tasks (start, goal) × 8 samples walk at most 10 moves; 1.0 for reaching the goal, else 0.0; advantages inside
each task's group; two inner updates in micro-batches that share one denominator. Run: ``python examples/grpo_by_hand.py``.
"""

import torch

from grpo_core import (
    LRSchedule,
    accumulate_gradients,
    group_advantages,
    guarded_step,
    metric_means,
    policy_loss,
    set_lr,
    step_denominator,
    token_budget_batches,
    token_logprobs,
)

SIDE, MOVES, TASKS, GROUP, STEPS = 5, 10, 16, 8, 60
DELTAS = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])  # up, down, left, right


class Policy(torch.nn.Module):
    """Where am I, where is the goal → hidden state; the head's four rows are the moves."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4 * SIDE, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32), torch.nn.Tanh()
        )
        self.head = torch.nn.Linear(32, len(DELTAS), bias=False)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Places [N, 4] (row, column, goal row, goal column) → hidden states [N, 32]."""
        return self.body(torch.nn.functional.one_hot(places, SIDE).flatten(1).float())


def make_tasks(count: int, draw: torch.Generator) -> torch.Tensor:
    """[count, 4]: starts and goals that differ."""
    cells = torch.stack([torch.randperm(SIDE * SIDE, generator=draw)[:2] for _ in range(count)])
    return torch.stack((cells // SIDE, cells % SIDE), dim=-1).flatten(1)


@torch.no_grad()
def walk(policy: Policy, tasks: torch.Tensor, draw: torch.Generator) -> dict[str, torch.Tensor]:
    """Let every row of ``tasks`` walk; places [N, T, 4], moves [N, T], mask [N, T], old log-probs [N, T], rewards [N]."""
    here, goal = tasks[:, :2].clone(), tasks[:, 2:]
    alive, record = torch.ones(len(tasks), dtype=torch.bool), []
    for _ in range(MOVES):
        places = torch.cat((here, goal), dim=1)
        hidden = policy(places)
        moves = torch.multinomial(policy.head(hidden).softmax(-1), 1, generator=draw).squeeze(1)
        record.append((places, moves, alive.clone(), token_logprobs(hidden, policy.head.weight, moves)[0]))
        here = torch.where(alive[:, None], (here + DELTAS[moves]).clamp(0, SIDE - 1), here)
        alive &= (here != goal).any(1)
    places, moves, mask, old = (torch.stack(column, dim=1) for column in zip(*record, strict=True))
    return {"places": places, "moves": moves, "mask": mask, "old": old, "rewards": (~alive).float()}


def main() -> None:
    """Train and print the curve."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1.0, weight_decay=0.01)
    schedule = LRSchedule(peak=1e-2, kind="linear", total_steps=STEPS, warmup_steps=3, final_fraction=0.1)
    for step in range(STEPS):
        tasks = make_tasks(TASKS, draw).repeat_interleave(GROUP, dim=0)
        uids = torch.arange(TASKS).repeat_interleave(GROUP)
        rollout = walk(policy, tasks, draw)
        advantages = group_advantages(rollout["rewards"], uids)
        mask = rollout["mask"] & (advantages != 0)[:, None]  # groups without a difference teach nothing
        batches = token_budget_batches(mask.sum(1).tolist(), budget=400)
        total = step_denominator([mask[batch] for batch in batches])
        set_lr(optimizer, schedule.lr_at(step))

        def loss_of(
            batch: list[int], rollout=rollout, mask=mask, advantages=advantages, total=total
        ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            chosen = mask[batch]  # only trained tokens meet the model: packed [N]
            hidden = policy(rollout["places"][batch][chosen])
            logprobs, _ = token_logprobs(hidden, policy.head.weight, rollout["moves"][batch][chosen])
            per_token = advantages[batch][:, None].expand_as(chosen)[chosen]
            old, everything = rollout["old"][batch][chosen], torch.ones_like(logprobs, dtype=torch.bool)
            return policy_loss(logprobs, old, per_token, everything, denominator=total)

        for _ in range(2):
            metrics = metric_means(accumulate_gradients(batches, loss_of))
            outcome = guarded_step(optimizer, policy.parameters(), max_norm=1.0)
        if step % 5 == 0 or step == STEPS - 1:
            solved = float(rollout["rewards"].mean())
            clipped = metrics["policy/clip_low"] + metrics["policy/clip_high"]
            print(
                f"step {step:3d}  solved {solved:.2f}  {'#' * round(40 * solved):<40}  "
                f"clipped {clipped:.3f}  grad norm {outcome.grad_norm:.2f}"
            )


if __name__ == "__main__":
    main()
