"""The process that vLLM runs in: `python -m grpo_runner.vllm_process FD`. The only module that imports vllm.

A process of its own, because vLLM changes torch for the whole process it is imported in (thread settings, allocators), and
because a process can be ended, which is the one sure way to free everything. It speaks `vllm_messages` over one pipe and ends
when the pipe does. Requests join and leave the running batch between two engine steps: no trajectory waits for another.
"""

from __future__ import annotations

import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil
import torch
import vllm
from PIL import Image
from vllm import EngineArgs, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.sample.logits_processor import LogitsProcessor

from grpo_runner.adapters import digest_halves
from grpo_runner.vllm_messages import (
    Answer,
    Answers,
    Ask,
    Asks,
    Do,
    Done,
    Failed,
    Load,
    Loaded,
    Look,
    Ready,
    Seen,
    Start,
)

ADAPTER = 1  # the one adapter's number


class MaskVisionTokens(LogitsProcessor):
    """Gives the vision placeholders probability 0, so that no answer can claim a picture."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._banned = torch.tensor(vllm_config.additional_config["banned"], device=device)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """Every request is masked alike: the batch does not matter."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.index_fill_(-1, self._banned, -torch.inf)


class Inspection:
    """Extends vLLM's worker by looks at what it really holds; its methods are called by name."""

    model_runner: Any

    def watch_pictures(self) -> None:
        """Count the pictures that pass the vision tower from now on."""
        self.pictures_encoded = 0

        def count(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            self.pictures_encoded += len(kwargs["grid_thw"] if "grid_thw" in kwargs else args[1])

        self.model_runner.model.visual.register_forward_pre_hook(count, with_kwargs=True)

    def look_at_adapter(self) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
        """Return the digests of the active slot by module and slice, and the adapter's modules that are applied nowhere."""
        manager = self.model_runner.lora_manager._adapter_manager
        self.adapter = adapter = manager.get_adapter(ADAPTER)
        slot = manager.lora_index_to_id.index(ADAPTER)
        digests = {}
        for name, lora in adapter.loras.items():
            layer = manager.modules.get(name)
            if layer is not None:
                pairs = zip(layer.lora_a_stacked, layer.lora_b_stacked, strict=True)
                digests[name] = tuple(digest_halves(*_trim(a[slot, 0], b[slot, 0], lora.rank)) for a, b in pairs)
        return digests, tuple(sorted(adapter.loras.keys() - digests.keys()))

    def look_around(self) -> tuple[bool, int]:
        """Return whether the adapter is still the object that was looked at, and how many pictures were encoded."""
        same = True
        if (adapter := getattr(self, "adapter", None)) is not None:
            same = self.model_runner.lora_manager._adapter_manager.get_adapter(ADAPTER) is adapter
        return same, self.pictures_encoded


def _trim(a: torch.Tensor, b: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut the room of higher ranks off a slot, unless something is in it: then the digest shall differ."""
    if a[rank:].any() or b[:, rank:].any():
        return a, b
    return a[:rank], b[:, :rank]


class Process:
    """The engine and what it was told."""

    def __init__(self, start: Start) -> None:
        self._stop = start.end_of_turn
        arguments = EngineArgs(
            **start.arguments,
            logits_processors=[f"{__name__}:{MaskVisionTokens.__name__}"],
            worker_extension_cls=f"{__name__}.{Inspection.__name__}",
            additional_config={"banned": list(start.banned)},
            disable_log_stats=True,
        )
        self._engine = LLMEngine.from_engine_args(arguments)
        self._engine.collective_rpc("watch_pictures")
        self._pictures: dict[str, Image.Image] = {}
        self._adapter: LoRARequest | None = None

    def busy(self) -> bool:
        return self._engine.has_unfinished_requests()

    def ask(self, asks: Asks) -> None:
        """Add requests to the running batch."""
        for sha in asks.forget:
            self._pictures.pop(sha, None)
        self._pictures.update({sha: Image.fromarray(pixels) for sha, pixels in asks.pictures.items()})
        for one in asks.asks:
            self._engine.add_request(str(one.ticket), self._prompt(one), self._sampling(one), lora_request=self._adapter)

    def _prompt(self, ask: Ask) -> Any:
        prompt: dict[str, Any] = {"prompt_token_ids": list(ask.prompt_ids)}
        if ask.shas:
            prompt["multi_modal_data"] = {"image": [self._pictures[sha] for sha in ask.shas]}
            prompt["multi_modal_uuids"] = {"image": list(ask.shas)}
        return prompt

    def _sampling(self, ask: Ask) -> SamplingParams:
        return SamplingParams(
            temperature=ask.temperature,
            seed=ask.seed >> 1,  # vLLM's seeds have 63 bits
            max_tokens=ask.max_new_tokens,
            stop_token_ids=[self._stop],
            ignore_eos=True,  # the end-of-turn token stops, nothing else: as in the local engine
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def step(self) -> Answers | None:
        """Advance every running request by one token; return those that are done."""
        done = [self._answer(output) for output in self._engine.step() if output.finished]
        return Answers(tuple(done)) if done else None

    def _answer(self, output: Any) -> Answer:
        (sampled,) = output.outputs
        ids = tuple(sampled.token_ids)
        return Answer(
            ticket=int(output.request_id),
            prompt_ids=np.asarray(output.prompt_token_ids, dtype=np.int64),
            token_ids=ids,
            logprobs=tuple(place[token].logprob for place, token in zip(sampled.logprobs, ids, strict=True)),
            versions=tuple(dict.fromkeys(span.version for span in sampled.weight_versions)),
            cached_tokens=output.num_cached_tokens or 0,
        )

    def load(self, load: Load) -> Loaded:
        """Replace the adapter, then say what is held.

        The reload flag belongs to this one call. Left on the request that sampling uses, vLLM would read the file anew at every
        step; left out here, it would go on with the old weights and say nothing.
        """
        self._engine.add_lora(LoRARequest("policy", ADAPTER, load.folder, load_inplace=True))
        self._adapter = LoRARequest("policy", ADAPTER, load.folder)
        ((slot, unbound),) = self._engine.collective_rpc("look_at_adapter")
        reset = self._engine.reset_prefix_cache()
        self._engine.set_weight_version(str(load.version))
        return Loaded(slot, unbound, reset)

    def look(self) -> Seen:
        ((same, pictures),) = self._engine.collective_rpc("look_around")
        return Seen(same, pictures, psutil.Process().memory_info().rss)

    def do(self, do: Do) -> Done:
        """Give memory back, or take it again. Needs CUDA's memory pools; on a CPU the process is ended instead."""
        if do.what == "release_kv":
            self._engine.sleep(level=0)
            self._engine.release_kv_cache_memory()
        elif do.what == "sleep":
            self._engine.sleep(level=1)
        else:
            self._engine.wake_up()
        return Done()


def serve(pipe: Connection) -> None:
    """Answer messages until the pipe ends."""
    try:
        process = Process(pipe.recv())
    except Exception as error:  # whatever vLLM raises goes to the one who asked
        pipe.send(Failed(f"{type(error).__name__}: {error}"))
        raise
    pipe.send(Ready(vllm.__version__, vllm.platforms.current_platform.device_type))
    actions: dict[type, Any] = {Asks: process.ask, Load: process.load, Look: lambda _: process.look(), Do: process.do}
    while True:
        if process.busy():
            answers = process.step()
            if answers is not None:
                pipe.send(answers)
            if not pipe.poll():
                continue
        try:
            message = pipe.recv()
        except EOFError:
            return
        try:
            reply = actions[type(message)](message)
        except Exception as error:  # noqa: BLE001 — as above
            traceback.print_exc()
            reply = Failed(f"{type(error).__name__}: {error}")
        if reply is not None:
            pipe.send(reply)


if __name__ == "__main__":
    from grpo_runner import vllm_process  # under the name by which vLLM looks the classes up

    vllm_process.serve(Connection(int(sys.argv[1])))
