"""Builds a genuine, very small Qwen3-VL with tokenizer, chat template and processor, in Hugging Face format.

The folder loads with `from_pretrained` and in vLLM as the published checkpoints do; only the numbers are small.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from transformers import Qwen2Tokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from grpo_runner.files import replace_folder, write_json

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
    "<|video_pad|>",
)  # fmt: skip
"""Qwen's special tokens that a chat with pictures needs."""

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'text' %}{{ part.text }}{% endif -%}
{%- endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


@dataclass(frozen=True)
class TinyShape:
    """The numbers of a small Qwen3-VL. Depth belongs into the vision tower: there every patch sees every other."""

    patch_size: int = 8  # pixels
    merge_size: int = 1  # patches a side per visual token
    vision_depth: int = 8
    vision_hidden: int = 64
    vision_heads: int = 2
    vision_intermediate: int = 128
    deepstack: tuple[int, ...] = (6, 7)  # vision layers whose features enter the first text layers
    text_layers: int = 2
    text_hidden: int = 64
    text_intermediate: int = 128
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 32
    tied: bool = True
    vocab_size: int = 384


SHAPES = {
    "tiny": TinyShape(),
    # other numbers throughout, so that nothing is fitted to one shape
    "tiny-gqa": TinyShape(
        patch_size=16, merge_size=2, vision_depth=4, vision_hidden=48, vision_heads=3, vision_intermediate=96,
        deepstack=(1, 2, 3), text_layers=3, text_hidden=48, text_intermediate=96, heads=4, kv_heads=2, head_dim=16, tied=False,
    ),
}  # fmt: skip


def build_tiny_model(
    folder: Path, *, shape: TinyShape, seed: int, words: Sequence[str], texts: Sequence[str], positions: int = 16
) -> None:
    """Write a small Qwen3-VL to a folder; whole or not at all.

    Args:
        words: answer words and tags; each becomes one token.
        texts: what the tokenizer's merges are learnt from (prompts, feedback).
        positions: side of the learned grid of vision positions.
    """
    tokenizer = _tokenizer(shape, words, texts)
    config = _config(shape, tokenizer, positions)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config)
        _initialise(model)
    with replace_folder(folder) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        (temporary / "chat_template.jinja").write_text(CHAT_TEMPLATE)
        write_json(
            temporary / "preprocessor_config.json", _picture_settings(shape, "image_processor_type", "Qwen2VLImageProcessor")
        )
        video = _picture_settings(shape, "video_processor_type", "Qwen3VLVideoProcessor")
        write_json(temporary / "video_preprocessor_config.json", video)
        (temporary / "tiny_shape.json").write_text(json.dumps(asdict(shape), indent=1))


def _picture_settings(shape: TinyShape, key: str, kind: str) -> dict[str, Any]:
    """The processors' settings as files: transformers builds a video processor only where torchvision is installed."""
    pixels = (shape.patch_size * shape.merge_size) ** 2
    return {
        "processor_class": "Qwen3VLProcessor",
        key: kind,
        "patch_size": shape.patch_size,
        "merge_size": shape.merge_size,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": pixels, "longest_edge": 4096 * pixels},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }


def _tokenizer(shape: TinyShape, words: Sequence[str], texts: Sequence[str]) -> Qwen2Tokenizer:
    """Byte-level BPE with Qwen's pre-tokenisation; the merges are learnt from `texts`."""
    room = shape.vocab_size - len(SPECIAL) - len(words)
    if room < 256:
        raise ValueError(f"vocab_size {shape.vocab_size} leaves {room} places for the 256 bytes and their merges")
    plain = Qwen2Tokenizer(vocab={}, merges=[])
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = plain.backend_tokenizer.pre_tokenizer
    learner.train_from_iterator(
        list(texts),
        trainers.BpeTrainer(vocab_size=room, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False),
    )
    learnt = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learnt["vocab"],
        merges=[tuple(m) for m in learnt["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        model_max_length=32768,
    )
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL], special_tokens=True)
    tokenizer.add_tokens([AddedToken(w, normalized=False, single_word=w.isalpha()) for w in words])
    return tokenizer


def _config(shape: TinyShape, tokenizer: Qwen2Tokenizer, positions: int) -> Qwen3VLConfig:
    sixth = shape.head_dim // 6
    return Qwen3VLConfig(
        text_config={
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.text_hidden,
            "intermediate_size": shape.text_intermediate,
            "num_hidden_layers": shape.text_layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "max_position_embeddings": 8192,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [shape.head_dim // 2 - 2 * sixth, sixth, sixth],
                "mrope_interleaved": True,
            },
            "bos_token_id": None,
            "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
            "pad_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        },
        vision_config={
            "depth": shape.vision_depth,
            "hidden_size": shape.vision_hidden,
            "intermediate_size": shape.vision_intermediate,
            "num_heads": shape.vision_heads,
            "patch_size": shape.patch_size,
            "spatial_merge_size": shape.merge_size,
            "temporal_patch_size": 2,
            "out_hidden_size": shape.text_hidden,
            "num_position_embeddings": positions**2,
            "deepstack_visual_indexes": list(shape.deepstack),
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        tie_word_embeddings=shape.tied,
    )


@torch.no_grad()
def _initialise(model: Qwen3VLForConditionalGeneration) -> None:
    """Fan-in initialisation: at this width the library's constant 0.02 starts far too small and learns far slower."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv3d):
            residual = name.endswith(("o_proj", "down_proj", "attn.proj", "mlp.linear_fc2"))
            std = module.weight[0].numel() ** -0.5 * (0.5 if residual else 1.0)
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.3 if name.endswith("pos_embed") else 0.1)
    if not model.config.tie_word_embeddings:
        nn.init.normal_(model.lm_head.weight, std=0.1)
    else:
        model.lm_head.weight = model.model.language_model.embed_tokens.weight
