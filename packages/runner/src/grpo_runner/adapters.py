"""Adapter folders read with suspicion: what a LoRA file says, where it belongs, and the digests that prove it arrived.

A serving engine takes almost any adapter without a word: keys it does not know, halves that are missing, a scale of 0.
Everything here is refused by name before an engine sees it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText

from grpo_runner.folders import MANIFEST, DamagedFolderError, verify_folder

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])\.weight")
_PACKED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}


class AdapterError(ValueError):
    """An adapter cannot be published: the message names the folder, the fault and the module."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter in memory."""

    scale: float  # alpha / rank: the update of a layer is scale * B @ A
    halves: Mapping[str, tuple[torch.Tensor, torch.Tensor]]  # module -> A [rank, in], B [out, rank]

    def digests(self, dtype: torch.dtype = torch.float32) -> dict[str, str]:
        """Return for each module the sha256 of A and scale * B in the engine's arithmetic."""
        return {name: digest_halves(a.to(dtype), b.to(dtype) * self.scale) for name, (a, b) in self.halves.items()}


def digest_halves(a: torch.Tensor, b: torch.Tensor) -> str:
    """Return the sha256 of two matrices by shape, type and bytes."""
    total = hashlib.sha256()
    for tensor in (a, b):
        total.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        total.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()


def read_adapter(folder: Path) -> Adapter:
    """Read a PEFT adapter folder.

    Raises:
        AdapterError: half-written or damaged, a key that is no LoRA half of a module, a half without its other, a scale
            of 0, or a kind of adapter that engines do not apply.
    """
    if (folder / MANIFEST).is_file():
        try:
            verify_folder(folder)
        except DamagedFolderError as error:
            raise AdapterError(f"half-written or damaged adapter: {error}") from error
    for name in (SETTINGS, WEIGHTS):
        if not (folder / name).is_file():
            raise AdapterError(f"{folder}: half-written adapter: no {name}")
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS)
    except (json.JSONDecodeError, SafetensorError) as error:
        raise AdapterError(f"{folder}: half-written or damaged adapter: {error}") from error
    rank, alpha = int(settings["r"]), float(settings["lora_alpha"])
    for key in ("use_dora", "lora_bias", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save"):
        if settings.get(key):
            raise AdapterError(f"{folder}: {SETTINGS} has {key} = {settings[key]!r}; the runner publishes plain LoRA only")
    if alpha == 0:
        raise AdapterError(f"{folder}: lora_alpha is 0, so the adapter would change nothing; expected train.alpha")
    return Adapter(alpha / rank, _pair(folder, weights, rank))


def _pair(folder: Path, weights: Mapping[str, torch.Tensor], rank: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    found: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in weights.items():
        match = _KEY.fullmatch(key)
        if match is None:
            hint = " (an in-memory name: '.default' is not part of a saved adapter)" if ".default" in key else ""
            raise AdapterError(f"{folder}: key {key!r} is not base_model.model.<module>.lora_A|B.weight{hint}")
        found.setdefault(match["module"], {})[match["half"]] = tensor
    for module, halves in found.items():
        if halves.keys() != {"A", "B"}:
            raise AdapterError(f"{folder}: {module} has only lora_{''.join(halves)}")
        if halves["A"].shape[0] != rank or halves["B"].shape[1] != rank:
            raise AdapterError(f"{folder}: {module} is not of rank {rank}, which {SETTINGS} says")
    return {module: (halves["A"], halves["B"]) for module, halves in sorted(found.items())}


def check_fits(adapter: Adapter, places: Mapping[str, tuple[int, int]], folder: Path) -> None:
    """Refuse an adapter that is not for these places, all of them and with their shapes.

    Args:
        places: module -> (in, out), as `linear_places` gives.

    Raises:
        AdapterError: names the first modules that are too many, lacking or of another shape.
    """
    unknown, lacking = sorted(adapter.halves.keys() - places.keys()), sorted(places.keys() - adapter.halves.keys())
    if unknown or lacking:
        raise AdapterError(
            f"{folder}: the adapter is not for this base model and these targets: modules without a place {unknown[:3]}, "
            f"places without weights {lacking[:3]}"
        )
    for module, (a, b) in adapter.halves.items():
        if (a.shape[1], b.shape[0]) != places[module]:
            got = (a.shape[1], b.shape[0])
            raise AdapterError(f"{folder}: adapter for another base: {module} is {got} there, {places[module]} in this model")


def check_same(adapter: Adapter, trained: Mapping[str, tuple[torch.Tensor, torch.Tensor]], folder: Path) -> None:
    """Refuse an adapter file that does not hold exactly the weights in training.

    Args:
        trained: module -> A, B in the trainer's memory.

    Raises:
        AdapterError: names the first module that differs and, if its weights are another module's, that one.
    """
    owners = {digest_halves(a, b): name for name, (a, b) in trained.items()}
    for module, (a, b) in adapter.halves.items():
        if module not in trained:
            raise AdapterError(f"{folder}: {module} is not trained here")
        digest = digest_halves(a, b)
        if digest != digest_halves(*trained[module]):
            whose = f"; it holds the weights of {owners[digest]}: swapped" if digest in owners else ""
            raise AdapterError(f"{folder}: {module} is not what is trained{whose}")


def linear_places(base: Path, pattern: str) -> dict[str, tuple[int, int]]:
    """Return the linear layers of a base model that a pattern names: module -> (in, out). No weight is read.

    Raises:
        ValueError: the pattern matches nothing, or something that is no linear layer.
    """
    return matching_places(_linears(str(base.resolve()), (base / "config.json").stat().st_mtime_ns), pattern)


def matching_places(linears: Mapping[str, tuple[int, int]], pattern: str) -> dict[str, tuple[int, int]]:
    """Return those linear layers whose whole name a pattern matches.

    Raises:
        ValueError: none.
    """
    found = {name: shape for name, shape in linears.items() if re.fullmatch(pattern, name)}
    if not found:
        raise ValueError(f"the LoRA targets {pattern!r} match no linear layer of the model, such as {sorted(linears)[:2]}")
    return found


def linears_of(model: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Return every linear layer of a model: name -> (in, out)."""
    linear = torch.nn.Linear
    return {n: (m.in_features, m.out_features) for n, m in model.named_modules() if isinstance(m, linear)}


@cache
def _linears(base: str, _: int) -> dict[str, tuple[int, int]]:
    with torch.device("meta"):
        return linears_of(AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(base)))


def check_language_only(places: Mapping[str, tuple[int, int]]) -> None:
    """Refuse targets that vLLM would load and never apply.

    Raises:
        ValueError: names the first of them.
    """
    other = [name for name in places if not name.startswith("model.language_model.")]
    if other:
        raise ValueError(
            f"the LoRA targets reach {other[0]}, outside the language model, where vLLM does not apply an adapter: the engine "
            'would sample from other weights than are trained. Set train.targets = "language"'
        )


def vllm_place(module: str) -> tuple[str, int]:
    """Return where vLLM keeps a language layer: its module and the slice of it.

    Example: `model.language_model.layers.0.mlp.up_proj` -> (`language_model.model.layers.0.mlp.gate_up_proj`, 1).

    Raises:
        ValueError: no layer of the language model.
    """
    head, _, rest = module.partition("model.language_model.")
    if head or not rest:
        raise ValueError(f"{module} is no layer of the language model")
    parent, _, leaf = rest.rpartition(".")
    packed, index = _PACKED.get(leaf, (leaf, 0))
    return f"language_model.model.{parent}.{packed}", index
