"""GiGPO: credit for single steps, from the other visits to the same state of the same task.

Axes: S steps of all episodes together, E episodes. GiGPO, arXiv 2505.10978.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import check_choice
from .advantages import group_advantages

EPISODE_MEANS = ("episode", "step")


@dataclass(frozen=True)
class StepAdvantages:
    """GiGPO's parts, all [S] and in the order of the steps given."""

    total: Tensor
    """episode + step_weight · step."""
    episode: Tensor
    """How the whole episode compares with the task's other episodes; the same on all its steps."""
    step: Tensor
    """How the return from here compares with the other visits to this state; 0 for a state seen once."""
    returns: Tensor
    """Discounted return of each step."""


def gigpo_advantages(
    rewards: Tensor | Sequence[float | None],
    uids: Sequence[Hashable],
    episodes: Sequence[Hashable],
    state_keys: Sequence[Hashable],
    *,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    scale: str = "none",
    episode_mean: str = "episode",
    eps: float = 1e-6,
) -> StepAdvantages:
    """A = A_episode + step_weight · A_step for every step.

    A_episode compares an episode's summed reward within its task, A_step the discounted return G_t = Σ γ^(k−t) r_k
    within the steps of the same task *and* state. The state key comes from the environment (say, maze and cell): hashing
    pixels would split one state over pictures that differ in nothing that matters.

    Args:
        rewards: [S] rewards of the steps; an episode with a None (or NaN) among them is left out and gets 0.
        uids: [S] task of each step.
        episodes: [S] episode of each step, unique over all tasks; its steps stand in order of time.
        state_keys: [S] hashable state in which the step was taken.
        gamma: discount per step.
        step_weight: w above.
        scale: ``none`` or ``std``, for both parts, as in ``group_advantages``.
        episode_mean: ``episode`` counts each episode once; ``step`` once per step, as verl-agent does, so that long
            episodes weigh more.
        eps: added to the standard deviation.
    """
    check_choice("scale", scale, ("none", "std"))
    check_choice("episode_mean", episode_mean, EPISODE_MEANS)
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma: expected 0 to 1, got {gamma}")
    rewards_S = _read(rewards)
    for name, ids in (("uids", uids), ("episodes", episodes), ("state_keys", state_keys)):
        if len(ids) != rewards_S.numel():
            raise ValueError(f"{name}: expected shape ({rewards_S.numel()},) (one per reward), got ({len(ids)},)")
    steps_of = _steps_of(uids, episodes)
    returns_S, scores_S = torch.zeros_like(rewards_S), torch.zeros_like(rewards_S)
    for steps in steps_of.values():
        scores_S[steps] = rewards_S[steps].sum()  # NaN if one of them is
        running = rewards_S.new_zeros(())
        for step in reversed(steps):
            running = rewards_S[step] + gamma * running
            returns_S[step] = running
    returns_S = torch.where(torch.isnan(scores_S), scores_S, returns_S)
    step_S = group_advantages(returns_S, list(zip(uids, state_keys, strict=True)), scale=scale, eps=eps)
    if episode_mean == "step":
        episode_S = group_advantages(scores_S, uids, scale=scale, eps=eps)
    else:
        first = [steps[0] for steps in steps_of.values()]
        episode_E = group_advantages(scores_S[first], [uids[step] for step in first], scale=scale, eps=eps)
        episode_S = torch.zeros_like(scores_S)
        for number, steps in enumerate(steps_of.values()):
            episode_S[steps] = episode_E[number]
    returns_S = torch.nan_to_num(returns_S)
    return StepAdvantages(*(part.float() for part in (episode_S + step_weight * step_S, episode_S, step_S, returns_S)))


def _read(rewards: Tensor | Sequence[float | None]) -> Tensor:
    if isinstance(rewards, Tensor):
        if rewards.dim() != 1:
            raise ValueError(f"rewards: expected shape [S], got {tuple(rewards.shape)}")
        return rewards.detach().cpu().double()
    return torch.tensor([float("nan") if reward is None else float(reward) for reward in rewards], dtype=torch.float64)


def _steps_of(uids: Sequence[Hashable], episodes: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    steps_of: dict[Hashable, list[int]] = {}
    for step, episode in enumerate(episodes):
        steps_of.setdefault(episode, []).append(step)
    for episode, steps in steps_of.items():
        if len({uids[step] for step in steps}) > 1:
            raise ValueError(f"episodes: expected one uid per episode, got several for episode {episode!r}")
    return steps_of
