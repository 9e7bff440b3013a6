"""Log-probs of samples under the current weights: the one forward pass of training, old log-probs and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from grpo_core import accumulate_gradients, token_budget_batches, token_logprobs
from grpo_runner.lanes import pool, side_by_side
from grpo_runner.ledger import Sample
from grpo_runner.pictures import FeatureCache, FeatureTable, encode_images
from grpo_runner.policy import Policy, Processors, Row, RowBuilder, collate

PASSES = 4  # on a CPU, at least: so that its cores have something to share
PASS_TOKENS = 1280  # padded, on a CPU: smaller passes cost more in all than they gain by running side by side

Metrics = dict[str, torch.Tensor]


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
    """Log-probs of one micro-batch of entries."""

    logprobs: torch.Tensor  # [tokens of all uses], entry by entry, use by use
    entropy: torch.Tensor | None  # the same
    use: torch.Tensor  # long, the same: number of the sample
    each: list[torch.Tensor]  # detached, one [trained] per entry


class Scorer:
    """Turns samples into log-probs of their trained tokens; keeps nothing that depends on the weights."""

    def __init__(
        self, policy: Policy, processors: Processors, *, features: FeatureCache, token_budget: int, temperature: float
    ) -> None:
        """
        Args:
            features: where the features of a frozen vision tower are kept.
            token_budget: padded tokens of one pass, at most; on a CPU passes are smaller where its cores would idle.
            temperature: of the sampler: log-probs are of the distribution that was sampled from.
        """
        self.policy = policy
        self._processors = processors
        self._features = features
        self._budget = token_budget
        self._temperature = temperature
        self._rows = RowBuilder(processors)
        self._banned = torch.tensor(processors.vocabulary.banned)

    def entries(self, samples: Sequence[Sample]) -> list[Entry]:
        """Put equal sequences together."""
        found: dict[tuple, list[int]] = {}
        for number, sample in enumerate(samples):
            key = (sample.ids, tuple(i.sha256 for i in sample.images), sample.trained.tobytes())
            found.setdefault(key, []).append(number)
        return [self._entry(samples[uses[0]], tuple(uses)) for uses in found.values()]

    def _entry(self, sample: Sample, uses: tuple[int, ...]) -> Entry:
        row = self._rows.build(sample.ids, sample.images)
        pads = np.asarray(sample.ids) == self._processors.vocabulary.image_pad
        extra = np.zeros(len(pads), dtype=np.int64)
        grids = [self._rows.grids[i.pixels.shape] for i in sample.images]
        extra[pads] = [r * c - 1 for r, c in grids]
        places = sample.trained + (np.cumsum(extra) - extra)[sample.trained]
        return Entry(row, sample, places, row.ids[places], uses)

    def logprobs(
        self, entries: Sequence[Entry], *, filler: Entry | None = None, group: dist.ProcessGroup | None = None
    ) -> list[torch.Tensor]:
        """Return the log-probs of each entry's trained tokens, without a graph: one [trained] per entry.

        Args:
            filler: scored in vain for as long as another rank of `group` has more to score; ranks pass together.
        """
        return self.logprobs_of_each([entries], filler=filler, group=group)[0]

    @torch.no_grad()
    def logprobs_of_each(
        self, lists: Sequence[Sequence[Entry]], *, filler: Entry | None = None, group: dist.ProcessGroup | None = None
    ) -> list[list[torch.Tensor]]:
        """As `logprobs` for each of several lists; no pass holds entries of two, but passes of all go side by side."""
        entries = [entry for one in lists for entry in one]
        if not entries and filler is None:
            return [[] for _ in lists]
        table = self._table([*entries, filler] if filler is not None else entries)
        parts = [self._batches(one) for one in lists]
        batches = [[one[n] for n in members] for one, part in zip(lists, parts, strict=True) for members in part]

        def score(batch: list[Entry]) -> list[torch.Tensor]:
            return self._score(batch, table, entropy=False).each

        if filler is None:
            scores = side_by_side(score, batches)
        else:  # ranks pass together, one micro-batch after the other
            most = torch.tensor(len(batches))
            dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)  # first: whoever had fewer would wait here for the rest
            scores = [score(batch) for batch in batches]
            for _ in range(int(most) - len(batches)):
                self._score([filler], table, entropy=False)
        left = iter(scores)
        return [_in_order(part, [next(left) for _ in part]) for part in parts]

    def backward(
        self,
        entries: Sequence[Entry],
        loss_of: Callable[[Scored, Sequence[Entry]], tuple[torch.Tensor, Metrics]],
        *,
        entropy: bool,
        filler: Entry | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> tuple[Metrics, list[torch.Tensor]]:
        """Accumulate the gradients of a loss over all entries, micro-batch by micro-batch.

        Each distinct picture passes the vision tower once, forth and back: the features are a leaf while the
        micro-batches run, and their summed gradient then goes through the tower in one backward pass. So the cost of
        the pictures depends neither on how many sequences show them nor on the number of micro-batches.

        Args:
            loss_of: called for each micro-batch, from several threads where there are lanes.
            filler: an entry without uses, passed for as long as another rank of `group` has more micro-batches.
            group: ranks whose gradients are summed afterwards.

        Returns:
            Metrics, merged; and the log-probs of each entry's trained tokens: one [trained] per entry.
        """
        if not entries and filler is None:
            return {}, []
        shown, batches = [*entries, *([filler] if filler is not None else [])], self._batches(entries)
        parts = [*batches, [len(entries)]]  # the last one is the filler
        table = self._table(shown)
        leaf = FeatureTable(table.rows.detach().requires_grad_(table.rows.requires_grad), table.starts, table.counts)
        scores: list[Sequence[torch.Tensor]] = [()] * len(parts)

        def one(number: int) -> tuple[torch.Tensor, Metrics]:
            members = [shown[n] for n in parts[number]]
            scored = self._score(members, leaf, entropy=entropy)
            scores[number] = scored.each
            return loss_of(scored, members)

        numbers = range(len(batches))
        if filler is not None:  # ranks pass together, one micro-batch after the other
            metrics = accumulate_gradients(numbers, one, filler=len(batches), group=group, reduction="sum")
        else:
            inputs = [*self.policy.trained.values(), *([leaf.rows] if leaf.rows.requires_grad else [])]
            metrics = accumulate_gradients(numbers, one, inputs=inputs, pool=pool())
        if leaf.rows.grad is not None:
            gradients = leaf.rows.grad.split([len(part) for part in table.parts])
            passes = list(zip(table.parts, gradients, strict=True))
            vision = [p for n, p in self.policy.trained.items() if ".visual." in f".{n}"]
            accumulate_gradients(passes, lambda one: ((one[0] * one[1]).sum(), {}), inputs=vision, pool=pool())
        return metrics, _in_order(batches, scores[: len(batches)])

    def _batches(self, entries: Sequence[Entry]) -> list[list[int]]:
        lengths = [len(e.row.ids) for e in entries]
        budget = self._budget
        if lengths and self.policy.device.type == "cpu":  # whatever the number of cores, so that no number depends on it
            budget = min(budget, max(sum(lengths) // PASSES, PASS_TOKENS, *lengths))
        return token_budget_batches(lengths, budget, layout="padded")

    def _table(self, entries: Sequence[Entry]) -> FeatureTable:
        images = {i.sha256: i for e in entries for i in e.sample.images}
        visual, patches, merge = self.policy.core.model.visual, self._processors.patches, self._processors.merge
        if self.policy.trains_vision:
            return encode_images(visual, patches, list(images.values()), merge)
        return self._features.table(visual, patches, images.values(), merge)

    def _score(self, batch: Sequence[Entry], table: FeatureTable, *, entropy: bool) -> Scored:
        text = collate([e.row for e in batch], self._processors.vocabulary.pad)
        shas = [sha for e in batch for sha in e.row.shas]
        # index_select throughout: its backward adds in a fixed order on any number of threads, indexing's does not
        hidden = self.policy.hidden(text, table.rows.index_select(0, table.index(shas)) if shas else None)
        length = text.ids.shape[1]
        counts = [len(e.places) for e in batch]
        rows = np.repeat(np.arange(len(batch)), counts)
        columns = np.concatenate([length - len(e.row.ids) + e.places - 1 for e in batch])  # the state that predicts it
        logprobs, entropies = token_logprobs(
            hidden.flatten(0, 1).index_select(0, torch.from_numpy(rows * length + columns)),
            self.policy.head,
            torch.from_numpy(np.concatenate([e.targets for e in batch])),
            banned_ids=self._banned,
            temperature=self._temperature,
            with_entropy=entropy,
        )
        starts = np.cumsum([0, *counts])
        none = torch.zeros(0, dtype=torch.long)  # of a filler, that has no uses
        places = [torch.arange(s, s + n) for s, n in zip(starts, counts, strict=False)]
        spread = torch.cat([none, *(p for p, e in zip(places, batch, strict=True) for _ in e.uses)])
        use = torch.cat([none, *(torch.full((len(e.places),), u) for e in batch for u in e.uses)])
        entropies = entropies.index_select(0, spread) if entropies is not None else None
        return Scored(logprobs.index_select(0, spread), entropies, use, list(torch.split(logprobs.detach(), counts)))


def _in_order(batches: Sequence[list[int]], scores: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    found = {n: score for batch, each in zip(batches, scores, strict=True) for n, score in zip(batch, each, strict=True)}
    return [found[n] for n in range(len(found))]
