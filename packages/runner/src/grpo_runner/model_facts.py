"""What a model and its adapter will be, from the configuration alone: no weight is read, nothing is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers import AutoModelForImageTextToText, PretrainedConfig

from grpo_runner.adapters import check_language_only, linears_of, matching_places, vllm_place


@dataclass(frozen=True)
class ModelFacts:
    """Sizes and names of a model with LoRA on some of its linear layers."""

    parameters: int
    targets: Mapping[str, tuple[int, int]]  # module -> (in, out)
    lora_parameters: int
    vllm_places: Mapping[str, tuple[str, int]]  # module -> vLLM's module and the slice of it
    shards: tuple[str, ...]  # modules that FSDP wraps one by one; the root takes the rest
    visual_patch: int  # pixels a side of one visual token


def model_facts(config: PretrainedConfig, *, pattern: str, rank: int) -> ModelFacts:
    """Build the model on the meta device and describe it.

    Args:
        pattern: regular expression over whole module names: the LoRA targets.

    Raises:
        ValueError: the pattern matches nothing, or layers outside the language model.
    """
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    targets = matching_places(linears_of(model), pattern)
    check_language_only(targets)
    return ModelFacts(
        parameters=sum(p.numel() for p in model.parameters()),
        targets=targets,
        lora_parameters=sum(rank * (into + out) for into, out in targets.values()),
        vllm_places={module: vllm_place(module) for module in targets},
        shards=tuple(f"model.language_model.layers.{n}" for n in range(len(model.model.language_model.layers))),
        visual_patch=config.vision_config.patch_size * config.vision_config.spatial_merge_size,
    )
