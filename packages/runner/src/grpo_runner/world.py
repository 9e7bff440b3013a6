"""A rank's place among the ranks, and how rank 0 speaks to the others."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class World:
    """Every group holds all ranks; the default group carries weights and gradients."""

    rank: int
    size: int
    local_size: int  # ranks on one machine
    control: dist.ProcessGroup  # gloo: calls, and sums over ranks of plain numbers
    saving: dist.ProcessGroup  # gloo: what the saving threads say to each other, while training goes on
    generation: int  # the how manieth group this is that its processes have formed
    blame: Callable[[], None]  # raises the error of another rank that has failed, if that is known


def open_store(host: str, size: int) -> dist.TCPStore:
    """Start the store where ranks meet, on a free port of this address only; torch's own would listen on all of them."""
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(host, port, size, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def say(group: dist.ProcessGroup, what: Any) -> None:
    """Send something from rank 0 to all."""
    dist.broadcast_object_list([what], src=0, group=group)


def hear(group: dist.ProcessGroup) -> Any:
    """Return what rank 0 says."""
    box = [None]
    dist.broadcast_object_list(box, src=0, group=group)
    return box[0]
