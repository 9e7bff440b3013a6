"""The learner: samples with advantages in, one optimizer step (or several) out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from grpo_core import StepOutcome, guarded_step, kl_loss, merge_metrics, metric_means, policy_loss, set_lr, step_denominator
from grpo_runner.ledger import Sample
from grpo_runner.policy import Policy
from grpo_runner.scoring import Entry, Metrics, Scored, Scorer


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


@dataclass
class Plan:
    """One optimizer step, laid out."""

    samples: Sequence[Sample]
    advantages: torch.Tensor  # float [samples]
    kept: torch.Tensor  # bool [samples]
    denominator: torch.Tensor  # kept trained tokens
    spoken: list[Entry]  # sequences that have a gradient
    idle: list[Entry]  # the others; they still count in the denominator
    old: list[torch.Tensor] | None = None  # log-probs before the first step, one [trained] per spoken entry


class Learner:
    """Holds the weights that are trained and their optimizer."""

    def __init__(self, policy: Policy, scorer: Scorer, *, weight_decay: float, max_norm: float) -> None:
        self.policy = policy
        self.scorer = scorer
        self.optimizer = torch.optim.AdamW(policy.trained.values(), lr=0.0, weight_decay=weight_decay, betas=(0.9, 0.95))
        self._max_norm = max_norm

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
        plans = [self.plan(batch, members, loss) for members in groups]
        gap = Gap()
        if len(plans) > 1:
            for plan in plans:
                plan.old = self.score_now(plan, gap)
            gap.check(verify)
        parts, outcomes = [], []
        for number, plan in enumerate(plans):
            parts.append(self.gradient(plan, loss, None if len(plans) > 1 or verify is None else gap))
            if len(plans) == 1:
                gap.check(verify)
            outcomes.append(self._step(lr(number)))
        return metric_means(merge_metrics([*parts, gap.metrics()])) | {
            "optim/grad_norm": max(o.grad_norm for o in outcomes),
            "optim/skipped_steps": float(sum(o.skipped for o in outcomes)),
            "optim/lr": lr(len(plans) - 1),
        }

    def plan(self, batch: Batch, members: Sequence[int], loss: LossSettings) -> Plan:
        """Lay out one optimizer step. Sequences without a gradient (equal rewards, nothing else in the loss) stand apart."""
        samples = [batch.samples[m] for m in members]
        advantages, kept = batch.advantages[list(members)], batch.kept[list(members)]
        tokens = sum(len(s.trained) for s, keep in zip(samples, kept.tolist(), strict=True) if keep)
        silent = loss.kl == 0 and loss.entropy == 0
        spoken: list[Entry] = []
        idle: list[Entry] = []
        for entry in self.scorer.entries(samples):
            speaks = any(kept[u] and not (silent and advantages[u] == 0) for u in entry.uses)
            (spoken if speaks else idle).append(entry)
        return Plan(samples, advantages, kept, step_denominator(float(tokens)), spoken, idle)

    def score_now(self, plan: Plan, gap: Gap) -> list[torch.Tensor]:
        """Return the current log-probs of the sequences with a gradient, in the very batches that train them."""
        for entries in (plan.spoken, plan.idle):
            scores = self.scorer.logprobs(entries)
            for entry, logprobs in zip(entries, scores, strict=True):
                gap.compare(entry, plan.samples, logprobs)
            if entries is plan.spoken:
                found = scores
        return found

    def gradient(self, plan: Plan, loss: LossSettings, gap: Gap | None) -> Metrics:
        """Leave the gradient of one optimizer step in `.grad`: token mean over all its kept tokens.

        Without old log-probs in the plan the current ones stand in for them, so that every ratio is exactly 1.
        """
        reference: list[torch.Tensor] | None = None
        if loss.kl:
            with self._adapter_off():
                reference = self.scorer.logprobs(plan.spoken)
        places = {id(entry): n for n, entry in enumerate(plan.spoken)}

        def of_uses(each: list[torch.Tensor] | None, entries: Sequence[Entry]) -> torch.Tensor | None:
            return torch.cat([each[places[id(e)]] for e in entries for _ in e.uses]) if each is not None else None

        def loss_of(scored: Scored, entries: Sequence[Entry]) -> tuple[torch.Tensor, Metrics]:
            return self._loss(scored, of_uses(plan.old, entries), of_uses(reference, entries), plan, loss)

        metrics, scores = self.scorer.backward(plan.spoken, loss_of, entropy=True)
        if gap is not None:
            idle = self.scorer.logprobs(plan.idle)
            for entry, logprobs in zip([*plan.spoken, *plan.idle], [*scores, *idle], strict=True):
                gap.compare(entry, plan.samples, logprobs)
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

    def imitation_step(self, samples: Sequence[Sample], *, lr: float) -> dict[str, float]:
        """One optimizer step on the mean negative log-prob of the trained tokens."""
        denominator = float(sum(len(s.trained) for s in samples))

        def loss_of(scored: Scored, entries: Sequence[Entry]) -> tuple[torch.Tensor, Metrics]:
            value = -scored.logprobs.sum() / denominator
            return value, {"sft/loss": value.detach()}

        metrics, _ = self.scorer.backward(self.scorer.entries(samples), loss_of, entropy=False)
        return {name: float(v) for name, v in metrics.items()} | {"optim/grad_norm": self._step(lr).grad_norm}

    def _step(self, lr: float) -> StepOutcome:
        set_lr(self.optimizer, lr)
        return guarded_step(self.optimizer, self.policy.trained.values(), max_norm=self._max_norm)

    def _adapter_off(self) -> AbstractContextManager[None]:
        return self.policy.peft.disable_adapter() if self.policy.peft is not None else nullcontext()

    def save(self, folder: Path) -> None:
        """Write the trainable weights and the optimizer's state as safetensors."""
        save_file({n: p.detach().contiguous() for n, p in self.policy.trained.items()}, folder / "weights.safetensors")
        state = self.optimizer.state_dict()["state"]
        names = list(self.policy.trained)
        flat = {f"{names[i]}|{key}": value.contiguous() for i, values in state.items() for key, value in values.items()}
        save_file(flat, folder / "optimizer.safetensors")

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            ValueError: the folder's weights are not those that are trained here.
        """
        weights = load_file(folder / "weights.safetensors")
        if weights.keys() != self.policy.trained.keys():
            odd = sorted(weights.keys() ^ self.policy.trained.keys())[:3]
            raise ValueError(f"{folder}: its trainable weights are not those of this configuration (such as {odd})")
        with torch.no_grad():
            for name, parameter in self.policy.trained.items():
                parameter.copy_(weights[name])
        state: dict[int, dict[str, torch.Tensor]] = {}
        numbers = {name: i for i, name in enumerate(self.policy.trained)}
        for name, value in load_file(folder / "optimizer.safetensors").items():
            parameter_name, _, key = name.rpartition("|")
            state.setdefault(numbers[parameter_name], {})[key] = value
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})


class DisagreementError(RuntimeError):
    """The sampler's and the learner's log-probs of the same tokens differ by too much to train on."""


class Gap:
    """The largest and the mean difference between the sampler's and the learner's log-prob of a token."""

    def __init__(self) -> None:
        self.largest, self.total, self.tokens, self.where = 0.0, 0.0, 0, "no token"

    def compare(self, entry: Entry, samples: Sequence[Sample], logprobs: torch.Tensor) -> None:
        for use in entry.uses:
            self._add(samples[use], logprobs)

    def _add(self, sample: Sample, logprobs: torch.Tensor) -> None:
        difference = np.abs(sample.sampler_logprobs - logprobs.double().numpy())
        self.total += float(difference.sum())
        self.tokens += len(difference)
        if len(difference) and not difference.max() <= self.largest:  # not <=: a NaN counts as the largest
            self.largest = float(difference.max())
            self.where = f"trajectory {sample.trajectory}, trained token {int(difference.argmax())}"

    def check(self, limit: float | None) -> None:
        """
        Raises:
            DisagreementError: the largest difference is above the limit, or not a number.
        """
        if limit is not None and not self.largest <= limit:
            raise DisagreementError(
                f"sampler and learner disagree by {self.largest:.3g} on the log-prob of a token ({self.where}); "
                f"train.verify allows {limit:g}. The engine does not hold the weights that are trained, or it sees other "
                "tokens or pictures."
            )

    def metrics(self) -> Metrics:
        return {
            "agreement/logprob_gap_max": torch.tensor(self.largest),
            "agreement/logprob_gap_sum": torch.tensor(self.total),
            "agreement/tokens": torch.tensor(float(self.tokens)),
        }
