"""Every way in which published weights have failed to arrive is caught by its name, before a rollout samples with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import exported, random_policy
from soak import ALLOWED, soak

from grpo_runner.adapters import AdapterError, check_same, read_adapter
from grpo_runner.engine_local import LocalEngine
from grpo_runner.engine_vllm import PublishError, VllmEngine
from grpo_runner.policy import Policy, digest, save_weights
from grpo_runner.publishing import Canary, CanaryError, publish_weights, trained_halves
from vismaze_hooks import Request

Fault = Callable[[str], int]


def rewritten(folder: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    """A copy of an adapter without its manifest, with its tensors changed."""
    shutil.copytree(folder, target)
    (target / "MANIFEST.json").unlink()
    save_file(change(load_file(target / "adapter_model.safetensors")), target / "adapter_model.safetensors")
    return target


def test_a_good_publish_is_proved_cold_and_warm(engine: VllmEngine, canary: Canary, good: Path) -> None:
    assert canary.check(engine, 0)["agreement/canary_gap_max"] <= 1e-4
    assert all(c.cached_tokens > 0 for c in engine.generate(canary._requests))
    engine.publish(good, 1)
    assert canary.check(engine, 1)["agreement/canary_gap_max"] <= 1e-4


def test_the_canary_serves_the_local_engine_too(local: LocalEngine, canary: Canary, policy: Policy, tmp_path: Path) -> None:
    metrics = publish_weights(local, canary, exported(policy, tmp_path), 3, adapter=policy.trained)
    assert metrics["agreement/canary_gap_max"] <= 1e-4


def test_without_an_adapter_the_gap_is_measured(base: Path, canary: Canary) -> None:
    engine = LocalEngine(model=str(base), lora={"rank": 4, "alpha": 8.0, "targets": "language"})
    fresh = Canary(canary._score, canary._requests, None)
    gap = fresh.measure(engine)
    assert gap <= 1e-4 and fresh.tolerance == 3 * gap


def test_fifty_publishes_leave_no_trace(engine: VllmEngine, base: Path, policy: Policy, tmp_path: Path) -> None:
    """Memory stays flat and the slot holds exactly the last adapter. `make soak` does a thousand."""
    result = soak(engine, [exported(random_policy(base, seed), tmp_path / str(seed)) for seed in (1, 2)], publishes=50)
    assert result.publishes == 50 and result.grown_bytes <= ALLOWED


def test_a_missing_reload_flag_is_caught(engine: VllmEngine, base: Path, tmp_path: Path, fault: Fault) -> None:
    folder = exported(random_policy(base, 8), tmp_path)
    fault("no reload flag")
    with pytest.raises(PublishError, match=r"same adapter id at a new path was not read again.*reload flag was missing"):
        engine.publish(folder, 1)
    fault("")
    with pytest.raises(PublishError, match="nothing is sampled"):
        engine.generate(_one(engine))


def _one(engine: VllmEngine) -> list[Request]:
    return [Request(engine.processors.chat.encode("Go to the goal.\n"), (), 0, 2, 1.0)]


def test_a_sticky_reload_flag_is_caught(engine: VllmEngine, canary: Canary, good: Path, fault: Fault) -> None:
    engine.publish(good, 1)
    fault("sticky reload flag")
    with pytest.raises(PublishError, match="sticky reload flag"):
        canary.check(engine, 1)


def test_a_stale_prefix_cache_is_caught(
    engine: VllmEngine, canary: Canary, base: Path, tmp_path: Path, policy: Policy, fault: Fault
) -> None:
    """The cache's key names the adapter's path: the same path again, and no reset, is the old weights' answers."""
    fault("stale prefix cache")
    engine.generate(canary._requests)
    engine.publish(exported(random_policy(base, 8), tmp_path), 1)
    with pytest.raises(CanaryError, match=r"stale prefix cache: \d+ prompt tokens"):
        canary.check(engine, 1)


def test_a_cache_that_is_not_reset_is_caught(engine: VllmEngine, good: Path, fault: Fault) -> None:
    fault("cache not reset")
    with pytest.raises(PublishError, match="stale prefix cache: the engine did not reset it"):
        engine.publish(good, 1)


def test_gate_and_up_swapped_by_the_engine_are_caught(engine: VllmEngine, base: Path, tmp_path: Path, fault: Fault) -> None:
    fault("gate and up swapped")
    with pytest.raises(
        PublishError, match=r"mlp\.gate_proj in the engine's active slot holds the weights of .*up_proj: swapped"
    ):
        engine.publish(exported(random_policy(base, 8), tmp_path), 1)


