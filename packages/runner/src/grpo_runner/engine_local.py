"""The engine `local`: samples in this process, many trajectories in lockstep, on any device torch has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        self._said: dict[_Key, _State] = {}  # questions of this rollout, each the root of its answers
        self._said_bytes = 0
        self._sessions: set[str] = set()
        self._banned = torch.tensor(self.processors.vocabulary.banned)

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample one turn for each request. The result for a request does not depend on what else is in the call."""
        sessions = {r.session for r in requests}
        if self._keep or sessions.isdisjoint(self._sessions):
            self._forget()  # another rollout: a resumed run must not depend on what was played before
        self._sessions = sessions
        drafts = [self._draft(r) for r in requests]
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
        for members in states.values():
            kept = old.get(members[0].request.session)
            if kept is not None and kept.extends(members[0].key):
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
            self._remember(said)
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
        self._forget()
        if self.policy.trains_vision:
            self.features.clear()

    def close(self) -> None:
        self._kept.clear()

    def _draft(self, request: Request) -> _Draft:
        key = request.prompt_ids, tuple([i.sha256 for i in request.images])
        root = self._said.get(key)
        if root is None:
            root = self._said[key] = _State(-1)
        return _Draft(request, key, root, root)

    def _forget(self) -> None:
        self._said.clear()
        self._said_bytes = 0

    def _remember(self, said: Iterable[tuple[_State, torch.Tensor]]) -> None:
        """Keep what the model said to each state until there is too much of it."""
        for state, logits in said:
            if self._said_bytes + logits.nbytes > MEMO_BYTES:
                return
            state.logits = logits
            self._said_bytes += logits.nbytes

    def _recall(self, drafts: Sequence[_Draft]) -> None:
        """Sample from remembered distributions for as long as there are any."""
        live = drafts
        while live:
            known = [d for d in live if d.state.logits is not None]
            if not known:
                return
            rows, owner = _rows(known)
            live = self._sample(torch.stack([state.logits for state in rows]), owner, known)  # type: ignore[misc]

    def _answer(self, group: list[_Question]) -> tuple[dict[str, _Kept], list[tuple[_State, torch.Tensor]]]:
        """Prefill the distinct questions of a group, then decode; states that sampled the same tokens stay one row.

        Returns:
            What is to be kept of each session, and the logits of each state; each empty where the other is not.
        """
        cache, mask, after, hidden = self._prefill(group)
        kept: dict[str, _Kept] = {}
        said: list[tuple[_State, torch.Tensor]] = []
        if self._keep:
            for row, (members, _) in enumerate(group):
                one = _Kept(members[0].key, _layers(cache), mask, int(after[row]), row)
                kept.update({d.request.session: one for d in members})
        live = [d for members, _ in group for d in members]
        rows, owner = _rows(live)
        while True:
            logits = torch.nn.functional.linear(hidden, self.policy.head).float()
            logits[:, self._banned] = -torch.inf
            if not self._keep:  # kept sessions need their keys and values, which only a forward pass makes
                said.extend(zip(rows, logits, strict=True))
            live = self._sample(logits, owner, live)
            if not live:
                return kept, said
            before, (rows, owner) = rows, _rows(live)
            parents = torch.tensor(list({d.state: before[d.came_from] for d in live}.values()))
            cache.batch_select_indices(parents)
            mask = torch.cat([mask[parents], torch.ones(len(parents), 1, dtype=torch.long)], dim=1)
            after = after[parents]
            ids = torch.tensor([[state.token] for state in rows])
            hidden = self.policy.hidden(TextBatch(ids, mask, after.view(1, -1, 1).expand(4, -1, 1)), None, cache)[:, -1]
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

    def _sample(self, logits: torch.Tensor, owner: Sequence[int], drafts: Sequence[_Draft]) -> list[_Draft]:
        """Draw one token for each draft by inverse transform with its seeded draw; return those that go on.

        Args:
            logits: float [states, vocabulary]
            owner: [drafts]: the state of each.
        """
        asked: dict[tuple[int, float], int] = {}  # distributions: a state at a temperature
        places = [asked.setdefault((row, d.request.temperature), len(asked)) for row, d in zip(owner, drafts, strict=True)]
        at = torch.tensor(places)
        temperatures = torch.tensor([temperature for _, temperature in asked])
        greedy = temperatures == 0
        scaled = logits[[row for row, _ in asked]] / torch.where(greedy, 1.0, temperatures)[:, None]
        logprobs = torch.log_softmax(scaled, dim=-1)
        cumulative = logprobs.double().exp().cumsum(-1)
        draws = torch.tensor([uniform(d.request.seed, len(d.tokens)) for d in drafts], dtype=torch.float64)
        drawn = torch.searchsorted(cumulative[at], (draws * cumulative[at, -1])[:, None], right=True).squeeze(1)
        chosen = torch.where(greedy[at], logprobs.argmax(-1)[at], drawn.clamp(max=logits.shape[1] - 1))
        end = self.processors.vocabulary.end_of_turn
        live = []
        for draft, token, value in zip(drafts, chosen.tolist(), logprobs[at, chosen].tolist(), strict=True):
            draft.tokens.append(token)
            draft.logprobs.append(value)
            if token == end or len(draft.tokens) == draft.request.max_new_tokens:
                draft.result = Completion(tuple(draft.tokens), tuple(draft.logprobs), token == end, self.version)
            else:
                draft.came_from, draft.state = draft.state, draft.state.after(token)
                live.append(draft)
        return live


_Key = tuple[tuple[int, ...], tuple[str, ...]]
"""A question: ids and pictures."""


class _State:
    """A question and the beginning of an answer, in a tree of all answers that were begun; equal ones are one object."""

    __slots__ = ("_next", "logits", "token")

    def __init__(self, token: int) -> None:
        self.token = token  # the last one; -1 before any
        self.logits: torch.Tensor | None = None  # float [vocabulary] of the next token, once remembered
        self._next: dict[int, _State] = {}

    def after(self, token: int) -> _State:
        """Return the state that a token leads to."""
        found = self._next.get(token)
        if found is None:
            found = self._next[token] = _State(token)
        return found


@dataclass(slots=True)
class _Draft:
    """A request being answered."""

    request: Request
    key: _Key
    state: _State
    came_from: _State  # where the last token was sampled
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    result: Completion | None = None


def _rows(drafts: Sequence[_Draft]) -> tuple[dict[_State, int], list[int]]:
    """Return the distinct states, each with its row, and the row of each draft."""
    rows: dict[_State, int] = {}
    return rows, [rows.setdefault(d.state, len(rows)) for d in drafts]


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
