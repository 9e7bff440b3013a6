"""A policy's decoder layers split over ranks by FSDP2."""

from __future__ import annotations

from typing import Literal

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from grpo_runner.policy import Policy

FrozenBase = Literal["replicate", "shard", "hybrid"]


def shard(policy: Policy, frozen_base: FrozenBase, *, ranks: int, local_ranks: int, generation: int = 0) -> None:
    """Split the weights of every decoder layer over the ranks; the trained ones among `policy.trained` become DTensors.

    Embedding, output head and vision tower stay whole on every rank: they are used outside of any layer's forward pass, and
    the tower by some micro-batches only, where a collective would wait for ranks that never come.

    Args:
        frozen_base: "replicate" keeps the frozen weights whole on every rank and splits the trained ones: no frozen weight
            travels; "shard" splits both over all ranks; "hybrid" splits both over the ranks of a machine and keeps one copy
            for each machine, so that only gradients travel between machines.
        local_ranks: ranks on one machine.
        generation: of the group, where processes form one after the other. DTensor remembers by mesh which part of a tensor is
            this rank's, and meshes of the same ranks are equal unless their names differ, though this process may be another
            rank by now.

    Raises:
        ValueError: "hybrid" with machines of unequal numbers of ranks.
    """
    device = policy.device.type
    if frozen_base == "hybrid":
        if ranks % local_ranks:
            raise ValueError(f"{ranks} ranks cannot be machines of {local_ranks} ranks each")
        mesh = init_device_mesh(
            device, (ranks // local_ranks, local_ranks), mesh_dim_names=(f"machine{generation}", f"rank{generation}")
        )
    else:
        mesh = init_device_mesh(device, (ranks,), mesh_dim_names=(f"rank{generation}",))
    text = policy.core.model.language_model
    inside = set(text.layers.parameters())
    for layer in text.layers:
        whole = {p for p in layer.parameters() if not p.requires_grad} if frozen_base == "replicate" else None
        sharded = fully_shard(layer, mesh=mesh, ignored_params=whole)
        sharded.set_gradient_divide_factor(1.0)  # with the next line: gradients are summed, since the loss has one
        sharded.set_force_sum_reduction_for_comms(True)  # denominator for all ranks
    fully_shard(text, mesh=mesh, ignored_params={p for p in text.parameters() if p not in inside})
    policy.trained = {name: p for name, p in policy.core.named_parameters() if p.requires_grad}