def test_an_adapter_that_is_never_passed_is_caught_by_the_canary(engine: VllmEngine, canary: Canary, fault: Fault) -> None:
    fault("adapter never passed")
    with pytest.raises(CanaryError, match="agree with the base model: the engine does not apply the adapter"):
        canary.check(engine, 0)


def test_other_weights_than_the_trainers_are_caught_by_the_canary(
    engine: VllmEngine, canary: Canary, base: Path, tmp_path: Path
) -> None:
    engine.publish(exported(random_policy(base, 8), tmp_path), 1)
    with pytest.raises(CanaryError, match=r"differ by .* at most 0\.0001 is allowed\..*holds other weights"):
        canary.check(engine, 1)


def swap(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    other = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
    return {"".join(other.get(p, p) for p in _split(k)): v for k, v in weights.items()}


def _split(key: str) -> list[str]:
    return [p for part in key.split(".") for p in (part, ".")][:-1]


def test_an_adapter_file_with_gate_and_up_swapped_is_caught(good: Path, policy: Policy, tmp_path: Path) -> None:
    folder = rewritten(good, tmp_path / "swapped", swap)
    with pytest.raises(AdapterError, match=r"gate_proj is not what is trained; it holds the weights of .*up_proj: swapped"):
        check_same(read_adapter(folder), trained_halves(policy.trained), folder)


def test_the_right_file_is_accepted(good: Path, policy: Policy, engine: VllmEngine) -> None:
    adapter = read_adapter(good)
    check_same(adapter, trained_halves(policy.trained), good)
    assert adapter.scale == 2.0 and adapter.halves.keys() == engine.places.keys()


def test_keys_with_default_are_caught(engine: VllmEngine, good: Path, tmp_path: Path) -> None:
    folder = rewritten(good, tmp_path / "a", lambda w: {k.replace(".weight", ".default.weight"): v for k, v in w.items()})
    with pytest.raises(AdapterError, match=r"\.default\.weight' is not .*'\.default' is not part of a saved adapter"):
        engine.publish(folder, 1)


def test_alpha_zero_is_caught(engine: VllmEngine, good: Path, tmp_path: Path) -> None:
    folder = rewritten(good, tmp_path / "a", dict)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "lora_alpha": 0}))
    with pytest.raises(AdapterError, match="lora_alpha is 0"):
        engine.publish(folder, 1)


@pytest.mark.parametrize("manifest", [True, False])
def test_a_half_written_file_is_caught(engine: VllmEngine, good: Path, tmp_path: Path, manifest: bool) -> None:
    folder = shutil.copytree(good, tmp_path / "a")
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if not manifest:
        (folder / "MANIFEST.json").unlink()
    with pytest.raises(AdapterError, match="half-written or damaged adapter"):
        engine.publish(folder, 1)
    assert engine.version == 0, "the weights before are still served"
    engine.generate(_one(engine))


def test_a_lacking_module_and_one_too_many_are_caught(engine: VllmEngine, good: Path, tmp_path: Path) -> None:
    lacking = rewritten(good, tmp_path / "a", lambda w: {k: v for k, v in w.items() if "layers.1.mlp.up_proj" not in k})
    with pytest.raises(AdapterError, match=r"places without weights \['model\.language_model\.layers\.1\.mlp\.up_proj'\]"):
        engine.publish(lacking, 1)
    tower = rewritten(
        good,
        tmp_path / "b",
        lambda w: w | {k.replace("language_model.layers", "visual.blocks"): v.clone() for k, v in w.items()},
    )
    with pytest.raises(AdapterError, match="modules without a place"):
        engine.publish(tower, 1)


def test_an_adapter_of_another_base_is_caught(engine: VllmEngine, good: Path, tmp_path: Path) -> None:
    narrow = rewritten(good, tmp_path / "a", lambda w: {k: v[:, :-1].clone() if "lora_A" in k else v for k, v in w.items()})
    with pytest.raises(AdapterError, match="adapter for another base"):
        engine.publish(narrow, 1)


def test_digests_are_of_the_weights(policy: Policy, good: Path, tmp_path: Path) -> None:
    save_weights(policy, tmp_path)
    assert read_adapter(tmp_path).digests() == read_adapter(good).digests()
    assert digest(policy.trained) == digest(policy.trained)
