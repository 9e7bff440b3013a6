"""Starting the learner's ranks on one machine, or joining those that torchrun started."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from grpo_runner.config import Config
from grpo_runner.learner import Learner
from grpo_runner.ranks import Team, make_learner, serve
from grpo_runner.world import World, open_store

THERE = "there"  # how many of the ranks that were started have come to the store
WAIT = timedelta(days=7)  # between two calls lies a rollout of any length; a rank that dies closes its connection at once


def lead(config: Config) -> Learner | Team:
    """Return the learner; with several ranks this process becomes rank 0, and the others are started unless torchrun did.

    Raises:
        ConfigError: as `make_learner`.
    """
    if dist.is_torchelastic_launched():
        size = int(os.environ["WORLD_SIZE"])
        if size == 1:
            return make_learner(config, None)
        world = join(0, size, int(os.environ["LOCAL_WORLD_SIZE"]))
    elif config.learner.ranks == 1:
        return make_learner(config, None)
    else:
        world = _start(config)
    try:
        return Team(make_learner(config, world), world)
    except BaseException:
        dist.destroy_process_group()
        raise


def follows() -> bool:
    """Return whether torchrun started this process as a rank other than 0."""
    return dist.is_torchelastic_launched() and int(os.environ["RANK"]) > 0


def follow(config: Config) -> None:
    """Be the rank that torchrun started; returns when rank 0 ends the run."""
    _ignore_signals()
    world = join(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    _serve(config, world)


def _start(config: Config) -> World:
    size = config.learner.ranks
    store = open_store("127.0.0.1", size)
    context = processes.start_processes(
        _follow, (config, store.port), nprocs=size - 1, join=False, daemon=True, start_method="spawn"
    )

    def blame(timeout: float = 10) -> None:
        try:
            context.join(timeout, grace_period=1)
        except (processes.ProcessExitedException, processes.ProcessRaisedException) as error:
            raise RuntimeError(
                f"rank {error.error_index + 1} of the learner failed, so the run cannot go on: {error}"
            ) from error

    try:
        while store.add(THERE, 0) < size - 1:
            blame(0.1)  # one that does not come this far would be waited for in vain
        return join(0, size, size, store, blame)
    except BaseException:
        for process in context.processes:  # those that came wait for this one, and hear no other signal
            process.kill()
            process.join()
        raise


def _follow(index: int, config: Config, port: int) -> None:
    import transformers

    _ignore_signals()
    transformers.utils.logging.disable_progress_bar()
    size = config.learner.ranks
    store = dist.TCPStore("127.0.0.1", port, size, is_master=False)
    store.add(THERE, 1)
    _serve(config, join(index + 1, size, size, store))


def _ignore_signals() -> None:
    """Ctrl-C and a scheduler's SIGTERM reach every rank; rank 0 alone decides, and says when it is over."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _serve(config: Config, world: World) -> None:
    try:
        serve(make_learner(config, world), world)
    finally:
        dist.destroy_process_group()


def join(
    rank: int,
    size: int,
    local_size: int,
    store: dist.Store | None = None,
    blame: Callable[[], None] = lambda: None,
    *,
    generation: int = 0,
) -> World:
    """Meet the other ranks, through a store or where torchrun's environment says.

    Args:
        local_size: ranks on one machine.
        blame, generation: see `World`.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % local_size % torch.cuda.device_count())  # one is all that a process of a cluster sees
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if store is None:
        dist.init_process_group(backend, timeout=WAIT)
    else:
        dist.init_process_group(backend, timeout=WAIT, store=store, rank=rank, world_size=size)
    groups = [dist.new_group(backend="gloo", timeout=WAIT) for _ in range(2)]
    return World(rank, size, local_size, groups[0], groups[1], generation, blame)
