"""The engine `local`: samples in this process, many trajectories in lockstep, on any device torch has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import load_peft_weights, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import DynamicCache

from grpo_runner.lanes import side_by_side
from grpo_runner.pictures import FeatureCache
from grpo_runner.policy import Lora, Policy, Row, RowBuilder, TextBatch, collate, load_processors, shared_features
from grpo_runner.seeds import uniform
from vismaze_hooks import Completion, Request

ROWS = 64  # rows a forward pass: few enough that every core has one to work on, whatever their number
MEMO_BYTES = 64 << 20  # next-token distributions that are remembered within a rollout


class LocalEngine:
    """Holds its own copy of the weights, so that publishing is as real here as anywhere.

    Requests that ask the same question (equal ids and pictures) share one forward pass and are sampled apart, each with
    its own seed. With a bounded history the same questions come back throughout a rollout (samples of a group walk
    through the same states), so what the model says to them is remembered until the rollout or the weights end. Each
    distinct picture is encoded once for as long as the vision tower's weights stay the same.
    """

    def __init__(
        self,
        *,
        model: str,
        lora: Mapping[str, Any] | None = None,
        keep_history: bool = False,
    ) -> None:
        """
        Args:
            model: folder of the base model.
            lora: rank, alpha and targets of the adapters to come; None: whole models are published.
            keep_history: keep keys and values of each session for the next turn; for histories that only grow.
        """
        self.processors = load_processors(Path(model))
        self.policy = Policy(Path(model), lora=Lora(**lora) if lora is not None else None, seed=0)
        self.policy.core.requires_grad_(False)
        self.version = 0
        self._rows = RowBuilder(self.processors)
        self.features = FeatureCache() if self.policy.trains_vision else shared_features(Path(model))
        self._keep = keep_history
        self._kept: dict[str, _Kept] = {}
        self._said = _Memo(MEMO_BYTES)
        self._sessions: set[str] = set()
        self._banned = torch.tensor(self.processors.vocabulary.banned)

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample one turn for each request. The result for a request does not depend on what else is in the call."""
        sessions = {r.session for r in requests}
        if sessions.isdisjoint(self._sessions):  # another rollout: a resumed run must not depend on what was played before
            self._said.clear()
        self._sessions = sessions
        drafts = [_Draft(r, (r.prompt_ids, tuple(i.sha256 for i in r.images))) for r in requests]
        if not self._keep:  # kept sessions need their keys and values, which only a forward pass makes
            self._recall(drafts)
        open_drafts = [d for d in drafts if d.result is None]
        images = [i for d in open_drafts for i in d.request.images]
        self._table = self.features.table(self.policy.core.model.visual, self.processors.patches, images, self.processors.merge)
        states: dict[_State, list[_Draft]] = {}
        for draft in open_drafts:
            states.setdefault(draft.state, []).append(draft)
        old, self._kept = self._kept, {}
        fresh: list[_Question] = []
        grown: list[_Question] = []
        for (key, _), members in states.items():
            kept = old.get(members[0].request.session)
            if kept is not None and kept.extends(key):
                grown.append((members, kept))
            else:
                fresh.append((members, None))  # a session of that name may have begun anew
        parts: list[list[_Question]] = []
        for group in (fresh, grown):
            ordered = sorted(group, key=lambda item: len(item[0][0].request.prompt_ids))
            parts += [ordered[start : start + ROWS] for start in range(0, len(ordered), ROWS)]
        for image in {i.pixels.shape: i for i in images}.values():
            self._rows.grid(image)  # looked up once, before several threads would
        for kept_now, said in side_by_side(self._answer, parts):  # put together in order, whichever was done first
            self._kept.update(kept_now)
            self._said.take(said)
        return [d.result for d in drafts]  # type: ignore[misc]

    def publish(self, adapter_folder: Path, version: int) -> None:
        """Load a PEFT adapter folder, or a model folder without LoRA.

        Raises:
            ValueError: a key of the file has no place in the model, or a place got no key.
        """
        if self.policy.peft is not None:
            # Not merged into the weights, though that would save a seventh of a rollout: the learner adds the adapter's
            # product to theirs, and late in a run the other order of rounding shows in the fifth digit of a log-prob.
            weights = load_peft_weights(str(adapter_folder), device="cpu")
            outcome = set_peft_model_state_dict(self.policy.peft, weights)
            lacking = [k for k in outcome.missing_keys if "lora_" in k]
            unknown = list(outcome.unexpected_keys)
        else:
            weights = load_file(adapter_folder / "model.safetensors")
            outcome = self.policy.core.load_state_dict(weights, strict=False)
            tied = {"lm_head.weight"} if self.policy.core.config.tie_word_embeddings else set()
            lacking, unknown = [k for k in outcome.missing_keys if k not in tied], list(outcome.unexpected_keys)
        if lacking or unknown:
            raise ValueError(f"{adapter_folder}: weights without a place: {unknown[:3]}; places without weights: {lacking[:3]}")
        self.version = version
        self._kept.clear()
        self._said.clear()
        if self.policy.trains_vision:
            self.features.clear()

    def close(self) -> None:
        self._kept.clear()

    def _recall(self, drafts: Sequence[_Draft]) -> None:
        """Sample from remembered distributions for as long as there are any."""
        live = list(drafts)
        while live:
            rows: dict[_State, int] = {}
            known = [d for d in live if d.state in self._said]
            if not known:
                return
            owner = np.array([rows.setdefault(d.state, len(rows)) for d in known])
            live = self._sample(torch.stack([self._said[state] for state in rows]), owner, known)

    def _answer(self, group: list[_Question]) -> tuple[dict[str, _Kept], dict[_State, torch.Tensor]]:
        """Prefill the distinct questions of a group, then decode; states that sampled the same tokens stay one row.

        Returns:
            What is to be kept of each session, and the logits of each state; each empty where the other is not.
        """
        cache, mask, after, hidden = self._prefill(group)
        kept: dict[str, _Kept] = {}
        said: dict[_State, torch.Tensor] = {}
        if self._keep:
            for row, (members, _) in enumerate(group):
                one = _Kept(members[0].key, _layers(cache), mask, int(after[row]), row)
                kept.update({d.request.session: one for d in members})
        live = [d for members, _ in group for d in members]
        owner = np.array([row for row, (members, _) in enumerate(group) for _ in members])  # state of each draft
        while True:
            logits = torch.nn.functional.linear(hidden, self.policy.head).float()
            logits[:, self._banned] = -torch.inf
            if not self._keep:
                firsts = zip(*np.unique(owner, return_index=True), strict=True)
                said.update({live[at].state: logits[row] for row, at in firsts})
            places = {id(d): int(row) for d, row in zip(live, owner, strict=True)}
            live = self._sample(logits, owner, live)
            if not live:
                return kept, said
            states: dict[tuple[int, int], int] = {}
            owner = np.array([states.setdefault((places[id(d)], d.tokens[-1]), len(states)) for d in live])
            parents = torch.tensor([parent for parent, _ in states])
            cache.batch_select_indices(parents)
            mask = torch.cat([mask[parents], torch.ones(len(parents), 1, dtype=torch.long)], dim=1)
            after = after[parents]
            step = TextBatch(torch.tensor([[t] for _, t in states]), mask, after.view(1, -1, 1).expand(4, -1, 1))
            hidden = self.policy.hidden(step, None, cache)[:, -1]
            after = after + 1

    def _prefill(self, group: list[_Question]) -> tuple[DynamicCache, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return cache, mask [rows, length], next position [rows] and last hidden states [rows, width]."""
        rows: list[Row] = []
        shas: list[str] = []
        for members, kept in group:
            draft = members[0]
            row = self._rows.build((*draft.request.prompt_ids, *draft.tokens), draft.request.images)
            if kept is not None:
                row = Row(row.ids[kept.length :], row.positions[:, kept.length :], row.shas[kept.pictures :])
            rows.append(row)
            shas.extend(row.shas)
        batch = collate(rows, self.processors.vocabulary.pad)
        mask, cache = batch.mask, DynamicCache()
        if group[0][1] is not None:
            cache, old_mask = _join([kept for _, kept in group if kept is not None])
            mask = torch.cat([old_mask, batch.mask], dim=1)
            batch = TextBatch(batch.ids, mask, batch.positions)
        features = self._table.rows[self._table.index(shas)] if shas else None
        hidden = self.policy.hidden(batch, features, cache)[:, -1]
        return cache, mask, batch.positions[1:, :, -1].amax(0) + 1, hidden

    def _sample(self, logits: torch.Tensor, owner: np.ndarray, drafts: Sequence[_Draft]) -> list[_Draft]:
        """Draw one token for each draft by inverse transform with its seeded draw; return those that go on.

        Args:
            logits: float [states, vocabulary]
            owner: int [drafts]: the state of each.
        """
        temperatures = torch.tensor([d.request.temperature for d in drafts])
        greedy = temperatures == 0
        scaled = logits[owner] / torch.where(greedy, 1.0, temperatures)[:, None]
        logprobs = torch.log_softmax(scaled, dim=-1)
        draws = torch.tensor([uniform(d.request.seed, len(d.tokens)) for d in drafts], dtype=torch.float64)
        cumulative = logprobs.double().exp().cumsum(-1)
        chosen = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True).squeeze(1)
        chosen = torch.where(greedy, logprobs.argmax(-1), chosen.clamp(max=logits.shape[1] - 1))
        values = logprobs.gather(1, chosen[:, None]).squeeze(1).tolist()
        for draft, token, value in zip(drafts, chosen.tolist(), values, strict=True):
            draft.tokens.append(token)
            draft.logprobs.append(value)
            stopped = token == self.processors.vocabulary.end_of_turn
            if stopped or len(draft.tokens) == draft.request.max_new_tokens:
                draft.result = Completion(tuple(draft.tokens), tuple(draft.logprobs), stopped, self.version)
        return [d for d in drafts if d.result is None]


_Key = tuple[tuple[int, ...], tuple[str, ...]]
"""A question: ids and pictures."""

_State = tuple[_Key, tuple[int, ...]]
"""A question and the beginning of an answer."""


@dataclass
class _Draft:
    """A request being answered."""

    request: Request
    key: _Key
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    result: Completion | None = None

    @property
    def state(self) -> _State:
        return self.key, tuple(self.tokens)


class _Memo(dict[_State, torch.Tensor]):
    """Logits by state; takes nothing more once it is full."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self._limit = limit_bytes

    def take(self, rows: Mapping[_State, torch.Tensor]) -> None:
        for state, logits in rows.items():
            if (len(self) + 1) * logits.numel() * logits.element_size() > self._limit:
                return
            self[state] = logits


@dataclass
class _Kept:
    """Keys and values of one session's last prompt, as a row of the batch that it was computed in."""

    key: _Key
    layers: list[tuple[torch.Tensor, torch.Tensor]]
    mask: torch.Tensor  # long [rows, cached length]
    after: int
    row: int
    length: int = field(init=False)  # tokens of this row
    pictures: int = field(init=False)

    def __post_init__(self) -> None:
        self.length = int(self.mask[self.row].sum())
        self.pictures = len(self.key[1])

    def extends(self, key: _Key) -> bool:
        ids, shas = self.key
        return len(key[0]) > len(ids) and key[0][: len(ids)] == ids and key[1][: len(shas)] == shas


_Question = tuple[list[_Draft], _Kept | None]
"""Those that ask the same, and what is kept of the session."""


def _layers(cache: DynamicCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(layer.keys, layer.values) for layer in cache.layers]


def _join(kepts: Sequence[_Kept]) -> tuple[DynamicCache, torch.Tensor]:
    """Put the kept rows of several batches together, left-padded to one length."""
    length = max(k.mask.shape[1] for k in kepts)
    mask = torch.stack([_left_pad(k.mask[k.row], length, 0) for k in kepts])
    cache = DynamicCache()
    for number in range(len(kepts[0].layers)):
        keys = torch.stack([_left_pad(k.layers[number][0][k.row], length, 1) for k in kepts])
        values = torch.stack([_left_pad(k.layers[number][1][k.row], length, 1) for k in kepts])
        cache.update(keys, values, number)
    used = int(mask.any(0).int().argmax())  # columns that are padding for every row
    if used:
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, used:], layer.values[:, :, used:]
        mask = mask[:, used:]
    return cache, mask


def _left_pad(tensor: torch.Tensor, length: int, dim: int) -> torch.Tensor:
    lacking = length - tensor.shape[dim]
    if lacking == 0:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = lacking
    return torch.cat([tensor.new_zeros(shape), tensor], dim=dim)
