"""The learner: samples with advantages in, one optimizer step (or several) out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from grpo_core import (
    StepOutcome,
    all_reduce_metrics,
    balance_over_ranks,
    guarded_step,
    kl_loss,
    merge_metrics,
    metric_means,
    policy_loss,
    set_lr,
    step_denominator,
)
from grpo_runner.agreement import Gap
from grpo_runner.columns import Columns, columns
from grpo_runner.ledger import Sample
from grpo_runner.policy import Policy, save_weights
from grpo_runner.scoring import Entry, Metrics, Scored, Scorer
from grpo_runner.training_state import copied, read_state, training_state, write_state
from grpo_runner.world import World


@dataclass(frozen=True)
class LossSettings:
    """What the loss is made of."""

    kind: str
    clip_low: float
    clip_high: float
    kl: float  # coefficient of k3; 0 leaves the reference out
    entropy: float  # bonus coefficient


@dataclass(frozen=True)
class Batch:
    """The samples of one rollout, priced."""

    samples: Sequence[Sample]
    advantages: torch.Tensor  # float [samples]
    kept: torch.Tensor  # bool [samples]: False leaves a sample out of the loss and of its denominator

    def __reduce__(self) -> tuple[type[Batch], tuple[Columns, torch.Tensor, torch.Tensor]]:
        return Batch, (columns(self.samples), self.advantages, self.kept)  # what travels to other ranks


@dataclass(frozen=True)
class Share:
    """This rank's part of some sequences; in one process that is all of them."""

    entries: list[Entry]
    filler: Entry | None  # what a rank scores, for nobody, while others have more to do; None: nobody has anything


@dataclass
class Plan:
    """One optimizer step, laid out."""

    samples: Sequence[Sample]
    advantages: torch.Tensor  # float [samples]
    kept: torch.Tensor  # bool [samples]
    denominator: torch.Tensor  # kept trained tokens
    spoken: Share  # sequences that have a gradient
    idle: Share  # the others; they still count in the denominator
    old: list[torch.Tensor] | None = None  # log-probs before the first step, one [trained] per spoken entry; None: its own


