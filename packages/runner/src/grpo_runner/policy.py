"""The policy: a Qwen3-VL with or without LoRA, seen as pictures -> features and (ids, features) -> hidden states."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer, DynamicCache
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from grpo_runner.chat import Chat, Vocabulary, expand, rope_positions, vocabulary
from grpo_runner.files import sha256_file
from grpo_runner.pictures import FeatureCache, PatchStore
from vismaze_hooks import Image

LANGUAGE_LINEARS = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
VISION_LINEARS = r".*visual\.(blocks|merger|deepstack_merger_list).*\.(qkv|proj|linear_fc1|linear_fc2)"
TARGETS = {
    "language": LANGUAGE_LINEARS,
    "all-linear": rf"{LANGUAGE_LINEARS}|{VISION_LINEARS}",
}
"""Named sets of LoRA targets, as regular expressions over module names. vLLM serves "language"."""


@dataclass(frozen=True)
class Processors:
    """What stands before the model. Pure functions behind caches; shared by every policy of a process."""

    tokenizer: object
    chat: Chat
    vocabulary: Vocabulary
    patches: PatchStore
    merge: int  # patches a side per visual token


def load_processors(folder: Path) -> Processors:
    """Load tokenizer and image processor from a model folder; one object a process, so that its caches are shared.

    Raises:
        ValueError: the folder lacks either, or the tokenizer is not a Qwen-VL one.
    """
    for name in ("config.json", "tokenizer.json", "preprocessor_config.json"):
        if not (folder / name).is_file():
            raise ValueError(f"model folder {folder} has no {name}; save model, tokenizer and image processor together there")
    return _load_processors(str(folder.resolve()), _stamp(folder))


def shared_features(folder: Path) -> FeatureCache:
    """Return this process's cache of picture features for a model folder whose vision tower is frozen."""
    return _shared_features(str(folder.resolve()), _stamp(folder))


@cache
def _load_processors(folder: str, _: tuple) -> Processors:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    return Processors(
        tokenizer, Chat(tokenizer), vocabulary(tokenizer), PatchStore(image_processor), int(image_processor.merge_size)
    )


@cache
def _shared_features(folder: str, _: tuple) -> FeatureCache:
    return FeatureCache()


