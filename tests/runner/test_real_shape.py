"""The shape that the project is for: Qwen3-VL-8B, from the figures of its published configuration, on the meta device."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoImageProcessor, Qwen3VLConfig

from grpo_runner.adapters import vllm_place
from grpo_runner.model_facts import ModelFacts, model_facts
from grpo_runner.policy import LANGUAGE_LINEARS, TARGETS

TEXT = {
    "vocab_size": 151_936,
    "hidden_size": 4_096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262_144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True},
}
VISION = {
    "depth": 27,
    "hidden_size": 1_152,
    "intermediate_size": 4_304,
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 4_096,
    "num_position_embeddings": 2_304,
    "deepstack_visual_indexes": [8, 16, 24],
}
SIZES = {
    "q_proj": 4_096,
    "k_proj": 1_024,
    "v_proj": 1_024,
    "o_proj": 4_096,
    "gate_proj": 12_288,
    "up_proj": 12_288,
    "down_proj": 4_096,
}


@pytest.fixture(scope="module")
def config() -> Qwen3VLConfig:
    return Qwen3VLConfig(text_config=dict(TEXT), vision_config=dict(VISION), tie_word_embeddings=False)


@pytest.fixture(scope="module")
def facts(config: Qwen3VLConfig) -> ModelFacts:
    return model_facts(config, pattern=LANGUAGE_LINEARS, rank=32)


def test_it_has_the_published_number_of_parameters(facts: ModelFacts) -> None:
    assert facts.parameters == 8_767_123_696


def test_the_adapter_is_on_every_language_linear_and_of_the_expected_size(facts: ModelFacts) -> None:
    assert len(facts.targets) == 36 * 7
    for name, (into, out) in facts.targets.items():
        leaf = name.rpartition(".")[2]
        assert out == SIZES[leaf]
        assert into == (12_288 if leaf == "down_proj" else 4_096)
    a_layer = 32 * sum(out + (12_288 if leaf == "down_proj" else 4_096) for leaf, out in SIZES.items())
    assert facts.lora_parameters == 36 * a_layer == 87_293_952


def test_every_target_has_its_place_in_vllm(facts: ModelFacts) -> None:
    assert len(set(facts.vllm_places.values())) == len(facts.targets), "no two targets share a place"
    of_layer_7 = {k.rpartition(".")[2]: v for k, v in facts.vllm_places.items() if ".layers.7." in k}
    attention, mlp = "language_model.model.layers.7.self_attn", "language_model.model.layers.7.mlp"
    assert of_layer_7 == {
        "q_proj": (f"{attention}.qkv_proj", 0),
        "k_proj": (f"{attention}.qkv_proj", 1),
        "v_proj": (f"{attention}.qkv_proj", 2),
        "o_proj": (f"{attention}.o_proj", 0),
        "gate_proj": (f"{mlp}.gate_up_proj", 0),
        "up_proj": (f"{mlp}.gate_up_proj", 1),
        "down_proj": (f"{mlp}.down_proj", 0),
    }


def test_fsdp_takes_the_decoder_layers_one_by_one_and_leaves_the_frozen_tower_whole(facts: ModelFacts) -> None:
    assert facts.shards == tuple(f"model.language_model.layers.{n}" for n in range(36))


@pytest.mark.parametrize(("pixels", "tokens"), [(256, 64), (336, 100), (448, 196)])
def test_a_maze_picture_costs_so_many_tokens(facts: ModelFacts, tmp_path: Path, pixels: int, tokens: int) -> None:
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 16,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    grid = processor([np.zeros((pixels, pixels, 3), np.uint8)], return_tensors="np")["image_grid_thw"][0]
    assert grid.prod() // 4 == tokens == round(pixels / facts.visual_patch) ** 2


def test_targets_in_the_vision_tower_are_refused(config: Qwen3VLConfig) -> None:
    with pytest.raises(ValueError, match=r'visual.*vLLM does not apply.*train\.targets = "language"'):
        model_facts(config, pattern=TARGETS["all-linear"], rank=32)
    with pytest.raises(ValueError, match=r"model\.visual\.merger\.linear_fc1"):
        model_facts(config, pattern=r".*visual\.merger.*", rank=32)


def test_targets_that_match_nothing_are_refused(config: Qwen3VLConfig) -> None:
    with pytest.raises(ValueError, match=r"'\.\*query' match no linear layer of the model, such as"):
        model_facts(config, pattern=".*query", rank=32)


def test_a_name_outside_the_language_model_has_no_place_in_vllm() -> None:
    with pytest.raises(ValueError, match="no layer of the language model"):
        vllm_place("model.visual.blocks.0.attn.qkv")
