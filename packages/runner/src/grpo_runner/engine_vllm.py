"""The engine `vllm`: asks a vLLM process, and believes it only what it has proved.

Every reply must show the prompt as the trainer itself expands it and carry the version of the weights that were published; an
adapter is sampled with only after the engine has said, digest by digest, which matrices it holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpo_runner.adapters import Adapter, check_fits, check_language_only, linear_places, read_adapter, vllm_place
from grpo_runner.policy import TARGETS, Row, RowBuilder, load_processors
from grpo_runner.vllm_link import EngineDiedError, RefusedError, VllmLink
from grpo_runner.vllm_messages import Answer, Answers, Ask, Asks, Do, Done, Load, Loaded, Look, Seen, Start
from grpo_runner.vllm_options import VllmOptions, arguments, check_installed
from vismaze_hooks import Completion, Follow, Request


class PublishError(RuntimeError):
    """The engine does not hold what was published; the message names the fault and the module."""


class DisagreeingPromptError(RuntimeError):
    """The engine saw another prompt than the trainer will train on."""


class VllmEngine:
    """One vLLM process with one adapter. `deaths` counts processes that died, `redone` the turns they left unanswered."""

    def __init__(
        self, *, model: str, lora: Mapping[str, Any] | None = None, keep_history: bool = False, **options: Any
    ) -> None:
        """
        Args:
            model: folder of the base model.
            lora: rank, alpha and targets of the adapters to come.
            keep_history: of no meaning here: the prefix cache keeps what fits.
            options: of `VllmOptions`.

        Raises:
            ValueError: vllm is missing or too old, an option does not fit the model, or the adapters cannot be served.
            EngineDiedError: the process did not come up.
        """
        self.options = VllmOptions.of(options)
        check_installed()
        if lora is None:
            raise ValueError('the engine vllm serves LoRA adapters; set train.weights = "lora", or rollout.engine = "local"')
        self.processors = load_processors(Path(model))
        self.places = linear_places(Path(model), TARGETS.get(lora["targets"], lora["targets"]))
        check_language_only(self.places)
        vocabulary = self.processors.vocabulary
        engine_arguments = arguments(self.options, Path(model), int(lora["rank"]))
        self._start = Start(engine_arguments, vocabulary.banned, vocabulary.end_of_turn)
        self._dtype = getattr(torch, self.options.dtype)
        self.version, self.redone, self.deaths = 0, 0, 0
        self._rows = RowBuilder(self.processors)
        self._published: tuple[Path, Adapter] | None = None
        self._ticket = 0
        self._link: VllmLink | None = None
        self._launch()
        self._proved = True  # the base model alone needs no proof

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample one turn for each request."""
        found: dict[int, Completion] = {}
        self.stream(requests, lambda number, completion: found.update({number: completion}))
        return [found[n] for n in range(len(requests))]

    def stream(self, requests: Sequence[Request], follow: Follow) -> None:
        """Sample all requests and what follows from them; each trajectory goes on as soon as its own turn is done.

        A process that dies is started anew and given the same weights; the turns that it had not answered are asked again, with
        their seeds.

        Raises:
            EngineDiedError: it died more than `restarts` times in a row.
            DisagreeingPromptError, PublishError: what it sampled cannot be trained on.
        """
        todo, in_a_row = dict(enumerate(requests)), 0  # by trajectory
        asked: dict[int, tuple[int, Request, Row]] = {}  # by ticket
        while todo or asked:
            try:
                if todo:
                    asked.update(self._ask(todo))
                    todo = {}
                answers = self._process().expect(Answers, self.options.timeout).answers
            except EngineDiedError:
                in_a_row += 1
                if in_a_row > self.options.restarts:
                    raise
                todo |= {number: request for number, request, _ in asked.values()}
                asked = {}
                self.redone += len(todo)
                self._revive()
                continue
            except RefusedError:
                self._proved = False
                raise
            in_a_row = 0
            for answer in answers:
                if answer.ticket not in asked:  # of a stream that was left before its end
                    continue
                number, request, row = asked.pop(answer.ticket)
                following = follow(number, self._checked(answer, request, row))
                if following is not None:
                    todo[number] = following
        if not self.look().same_adapter:
            self._proved = False
            raise PublishError(
                "sticky reload flag: the engine read its adapter anew while it was sampling, so the weights that were sampled "
                "from are not those that were verified"
            )

    def publish(self, adapter_folder: Path, version: int) -> None:
        """Load a PEFT adapter folder and prove that the engine applies it.

        Raises:
            AdapterError: the folder is half-written, or not an adapter for this model and these targets.
            PublishError: the engine holds something else. It samples nothing more until a publish succeeds.
        """
        folder = adapter_folder.resolve()
        adapter = read_adapter(folder)
        check_fits(adapter, self.places, folder)
        if self._link is None:
            self._launch()
        self._load(folder, adapter, version)
        self._published, self.version = (folder, adapter), version

    def counts(self) -> dict[str, int]:
        """Return how often the process died, and how many turns had to be asked again for it."""
        return {"deaths": self.deaths, "redone turns": self.redone}

    def look(self) -> Seen:
        """Return what the process says of itself."""
        link = self._process()
        link.send(Look())
        return link.expect(Seen, self.options.timeout)

    def release(self) -> None:
        """Lend the memory to the trainer, as `colocate` says: nothing, the KV cache, the weights too, or the whole process."""
        how = self.options.colocate
        if how == "keep":
            return
        self._proved = False
        if how == "stop":
            self.close()
        else:
            self._do("release_kv" if how == "kv" else "sleep")

    def wake(self) -> None:
        """Take the memory again, load the adapter anew and prove it: engines are known to wake without theirs."""
        if self.options.colocate == "keep":
            return
        if self._link is None:
            self._launch()
        else:
            self._do("wake")
        self._restore()

    def close(self) -> None:
        """End the process."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _launch(self) -> None:
        self._held: OrderedDict[str, None] = OrderedDict()  # pictures that the process holds, the latest asked about last
        try:
            self._link = VllmLink(self._start, self.options.start_timeout)
        except RefusedError as error:
            raise ValueError(f"vLLM does not start: {error}") from error

    def _process(self) -> VllmLink:
        if self._link is None:
            raise PublishError("the vLLM process is released: wake the engine before asking it")
        return self._link

    def _revive(self) -> None:
        self.deaths += 1
        self.close()
        self._launch()
        self._restore()

    def _restore(self) -> None:
        if self._published is not None:
            self._load(*self._published, self.version)
        self._proved = True

    def _load(self, folder: Path, adapter: Adapter, version: int) -> None:
        self._proved = False
        link = self._process()
        link.send(Load(str(folder), version))
        try:
            loaded = link.expect(Loaded, self.options.timeout)
        except RefusedError as error:
            raise PublishError(f"vLLM refused the adapter {folder}: {error}") from error
        before = self._published[1].digests(self._dtype) if self._published is not None else {}
        check_loaded(loaded, adapter.digests(self._dtype), before)
        self._proved = True

    def _do(self, what: str) -> None:
        link = self._process()
        link.send(Do(what))
        link.expect(Done, self.options.timeout)

    def _ask(self, todo: Mapping[int, Request]) -> dict[int, tuple[int, Request, Row]]:
        """Send requests; returns (place, request, its row) by ticket."""
        if not self._proved:
            raise PublishError("the adapter was not proved to be in the engine, so nothing is sampled; publish again")
        asked: dict[int, tuple[int, Request, Row]] = {}
        asks, pictures = [], {}
        for number, request in todo.items():
            row = self._rows.build(request.prompt_ids, request.images)
            self._check_room(request, row)
            self._ticket += 1
            asked[self._ticket] = (number, request, row)
            pictures.update({i.sha256: i.pixels for i in request.images if i.sha256 not in self._held})
            for sha in row.shas:
                self._held[sha] = None
                self._held.move_to_end(sha)
            limits = (request.seed, request.max_new_tokens, request.temperature)
            asks.append(Ask(self._ticket, request.prompt_ids, row.shas, *limits))
        needed = {sha for _, _, row in asked.values() for sha in row.shas}
        forget = []
        while len(self._held) > max(self.options.pictures_held, len(needed)):
            forget.append(self._held.popitem(last=False)[0])
        self._process().send(Asks(tuple(asks), pictures, tuple(forget)))
        return asked

    def _check_room(self, request: Request, row: Row) -> None:
        options, less = self.options, "or let the prompt hold fewer turns (rollout.history)"
        if len(row.ids) + request.max_new_tokens > options.max_model_len:
            raise ValueError(
                f"a prompt of {len(row.ids)} tokens and {request.max_new_tokens} new ones do not fit the engine's context of "
                f"{options.max_model_len}; raise rollout.engine_options.max_model_len, {less}"
            )
        if len(row.shas) > options.max_images:
            raise ValueError(
                f"a prompt has {len(row.shas)} pictures, the engine takes {options.max_images}; raise "
                f"rollout.engine_options.max_images, {less}"
            )

    def _checked(self, answer: Answer, request: Request, row: Row) -> Completion:
        if not np.array_equal(answer.prompt_ids, row.ids):
            raise DisagreeingPromptError(
                f"vLLM expanded a prompt with {len(row.shas)} pictures to {len(answer.prompt_ids)} tokens, the trainer to "
                f"{len(row.ids)}: the two use different image processors or settings"
            )
        if self._published is not None and answer.versions != (str(self.version),):
            raise PublishError(f"a turn was sampled with weights {answer.versions}, expected version {self.version}")
        stopped = answer.token_ids[-1] == self._start.end_of_turn
        return Completion(answer.token_ids, answer.logprobs, stopped, self.version, answer.cached_tokens)


def check_loaded(loaded: Loaded, expected: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Compare what an engine says it holds with what was published.

    Args:
        expected: module as the trainer names it -> digest.
        before: the same of the adapter that was published before.

    Raises:
        PublishError: names the fault.
    """
    if loaded.unbound:
        raise PublishError(
            f"no layer of the engine applies {len(loaded.unbound)} of the adapter's modules: {loaded.unbound[:3]}"
        )
    if not loaded.cache_reset:
        raise PublishError("stale prefix cache: the engine did not reset it, so answers could rest on the weights before")
    places = {module: vllm_place(module) for module in expected}
    missing = sorted(m for m, (name, index) in places.items() if index >= len(loaded.slot.get(name, ())))
    if missing:
        raise PublishError(f"the engine bound no weights to {len(missing)} modules: {missing[:3]}")
    held = {module: loaded.slot[name][index] for module, (name, index) in places.items()}
    wrong = sorted(module for module in expected if held[module] != expected[module])
    if not wrong:
        return
    if before and held == before:
        raise PublishError(
            "the engine still holds the adapter before this one: the same adapter id at a new path was not read again, because "
            "the reload flag was missing"
        )
    whose = {digest: module for module, digest in expected.items()}.get(held[wrong[0]])
    what = f"holds the weights of {whose}: swapped" if whose else "does not hold the weights that were published"
    more = f" (and {len(wrong) - 1} modules more)" if len(wrong) > 1 else ""
    raise PublishError(f"{wrong[0]} in the engine's active slot {what}{more}")
