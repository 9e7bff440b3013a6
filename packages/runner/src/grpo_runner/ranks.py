"""One learner over several processes: what a rank does. Who starts ranks is not known here (`launch` does, or a cluster).

Rank 0 runs the loop and calls its learner through a `Team`, which makes every rank do the same; the others `serve`. All
ranks hold the whole batch and take their share of its sequences, so no rank has to be told more than the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from grpo_runner.agreement import DisagreementError
from grpo_runner.config import Config, ConfigError
from grpo_runner.learner import Batch, Learner, LossSettings
from grpo_runner.ledger import Sample
from grpo_runner.pictures import FeatureCache
from grpo_runner.policy import Lora, Policy, load_processors, shared_features
from grpo_runner.scoring import Scorer
from grpo_runner.seeds import derive_seed
from grpo_runner.world import World, hear, say


def lora_of(config: Config) -> Lora | None:
    """Return the adapter's settings, None when every weight is trained."""
    if config.train.weights == "full":
        return None
    return Lora(config.train.rank, config.train.alpha, config.train.targets)


def make_learner(config: Config, world: World | None) -> Learner:
    """Load the policy and its learner, in one process or as one rank of several.

    Raises:
        ConfigError: LoRA targets that match nothing, or a layout that the ranks do not fit into.
    """
    folder = Path(config.model.path)
    try:
        policy = Policy(folder, lora=lora_of(config), seed=derive_seed(config.run.seed, "adapter") % 2**31)
    except ValueError as error:
        raise ConfigError(f"train.targets: {error}") from error
    if world is not None:
        from grpo_runner.sharding import shard  # late: one process needs none of it

        try:
            shard(
                policy,
                config.learner.frozen_base,
                ranks=world.size,
                local_ranks=world.local_size,
                generation=world.generation,
            )
        except ValueError as error:
            raise ConfigError(f"learner.frozen_base: {error}") from error
    scorer = Scorer(
        policy,
        load_processors(folder),
        features=FeatureCache() if policy.trains_vision else shared_features(folder),
        token_budget=config.train.token_budget,
        temperature=config.rollout.temperature,
    )
    return Learner(
        policy,
        scorer,
        weight_decay=config.train.weight_decay,
        max_norm=config.train.max_norm,
        world=world,
    )


class Team:
    """A learner over ranks, seen from rank 0: it is called as a `Learner` is, and every rank does what was called."""

    def __init__(self, learner: Learner, world: World) -> None:
        self._learner = learner
        self._world = world
        self._promised = False  # the other ranks' saving threads wait for a folder

    @property
    def ranks(self) -> int:
        return self._world.size

    def policy_step(
        self,
        batch: Batch,
        groups: Sequence[Sequence[int]],
        *,
        loss: LossSettings,
        lr: Callable[[int], float],
        verify: float | None,
    ) -> dict[str, float]:
        """As `Learner.policy_step`."""
        rates = [lr(number) for number in range(len(groups))]
        return self._all("policy_step", batch, groups, loss=loss, lr=rates.__getitem__, verify=verify)

    def logprobs(self, samples: Sequence[Sample], *, adapter: bool = True) -> list[torch.Tensor]:
        """As `Learner.logprobs`."""
        return self._all("logprobs", samples, adapter=adapter)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """As `Learner.weights`: gathered from all ranks."""
        return self._all("weights")

    def save(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """As `Learner.save`: rank 0 does it alone."""
        self._learner.save(folder, weights)

    def load(self, folder: Path) -> None:
        """As `Learner.load`: each rank reads its own part."""
        self._all("load", folder)

    def snapshot(self) -> Callable[[Path], None]:
        """As `Learner.snapshot`; the function that is returned makes every rank write its own part."""
        self._keep_promise(None)
        write = self._all("snapshot")
        self._promised = True

        def write_all(folder: Path) -> None:
            self._keep_promise(folder)
            write(folder)

        return write_all

    def close(self) -> None:
        """Let the other ranks end."""
        with suppress(RuntimeError):  # they may have gone already
            self._keep_promise(None)
            say(self._world.control, ("close", (), {}))
        dist.destroy_process_group()

    def _all(self, name: str, *arguments: Any, **options: Any) -> Any:
        try:
            say(self._world.control, (name, arguments, options))
            return getattr(self._learner, name)(*arguments, **options)
        except DisagreementError:
            raise  # on every rank alike
        except RuntimeError:
            self._world.blame()
            raise

    def _keep_promise(self, folder: Path | None) -> None:
        """Send the saving threads of the other ranks the folder to write into, or None if that save never came about."""
        if self._promised:
            self._promised = False
            say(self._world.saving, folder)


def serve(learner: Learner, world: World) -> None:
    """Do what rank 0's `Team` calls, until it says that it is over."""
    saved: Future[None] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="checkpoint") as saver:
        while True:
            name, arguments, options = hear(world.control)
            if name == "close":
                return
            with suppress(DisagreementError):  # rank 0 raises the same, and decides
                result = getattr(learner, name)(*arguments, **options)
            if name == "snapshot":
                if saved is not None:
                    saved.result()
                saved = saver.submit(_write_when_told, result, world)


def _write_when_told(write: Callable[[Path], None], world: World) -> None:
    folder = hear(world.saving)
    if folder is not None:
        from torch.distributed.checkpoint.api import CheckpointException

        with suppress(CheckpointException, OSError):  # rank 0 gets the same, tells and counts it
            write(folder)