class Learner:
    """Holds the weights that are trained and their optimizer: all of it, or one rank's part."""

    def __init__(
        self,
        policy: Policy,
        scorer: Scorer,
        *,
        weight_decay: float,
        max_norm: float,
        world: World | None = None,
    ) -> None:
        """
        Args:
            world: the ranks that learn together; each takes its share of every step, and all must be called alike.
        """
        self.policy = policy
        self.scorer = scorer
        self._world = world
        self._group = world.control if world is not None else None
        sharded = [p for p in policy.trained.values() if isinstance(p, DTensor)]
        self._whole = [p for p in policy.trained.values() if not isinstance(p, DTensor)]
        parts = [{"params": part} for part in (sharded, self._whole) if part]
        self.optimizer = torch.optim.AdamW(parts, lr=0.0, weight_decay=weight_decay, betas=(0.9, 0.95))
        self._max_norm = max_norm

    @property
    def ranks(self) -> int:
        return 1 if self._world is None else self._world.size

    def policy_step(
        self,
        batch: Batch,
        groups: Sequence[Sequence[int]],
        *,
        loss: LossSettings,
        lr: Callable[[int], float],
        verify: float | None,
    ) -> dict[str, float]:
        """Update on one rollout, in one optimizer step per group of samples.

        Args:
            groups: sample numbers of each optimizer step.
            lr: number of the optimizer step inside this update -> learning rate.
            verify: largest allowed |sampler - learner| log-prob difference; None does not compare.

        Raises:
            DisagreementError: the sampler and the learner differ by more than `verify`; nothing was updated.
        """
        self.optimizer.zero_grad(set_to_none=True)  # an update that was refused half-way left its gradients
        plans = [self.plan(batch, members, loss) for members in groups]
        gap = Gap()
        self.score_now(plans[1:], gap)
        parts, outcomes = [], []
        for number, plan in enumerate(plans):
            compares = number == 0 and (verify is not None or len(plans) > 1)
            parts.append(self.gradient(plan, loss, gap if compares else None))
            if number == 0:  # nothing was updated so far
                gap = gap.of_all(self._group)
                gap.check(verify)
            outcomes.append(self._step(lr(number)))
        metrics = all_reduce_metrics(merge_metrics(parts), self._group)
        return metric_means(metrics | gap.metrics()) | {
            "optim/grad_norm": max(o.grad_norm for o in outcomes),
            "optim/skipped_steps": float(sum(o.skipped for o in outcomes)),
            "optim/lr": lr(len(plans) - 1),
        }

    def plan(self, batch: Batch, members: Sequence[int], loss: LossSettings) -> Plan:
        """Lay out one optimizer step. Sequences without a gradient (equal rewards, nothing else in the loss) stand apart."""
        samples = [batch.samples[m] for m in members]
        advantages, kept = batch.advantages[list(members)], batch.kept[list(members)]
        tokens = sum(len(s.trained) for s, keep in zip(samples, kept.tolist(), strict=True) if keep)
        speaks = (kept if loss.kl or loss.entropy else kept & (advantages != 0)).tolist()
        spoken: list[Entry] = []
        idle: list[Entry] = []
        for entry in self.scorer.entries(samples):
            (spoken if any(speaks[use] for use in entry.uses) else idle).append(entry)
        return Plan(samples, advantages, kept, step_denominator(float(tokens)), self._share(spoken), self._share(idle))

    def _share(self, entries: list[Entry]) -> Share:
        return Share(entries, None) if self._world is None else share_of(entries, self._world.rank, self._world.size)

    def score_now(self, plans: Sequence[Plan], gap: Gap) -> None:
        """Leave in each plan the current log-probs of its sequences with a gradient, from the very batches that train them.

        The first optimizer step of an update needs none: its own are the old ones.
        """
        shares = [share for plan in plans for share in (plan.spoken, plan.idle)]
        filler = next((share.filler for share in shares if share.filler is not None), None)
        scores = self.scorer.logprobs_of_each([share.entries for share in shares], filler=filler, group=self._group)
        for plan, spoken, idle in zip(plans, scores[::2], scores[1::2], strict=True):
            plan.old = spoken
            gap.compare_each([*plan.spoken.entries, *plan.idle.entries], plan.samples, [*spoken, *idle])

    def logprobs(self, samples: Sequence[Sample], *, adapter: bool = True) -> list[torch.Tensor]:
        """Return the log-probs of each sample's trained tokens under the current weights: one [trained] per sample.

        Args:
            adapter: False: by the base model.
        """
        entries = self.scorer.entries(samples)
        together = entries[0] if self._group is not None and entries else None  # every rank scores all of them
        with nullcontext() if adapter else self._adapter_off():
            scores = self.scorer.logprobs(entries, filler=together, group=self._group)
        found = {use: score for entry, score in zip(entries, scores, strict=True) for use in entry.uses}
        return [found[n] for n in range(len(samples))]

    def gradient(self, plan: Plan, loss: LossSettings, gap: Gap | None) -> Metrics:
        """Leave the gradient of one optimizer step in `.grad`: token mean over all its kept tokens.

        Without old log-probs in the plan the current ones stand in for them, so that every ratio is exactly 1.
        """
        share = plan.spoken
        reference: list[torch.Tensor] | None = None
        if loss.kl:
            with self._adapter_off():
                reference = self.scorer.logprobs(share.entries, filler=share.filler, group=self._group)
        places = {id(entry): n for n, entry in enumerate(share.entries)}

        def of_uses(each: list[torch.Tensor] | None, entries: Sequence[Entry]) -> torch.Tensor | None:
            return joined([each[places[id(e)]] for e in entries for _ in e.uses]) if each is not None else None

        def loss_of(scored: Scored, entries: Sequence[Entry]) -> tuple[torch.Tensor, Metrics]:
            return self._loss(scored, of_uses(plan.old, entries), of_uses(reference, entries), plan, loss)

        metrics, scores = self.scorer.backward(share.entries, loss_of, entropy=True, filler=share.filler, group=self._group)
        if self._group is not None and share.filler is not None:
            sum_gradients(self._whole, self._group)
        if gap is not None:
            idle = self.scorer.logprobs(plan.idle.entries, filler=plan.idle.filler, group=self._group)
            gap.compare_each([*share.entries, *plan.idle.entries], plan.samples, [*scores, *idle])
        return metrics

    def _loss(
        self,
        scored: Scored,
        old: torch.Tensor | None,
        reference: torch.Tensor | None,
        plan: Plan,
        loss: LossSettings,
    ) -> tuple[torch.Tensor, Metrics]:
        mask, denominator = plan.kept[scored.use], plan.denominator
        value, metrics = policy_loss(
            scored.logprobs,
            old if old is not None else scored.logprobs.detach(),
            plan.advantages[scored.use],
            mask,
            denominator=denominator,
            kind=loss.kind,
            clip_low=loss.clip_low,
            clip_high=loss.clip_high,
            sequence_ids=scored.use,
            entropy=scored.entropy,
        )
        if loss.entropy and scored.entropy is not None:
            value = value - loss.entropy * torch.where(mask, scored.entropy, 0.0).sum() / denominator
        if reference is not None:
            extra, more = kl_loss(scored.logprobs, reference, mask, denominator=denominator, kind="k3")
            value, metrics = value + loss.kl * extra, metrics | more
        return value, metrics

    def _step(self, lr: float) -> StepOutcome:
        set_lr(self.optimizer, lr)
        return guarded_step(self.optimizer, self.policy.trained.values(), max_norm=self._max_norm)

    def _adapter_off(self) -> AbstractContextManager[None]:
        return self.policy.peft.disable_adapter() if self.policy.peft is not None else nullcontext()

    def weights(self) -> dict[str, torch.Tensor]:
        """Return every trained weight whole, by name. Without ranks these are the weights themselves, no copy."""
        return {name: whole(parameter.detach()) for name, parameter in self.policy.trained.items()}

    def save(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """Write weights that `weights` returned: a plain PEFT adapter folder with LoRA, a model folder without."""
        save_weights(self.policy, folder, weights)

    def close(self) -> None:
        """Nothing has to be ended in one process."""

    def snapshot(self) -> Callable[[Path], None]:
        """Copy weights and optimizer state; what is returned writes the copy into a folder, also while training goes on.

        With ranks all of them must write, each its own part.
        """
        state = copied(training_state(self.policy.trained, self.optimizer))
        group = self._world.saving if self._world is not None else None
        return lambda folder: write_state(folder, state, group)

    def load(self, folder: Path) -> None:
        """Read what a snapshot wrote, on whatever number of ranks.

        Raises:
            ValueError: the folder's weights are not those that are trained here.
        """
        read_state(folder, self.policy.trained, self.optimizer, self._group)


def share_of(entries: list[Entry], rank: int, ranks: int) -> Share:
    """Return one rank's part: neighbours, since they are of the same tasks, whose pictures are then encoded on one rank."""
    if not entries:
        return Share([], None)
    mine = balance_over_ranks([len(e.row.ids) for e in entries], ranks, neighbours=True)[rank]
    return Share([entries[n] for n in mine], replace(entries[0], uses=()))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a sharded tensor; others are returned as they are. All ranks must call alike."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate; nothing gives an empty tensor."""
    return torch.cat(list(parts)) if parts else torch.zeros(0)


def sum_gradients(parameters: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Sum over ranks the gradients of weights that every rank holds whole; one that a rank lacks counts as 0."""
    there = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
    dist.all_reduce(there, op=dist.ReduceOp.MAX, group=group)
    for parameter, anywhere in zip(parameters, there.tolist(), strict=True):
        if anywhere:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
