"""Publishing that is proven at every step: file, engine, canary. The only way weights reach an engine.

The file is compared with the weights in training before the engine sees it; the engine answers for what it loaded; then the
canary has it sample a few fixed questions with pictures, twice, so that the second time comes from its cache, and the trainer
scores the very tokens that were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from grpo_runner.adapters import check_same, read_adapter
from grpo_runner.ledger import Sample
from grpo_runner.pictures import identify
from vismaze_hooks import Completion, Engine, ReleasingEngine, Request

ROUNDING = 0.5  # a log-prob gap that no rounding of numbers explains


class Score(Protocol):
    """Samples -> the log-probs of each one's trained tokens."""

    def __call__(self, samples: Sequence[Sample], *, adapter: bool = True) -> list[torch.Tensor]: ...


@runtime_checkable
class EngineGroup(Protocol):
    """Several engines behind one."""

    def generate_on_each(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """Have every engine answer all requests; one list an engine."""
        ...


def on_each(engine: Engine, requests: Sequence[Request]) -> list[list[Completion]]:
    """Ask an engine, or every engine of a group; one list of answers an engine."""
    return engine.generate_on_each(requests) if isinstance(engine, EngineGroup) else [engine.generate(requests)]


def _flat(lists: Iterable[Sequence[Completion]]) -> list[Completion]:
    return [completion for one in lists for completion in one]


class CanaryError(RuntimeError):
    """Trainer and engine disagree after a publish; the message holds the largest difference and the likely cause."""


@dataclass(frozen=True)
class Gap:
    """The largest difference between an engine's and the trainer's log-prob of a token."""

    largest: float  # NaN counts as the largest
    where: str

    def within(self, tolerance: float) -> bool:
        return self.largest <= tolerance


class Canary:
    """Fixed questions that trainer and engine must answer with the same log-probs."""

    def __init__(self, score: Score, requests: Sequence[Request], tolerance: float | None) -> None:
        """
        Args:
            score: the trainer's log-probs of samples, with the adapter or without: `Learner.logprobs`.
            requests: with pictures, long enough to fill a block of the engine's cache.
            tolerance: largest allowed difference; None: three times what `measure` finds without an adapter.
        """
        self.tolerance = tolerance
        self._score = score
        self._requests = list(requests)

    def measure(self, engine: Engine) -> float:
        """Take the tolerance from an engine without an adapter, where one is not given. Returns the gap there.

        Raises:
            CanaryError: the two do not even agree on the base model.
        """
        gap = self.gap(_flat(on_each(engine, self._requests)), adapter=False)
        allowed = ROUNDING if self.tolerance is None else self.tolerance
        if not gap.within(allowed):
            raise CanaryError(
                f"without an adapter, trainer and engine differ by {gap.largest:.3g} on the log-prob of a token ({gap.where}); "
                f"at most {allowed:g} is allowed: other pictures, another image processor, or another base model"
            )
        if self.tolerance is None:
            self.tolerance = 3 * gap.largest
        return gap.largest

    def check(self, engine: Engine, version: int) -> dict[str, float]:
        """Compare after a publish, with a cold and with a warm cache; of several engines each is asked. Returns metrics.

        Raises:
            CanaryError: a difference above the tolerance, a wrong version, or a cache that is not what it should be.
        """
        # The first question goes alone: the others begin as it does, and may rightly find its beginning in the cache.
        alone, others = on_each(engine, self._requests[:1]), on_each(engine, self._requests[1:])
        cold = _flat([*first, *rest] for first, rest in zip(alone, others, strict=True))
        warm = _flat(on_each(engine, self._requests))
        for completion in (*cold, *warm):
            if completion.weights_version != version:
                raise CanaryError(
                    f"the engine answered with weights version {completion.weights_version}, published was {version}"
                )
        stale = max(first.cached_tokens or 0 for (first,) in alone)
        if stale:
            raise CanaryError(
                f"stale prefix cache: {stale} prompt tokens of the first question after publishing version "
                f"{version} came from a cache that older weights filled"
            )
        if any(c.cached_tokens == 0 for c in warm):
            raise CanaryError(
                "no prompt token came from the prefix cache when the same questions were asked again, so the warm cache is not "
                "tested; make the cache's blocks smaller than the prompts (rollout.engine_options.block_size)"
            )
        assert self.tolerance is not None, "measure first"
        first, second = self.gap(cold), self.gap(warm)
        for gap, answers in ((first, cold), (second, warm)):
            if not gap.within(self.tolerance):
                cause = self._inputs(answers, self.tolerance)
                if gap is second:
                    cause = "With a cold cache they agree: the prefix cache holds something else than these weights make."
                raise CanaryError(
                    f"after publishing version {version}, trainer and engine differ by {gap.largest:.3g} on the log-prob of a "
                    f"token ({gap.where}); at most {self.tolerance:g} is allowed. {cause}"
                )
        return {"agreement/canary_gap_max": max(first.largest, second.largest)}

    def gap(self, completions: Sequence[Completion], *, adapter: bool = True, blind: bool = False) -> Gap:
        """Score what an engine answered, or several, one after the other.

        Args:
            adapter: False: by the base model.
            blind: with grey pictures instead of the real ones.
        """
        asked = [_blinded(r) for r in self._requests] if blind else self._requests
        asked = asked * (len(completions) // len(asked))
        samples = [_sample(n, r, c) for n, (r, c) in enumerate(zip(asked, completions, strict=True))]
        found = Gap(0.0, "no token")
        for number, (sample, logprobs) in enumerate(zip(samples, self._score(samples, adapter=adapter), strict=True)):
            differences = np.abs(sample.sampler_logprobs - logprobs.double().cpu().numpy())
            if not differences.max() <= found.largest:
                engine, question = divmod(number, len(self._requests))
                which = f"engine {engine}, " if len(asked) > len(self._requests) else ""
                found = Gap(float(differences.max()), f"{which}question {question}, token {int(differences.argmax())}")
        return found

    def _inputs(self, answers: Sequence[Completion], tolerance: float) -> str:
        """Say what the answers do agree with."""
        if self.gap(answers, adapter=False).within(tolerance):
            return "They agree with the base model: the engine does not apply the adapter."
        if self.gap(answers, blind=True).within(tolerance):
            return "They agree with grey pictures: the engine does not see the pictures."
        return (
            "They agree neither with the base model nor with blank pictures: the engine holds other weights, or computes "
            "otherwise (rollout.engine_options.dtype, another image processor)."
        )


def _sample(number: int, request: Request, completion: Completion) -> Sample:
    start, count = len(request.prompt_ids), len(completion.token_ids)
    return Sample(
        number,
        request.prompt_ids + completion.token_ids,
        request.images,
        np.arange(start, start + count),
        np.asarray(completion.logprobs),
        np.full(count, completion.weights_version),
    )


def _blinded(request: Request) -> Request:
    return replace(request, images=tuple(identify(np.full_like(i.pixels, 128)) for i in request.images))


@contextmanager
def lent(engine: Engine, phase: Callable[[str], AbstractContextManager[None]]) -> Iterator[None]:
    """Lend the engine's memory to what happens inside; afterwards the engine has proved again that it holds its adapter.

    Args:
        phase: name -> a context that counts the time.
    """
    if not isinstance(engine, ReleasingEngine):
        yield
        return
    with phase("release"):
        engine.release()
    yield
    with phase("wake"):
        engine.wake()


def trained_halves(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the LoRA matrices in training: module -> A [rank, in], B [out, rank]."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in weights.items():
        module, _, rest = name.rpartition(".lora_")
        found.setdefault(module, {})[rest[0]] = value.detach()
    return {module: (halves["A"], halves["B"]) for module, halves in found.items()}


def publish_weights(
    engine: Engine, canary: Canary | None, folder: Path, version: int, *, adapter: Mapping[str, torch.Tensor] | None
) -> dict[str, float]:
    """Load a folder of weights into the engine and prove that they are there. Returns metrics.

    Args:
        adapter: the LoRA matrices in training, which the folder must hold; None for whole models.

    Raises:
        AdapterError: the file does not hold the weights in training.
        CanaryError: trainer and engine disagree.
        Whatever the engine raises when it does not hold what it was given.
    """
    if adapter is not None:
        check_same(read_adapter(folder), trained_halves(adapter), folder)
    engine.publish(folder, version)
    return canary.check(engine, version) if canary is not None else {}
