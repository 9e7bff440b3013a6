"""The training state as named tensors in safetensors files, one file a rank; whatever wrote it, any number of ranks reads it.

Nothing is pickled: torch.distributed.checkpoint writes and reads the Hugging Face format, which keeps each shard's place in
the header of its file. A single process needs no plan and writes the same format directly.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter, TensorStorageMetadata

from grpo_runner.files import fsync_path

State = dict[str, torch.Tensor]


def training_state(trained: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer) -> State:
    """Return the tensors by name: `weights/NAME` and `optimizer/NAME/KEY`; sharded ones (DTensor) stay so."""
    state = {f"weights/{name}": parameter.detach() for name, parameter in trained.items()}
    for name, parameter in trained.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            state[f"optimizer/{name}/{key}"] = value.detach()
    return state


def copied(state: State) -> State:
    """Return a copy in CPU memory that later updates do not reach."""
    return {name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format) for name, tensor in state.items()}


def write_state(folder: Path, state: State, group: dist.ProcessGroup | None) -> None:
    """Write this process's part of the state; with a group all of its ranks must call, and each writes its own file.

    Raises:
        torch.distributed.checkpoint.api.CheckpointException: a rank failed; no `Exception`. It comes to every rank.
        OSError: the disk refused.
    """
    if group is None:
        save_file(state, folder / "state.safetensors")
        return
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True), process_group=group)
    failed: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(failed, _synced(folder, dist.get_rank(group)), group=group)  # nobody seals before all are through
    problems = [f"rank {rank}: {error}" for rank, error in enumerate(failed) if error]
    if problems:
        raise OSError(f"what was written to {folder} may not be on the disk: {'; '.join(problems)}")


def _synced(folder: Path, rank: int) -> str | None:
    """Make a rank's files durable, as a network file system wants it from the machine that wrote; returns what went wrong."""
    try:
        for file in folder.glob(f"shard-{rank + 1:05d}-*"):
            fsync_path(file)
    except OSError as error:
        return str(error)
    return None


def read_state(
    folder: Path, trained: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None
) -> None:
    """Read weights and optimizer state into what is here, each rank its own part, whatever number of ranks wrote it.

    Raises:
        ValueError: the folder's weights are not those that are trained here.
        torch.distributed.checkpoint.api.CheckpointException: a file cannot be read, or a shape differs; no `Exception`.
    """
    reader = HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    weights = {name.removeprefix("weights/") for name in stored if name.startswith("weights/")}
    if weights != trained.keys():
        odd = sorted(weights ^ trained.keys())[:3]
        raise ValueError(f"{folder}: its trainable weights are not those of this configuration (such as {odd})")
    moments: dict[str, State] = {}
    for name, record in stored.items():
        if name.startswith("optimizer/") and isinstance(record, TensorStorageMetadata):
            parameter, _, key = name.removeprefix("optimizer/").rpartition("/")
            like = trained[parameter]
            empty = torch.zeros_like(like.detach()) if record.size == like.shape else torch.zeros(record.size)
            moments.setdefault(parameter, {})[key] = empty
    state = {f"weights/{name}": parameter.detach() for name, parameter in trained.items()}
    state |= {f"optimizer/{name}/{key}": value for name, values in moments.items() for key, value in values.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # it is: one process needs no group
        dcp.load(state, storage_reader=reader, process_group=group, no_dist=group is None)
    optimizer.state.clear()
    for name, values in moments.items():
        optimizer.state[trained[name]] = values