def _stamp(folder: Path) -> tuple:
    """What changes when the folder's files are written anew."""
    return tuple((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in sorted(folder.iterdir()) if f.is_file())


def model_identity(folder: Path) -> str:
    """Return the sha256 over the weights, configuration, tokenizer and image processor of a model folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors" or path.name in ("config.json", "tokenizer.json", "preprocessor_config.json"):
            digest.update(f"{path.name}\0{sha256_file(path)}\0".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Lora:
    """Settings of the adapter; `targets` is a name of `TARGETS` or a regular expression."""

    rank: int
    alpha: float
    targets: str


class Policy:
    """A model in memory. `core` is the Qwen3-VL whose layers LoRA has been put into; `peft` is None without LoRA."""

    def __init__(self, folder: Path, *, lora: Lora | None, seed: int, dtype: torch.dtype = torch.float32) -> None:
        """
        Raises:
            ValueError: the LoRA targets match no module.
        """
        attention = {"vision_config": "equal_images" if not torch.cuda.is_available() else "sdpa", "text_config": "sdpa"}
        core = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
        self.core = core
        self.peft: PeftModel | None = None
        if lora is not None:
            pattern = TARGETS.get(lora.targets, lora.targets)
            if not any(re.fullmatch(pattern, name) for name, _ in core.named_modules()):
                raise ValueError(f"LoRA targets {lora.targets!r} match no module; use one of {sorted(TARGETS)} or a pattern")
            settings = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=pattern, lora_dropout=0.0, bias="none")
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                self.peft = get_peft_model(core, settings)
        core.eval()
        named = [(n, p) for n, p in core.named_parameters() if p.requires_grad]
        self.trained: dict[str, torch.nn.Parameter] = dict(named)
        self.trains_vision = any(".visual." in f".{n}" for n in self.trained)
        self.device = core.device

    @property
    def head(self) -> torch.Tensor:
        """The output head's weight: float [vocabulary, hidden]."""
        return self.core.lm_head.weight

    def hidden(self, batch: TextBatch, features: torch.Tensor | None, cache: DynamicCache | None = None) -> torch.Tensor:
        """Run the language model.

        Args:
            features: [visual tokens of the batch in reading order, 1 + deepstack levels, hidden], or None without pictures.
            cache: keys and values of what came before; extended in place.

        Returns:
            float [rows, length, hidden], after the final norm.
        """
        vision = None
        if features is not None and len(features):
            vision = BaseModelOutputWithDeepstackFeatures(
                pooler_output=(features[:, 0],),
                deepstack_features=[(features[:, level],) for level in range(1, features.shape[1])],
            )
        out = self.core.model(
            input_ids=batch.ids.to(self.device),
            attention_mask=batch.mask.to(self.device),
            position_ids=batch.positions.to(self.device),
            mm_encoder_outputs={"image": vision} if vision is not None else None,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return out.last_hidden_state


@dataclass(frozen=True)
class TextBatch:
    """Left-padded rows. With a cache, `mask` also covers what is in the cache."""

    ids: torch.Tensor  # long [rows, length]
    mask: torch.Tensor  # long [rows, cached + length]: 1 a token, 0 padding
    positions: torch.Tensor  # long [4, rows, length]: text order, then time, row, column


@dataclass(frozen=True)
class Row:
    """One sequence for the language model."""

    ids: np.ndarray  # int64 [length], placeholders expanded
    positions: np.ndarray  # int64 [3, length]
    shas: tuple[str, ...]  # pictures in reading order


@dataclass
class RowBuilder:
    """Turns unexpanded ids and pictures into rows, remembering grids by picture size."""

    processors: Processors
    grids: dict[tuple[int, ...], tuple[int, int]] = field(default_factory=dict)

    def build(self, ids: Sequence[int], images: Sequence[Image]) -> Row:
        """Return the row of ids with one placeholder for each picture.

        Raises:
            ValueError: placeholders and pictures do not match in number.
        """
        grids = [self.grid(i) for i in images]
        pad = self.processors.vocabulary.image_pad
        expanded = expand(ids, [r * c for r, c in grids], pad)
        return Row(expanded, rope_positions(expanded, grids, pad), tuple(i.sha256 for i in images))

    def grid(self, image: Image) -> tuple[int, int]:
        """Rows and columns of visual tokens; pictures of one size have one grid."""
        size = image.pixels.shape
        if size not in self.grids:
            merge = self.processors.merge
            _, rows, columns = self.processors.patches.get([image])[0].grid
            self.grids[size] = (rows // merge, columns // merge)
        return self.grids[size]


def collate(rows: Sequence[Row], pad_id: int) -> TextBatch:
    """Left-pad rows to one length."""
    length = max(len(r.ids) for r in rows)
    ids = np.full((len(rows), length), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    positions = np.zeros((4, len(rows), length), dtype=np.int64)
    for number, row in enumerate(rows):
        n = len(row.ids)
        ids[number, length - n :] = row.ids
        mask[number, length - n :] = 1
        positions[0, number, length - n :] = np.arange(n)
        positions[1:, number, length - n :] = row.positions
    return TextBatch(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(positions))


def save_weights(policy: Policy, folder: Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write the trainable weights: a plain PEFT adapter folder with LoRA, a model folder without.

    Args:
        weights: the whole weights by name, where the policy itself holds a rank's part of them; default: the policy's own.
    """
    if policy.peft is not None:
        whole = {f"base_model.model.{n}": w.cpu() for n, w in weights.items()} if weights is not None else None
        policy.peft.save_pretrained(folder, state_dict=whole)
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    else:
        policy.core.save_pretrained(folder, state_dict={**policy.core.state_dict(), **weights} if weights is not None else None)


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Return the sha256 of weights, by name, shape and bytes."""
    total = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().contiguous().cpu()
        total.update(f"{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\0".encode())
        total.update(tensor.view(torch.uint8).numpy().data)
    return total.hexdigest()
