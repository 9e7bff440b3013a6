"""The learner: samples with advantages in, one optimizer step (or several) out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from grpo_core import (
    accumulate_gradients,
    guarded_step,
    kl_loss,
    merge_metrics,
    metric_means,
    policy_loss,
    set_lr,
    step_denominator,
    token_budget_batches,
    token_logprobs,
)
from grpo_runner.ledger import Sample
from grpo_runner.pictures import FeatureCache, FeatureTable, encode_images
from grpo_runner.policy import Policy, Processors, Row, RowBuilder, collate


@dataclass(frozen=True)
class LossSettings:
    """What the loss is made of."""

    kind: str
    clip_low: float
    clip_high: float
    kl: float  # coefficient of k3; 0 leaves the reference out
    entropy: float  # bonus coefficient


@dataclass(frozen=True)
class Entry:
    """A distinct sequence and everybody who sampled it: one forward pass serves all of them."""

    row: Row
    sample: Sample
    places: np.ndarray  # int64 [trained]: places of the trained tokens in the expanded ids
    targets: np.ndarray  # int64 [trained]
    uses: tuple[int, ...]  # numbers of the samples that are this sequence


@dataclass(frozen=True)
class Scored:
    """Log-probs of one micro-batch, token by token and use by use."""

    logprobs: torch.Tensor  # [tokens of all uses]
    entropy: torch.Tensor | None
    use: torch.Tensor  # long [tokens of all uses]: number of the sample
    entry_logprobs: list[torch.Tensor]  # one [trained] per entry


class Learner:
    """Holds the weights that are trained, their optimizer and the count of steps."""

    def __init__(
        self,
        policy: Policy,
        processors: Processors,
        *,
        features: FeatureCache,
        weight_decay: float,
        max_norm: float,
        token_budget: int,
        temperature: float = 1.0,
    ) -> None:
        self.policy = policy
        self.processors = processors
        self.optimizer = torch.optim.AdamW(policy.trained.values(), lr=0.0, weight_decay=weight_decay, betas=(0.9, 0.95))
        self._features = features
        self._max_norm = max_norm
        self._budget = token_budget
        self._temperature = temperature  # of the sampler: log-probs are of the distribution that was sampled from
        self._rows = RowBuilder(processors)
        self._banned = torch.tensor(processors.vocabulary.banned)

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

    def entries(self, samples: Sequence[Sample]) -> list[Entry]:
        """Put equal sequences together."""
        found: dict[tuple, list[int]] = {}
        for number, sample in enumerate(samples):
            key = (sample.ids, tuple(i.sha256 for i in sample.images), sample.trained.tobytes())
            found.setdefault(key, []).append(number)
        return [self._entry(samples[uses[0]], tuple(uses)) for uses in found.values()]

    def _entry(self, sample: Sample, uses: tuple[int, ...]) -> Entry:
        row = self._rows.build(sample.ids, sample.images)
        pads = np.asarray(sample.ids) == self.processors.vocabulary.image_pad
        extra = np.zeros(len(pads), dtype=np.int64)
        grids = [self._rows.grids[i.pixels.shape] for i in sample.images]
        extra[pads] = [r * c - 1 for r, c in grids]
        places = sample.trained + (np.cumsum(extra) - extra)[sample.trained]
        return Entry(row, sample, places, row.ids[places], uses)

    def policy_step(
        self,
        samples: Sequence[Sample],
        advantages: torch.Tensor,
        kept: torch.Tensor,
        groups: Sequence[Sequence[int]],
        *,
        loss: LossSettings,
        lr: Callable[[int], float],
        verify: float | None,
    ) -> dict[str, float]:
        """Update on one batch of samples, in one optimizer step per group of samples.

        Args:
            advantages: float [samples].
            kept: bool [samples]: False leaves a sample out of the loss and of its denominator.
            groups: sample numbers of each optimizer step.
            lr: number of the optimizer step inside this update -> learning rate.
            verify: largest allowed |sampler - learner| log-prob difference; None does not compare.

        Raises:
            FloatingPointError: the sampler and the learner disagree by more than `verify`.
        """
        old: dict[int, torch.Tensor] = {}  # by sample number
        if len(groups) > 1:
            for entry, logprobs in self._score_all(self.entries(samples)):
                old.update(dict.fromkeys(entry.uses, logprobs))
        parts, norms, skipped = [], [], 0
        for number, members in enumerate(groups):
            part, outcome = self._one_step(samples, advantages, kept, members, old, loss, lr(number), verify, first=number == 0)
            parts.append(part)
            norms.append(outcome.grad_norm)
            skipped += outcome.skipped
        metrics = metric_means(merge_metrics(parts))
        metrics["optim/grad_norm"] = max(norms)
        metrics["optim/skipped_steps"] = float(skipped)
        metrics["optim/lr"] = lr(len(groups) - 1)
        return metrics

    def _one_step(self, samples, advantages, kept, members, old, loss, lr, verify, *, first):  # type: ignore[no-untyped-def]
        chosen = [samples[m] for m in members]
        counts = [len(samples[m].trained) for m in members if kept[m]]
        denominator = step_denominator(float(sum(counts)))
        every = self.entries(chosen)
        silent = loss.kl == 0 and loss.entropy == 0
        speaks = [any(kept[members[u]] and (not silent or advantages[members[u]] != 0) for u in e.uses) for e in every]
        useful = [e for e, s in zip(every, speaks, strict=True) if s]
        gap = _Gap()
        if verify is not None:
            for entry, logprobs in self._score_all([e for e, s in zip(every, speaks, strict=True) if not s]):
                gap.compare(entry, chosen, logprobs)

        def loss_of(scored: Scored, batch: Sequence[Entry]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            for entry, logprobs in zip(batch, scored.entry_logprobs, strict=True):
                if verify is not None and (first or not old):
                    gap.compare(entry, chosen, logprobs)
            numbers = torch.tensor(members)[scored.use]
            before = scored.logprobs.detach()
            if old:
                before = torch.cat([old[members[u]] for e in batch for u in e.uses])
            mask = kept[numbers]
            value, metrics = policy_loss(
                scored.logprobs,
                before,
                advantages[numbers],
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
            if loss.kl:
                with torch.no_grad(), self._reference():
                    reference = self._score(batch, self._table(batch), entropy=False).logprobs
                extra, more = kl_loss(scored.logprobs, reference, mask, denominator=denominator)
                value, metrics = value + loss.kl * extra, metrics | more
            return value.float(), metrics

        metrics = self._backward(useful, loss_of, entropy=True)
        gap.check(verify)
        set_lr(self.optimizer, lr)
        outcome = guarded_step(self.optimizer, self.policy.trained.values(), max_norm=self._max_norm)
        return metrics | gap.metrics(), outcome

    def imitation_step(self, samples: Sequence[Sample], *, lr: float) -> dict[str, float]:
        """One optimizer step on the mean negative log-prob of the trained tokens."""
        denominator = float(sum(len(s.trained) for s in samples))

        def loss_of(scored: Scored, batch: Sequence[Entry]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            total = scored.logprobs.sum()
            return -total / denominator, {"sft/loss": -total.detach() / denominator}

        metrics = self._backward(self.entries(samples), loss_of, entropy=False)
        set_lr(self.optimizer, lr)
        outcome = guarded_step(self.optimizer, self.policy.trained.values(), max_norm=self._max_norm)
        return {name: float(v) for name, v in metrics.items()} | {"optim/grad_norm": outcome.grad_norm}

    def _backward(self, entries: Sequence[Entry], loss_of: Callable, *, entropy: bool) -> dict[str, torch.Tensor]:
        """Gradients of all entries. Each distinct picture passes the vision tower once, forth and back.

        The features are a leaf while the micro-batches run; their summed gradient then goes through the tower in one
        backward pass, so the cost of the pictures does not depend on how many sequences or micro-batches show them.
        """
        if not entries:
            return {}
        table = self._table(entries)
        leaf = table
        if table.rows.requires_grad:
            leaf = FeatureTable(table.rows.detach().requires_grad_(), table.starts, table.counts)

        def one(batch: list[Entry]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return loss_of(self._score(batch, leaf, entropy=entropy), batch)

        metrics = accumulate_gradients(self._batches(entries), one)
        if leaf is not table:
            table.rows.backward(leaf.rows.grad)
        return metrics

    def _batches(self, entries: Sequence[Entry]) -> list[list[Entry]]:
        numbers = token_budget_batches([len(e.row.ids) for e in entries], self._budget, layout="padded")
        return [[entries[n] for n in batch] for batch in numbers]

    def _table(self, entries: Sequence[Entry]) -> FeatureTable:
        images = {i.sha256: i for e in entries for i in e.sample.images}
        visual, patches, merge = self.policy.core.model.visual, self.processors.patches, self.processors.merge
        if self.policy.trains_vision:
            return encode_images(visual, patches, list(images.values()), merge)
        return self._features.table(visual, patches, images.values(), merge)

    @torch.no_grad()
    def _score_all(self, entries: Sequence[Entry]) -> list[tuple[Entry, torch.Tensor]]:
        if not entries:
            return []
        table = self._table(entries)
        found = []
        for batch in self._batches(entries):
            found.extend(zip(batch, self._score(batch, table, entropy=False).entry_logprobs, strict=True))
        return found

    def _score(self, batch: Sequence[Entry], table: FeatureTable, *, entropy: bool) -> Scored:
        text = collate([e.row for e in batch], self.processors.vocabulary.pad)
        shas = [sha for e in batch for sha in e.row.shas]
        hidden = self.policy.hidden(text, table.rows[table.index(shas)] if shas else None)
        length = text.ids.shape[1]
        rows = np.repeat(np.arange(len(batch)), [len(e.places) for e in batch])
        columns = np.concatenate([length - len(e.row.ids) + e.places - 1 for e in batch])
        states = hidden[torch.from_numpy(rows), torch.from_numpy(columns)]
        targets = torch.from_numpy(np.concatenate([e.targets for e in batch]))
        logprobs, entropies = token_logprobs(
            states, self.policy.head, targets, banned_ids=self._banned, temperature=self._temperature, with_entropy=entropy
        )
        spans = torch.cat([torch.arange(a, b) for a, b in _uses_spans(batch)])
        use = torch.cat([torch.full((len(e.places),), u) for e in batch for u in e.uses])
        each = list(torch.split(logprobs.detach(), [len(e.places) for e in batch]))
        return Scored(logprobs[spans], entropies[spans] if entropies is not None else None, use, each)

    def _reference(self):  # type: ignore[no-untyped-def]
        return self.policy.peft.disable_adapter() if self.policy.peft is not None else nullcontext()


def _uses_spans(batch: Sequence[Entry]) -> list[tuple[int, int]]:
    """Where each use's tokens lie among the entries' tokens."""
    spans, at = [], 0
    for entry in batch:
        spans.extend([(at, at + len(entry.places))] * len(entry.uses))
        at += len(entry.places)
    return spans


class _Gap:
    """The largest difference between the sampler's and the learner's log-prob of a token."""

    def __init__(self) -> None:
        self.largest, self.total, self.tokens, self.where = 0.0, 0.0, 0, ""

    def compare(self, entry: Entry, samples: Sequence[Sample], logprobs: torch.Tensor) -> None:
        mine = logprobs.double().numpy()
        for use in entry.uses:
            difference = np.abs(samples[use].sampler_logprobs - mine)
            self.total += float(difference.sum())
            self.tokens += len(difference)
            if len(difference) and not difference.max() <= self.largest:
                self.largest = float(difference.max())
                self.where = f"trajectory {samples[use].trajectory}, token {int(difference.argmax())}"

    def check(self, limit: float | None) -> None:
        if limit is not None and not self.largest <= limit:
            raise FloatingPointError(
                f"sampler and learner disagree by {self.largest:.3g} on a token's log-prob ({self.where}); at most {limit:g} is "
                "allowed. The engine does not hold the weights that are trained, or it sees other tokens or pictures."
            )

    def metrics(self) -> dict[str, torch.Tensor]:
        return {
            "agreement/logprob_gap_max": torch.tensor(self.largest if math.isfinite(self.largest) else math.inf),
            "agreement/logprob_gap_sum": torch.tensor(self.total),
            "agreement/tokens": torch.tensor(float(self.tokens)),
        }
