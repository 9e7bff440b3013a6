"""What the tests of the engine vllm and the soak share: a tiny real model, adapters that do something, engine options."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from grpo_runner.checkpoints import commit_folder
from grpo_runner.policy import Lora, Policy, save_weights
from grpo_runner.rollout import RolloutSettings
from grpo_runner.tiny_model import SHAPES, build_tiny_model

transformers.utils.logging.disable_progress_bar()

WORDS = ["<action>", "</action>", "up", "down", "left", "right", "stop"]
TEXTS = ["user\n", "assistant\n", "Go to the goal.\n", "A wall is in the way.", "No moves left.", "Cannot read the answer."] * 4
LORA = {"rank": 4, "alpha": 8.0, "targets": "language"}
OPTIONS = {
    "dtype": "float32",
    "kv_cache_gb": 0.05,
    "max_num_seqs": 32,
    "max_model_len": 2048,
    "max_num_batched_tokens": 2048,
    "timeout": 1800.0,
    "restarts": 1,
}
SETTINGS = RolloutSettings(history=None, max_new_tokens=6, temperature=1.0)
GREEDY = RolloutSettings(history=None, max_new_tokens=6, temperature=0.0)


def small_model(folder: Path) -> Path:
    build_tiny_model(folder, shape=SHAPES["tiny"], seed=1, words=WORDS, texts=TEXTS)
    return folder


def random_policy(base: Path, seed: int) -> Policy:
    """A policy whose adapter does something."""
    policy = Policy(base, lora=Lora(4, 8.0, "language"), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.trained.items():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return policy


def exported(policy: Policy, folder: Path, version: int = 0) -> Path:
    """An adapter as the runner publishes it."""
    return commit_folder(folder, f"step_{version:08d}", lambda f: save_weights(policy, f), manifest={"step": version})
