"""Pictures: identity, patches and the features of the vision tower, each made once per distinct picture."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from grpo_runner.lanes import side_by_side
from vismaze_hooks import Image


def identify(pixels: np.ndarray) -> Image:
    """Return a picture with the sha256 of its shape and bytes."""
    pixels = np.ascontiguousarray(pixels)
    digest = hashlib.sha256(repr(pixels.shape).encode())
    digest.update(pixels.data)
    return Image(pixels, digest.hexdigest())


@dataclass(frozen=True)
class Patches:
    """What the image processor makes of one picture."""

    values: torch.Tensor  # float32 [patches, channels * temporal * patch * patch]
    grid: tuple[int, int, int]  # frames, rows, columns of patches


class PatchStore:
    """The image processor behind a bounded cache by content: pictures repeat from turn to turn and sample to sample."""

    def __init__(self, processor: object, limit_bytes: int = 512 << 20) -> None:
        self._processor = processor
        self._limit = limit_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, Patches] = OrderedDict()

    def get(self, images: Iterable[Image]) -> list[Patches]:
        """Return the patches of each picture, in order."""
        images = list(images)
        missing = {i.sha256: i for i in images if i.sha256 not in self._kept}
        found = {sha: self._kept[sha] for sha in {i.sha256 for i in images} - missing.keys()}
        if missing:
            batch = self._processor([np.asarray(i.pixels) for i in missing.values()], return_tensors="pt")  # type: ignore[operator]
            grids = [tuple(g) for g in batch["image_grid_thw"].tolist()]
            parts = torch.split(batch["pixel_values"], [a * b * c for a, b, c in grids])
            for sha, values, grid in zip(missing, parts, grids, strict=True):
                found[sha] = self._kept[sha] = Patches(values.clone(), grid)
                self._bytes += values.numel() * 4
        for image in images:
            if image.sha256 in self._kept:
                self._kept.move_to_end(image.sha256)
        while self._bytes > self._limit and self._kept:
            _, old = self._kept.popitem(last=False)
            self._bytes -= old.values.numel() * 4
        return [found[i.sha256] for i in images]


@dataclass(frozen=True)
class FeatureTable:
    """Features of distinct pictures, looked up by index: one row a visual token."""

    rows: torch.Tensor  # [visual tokens, 1 + deepstack levels, hidden]
    starts: dict[str, int]  # picture sha256 -> first row
    counts: dict[str, int]  # picture sha256 -> visual tokens
    parts: Sequence[torch.Tensor] = ()  # the rows by pass of the vision tower, with their graphs

    def of(self, sha: str) -> torch.Tensor:
        """Return the rows of one picture."""
        return self.rows[self.starts[sha] : self.starts[sha] + self.counts[sha]]

    def index(self, shas: Sequence[str]) -> torch.Tensor:
        """Return the row numbers of a sequence of pictures (with repeats), concatenated: long [tokens]."""
        parts = [np.arange(self.starts[s], self.starts[s] + self.counts[s]) for s in shas]
        return torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0, dtype=torch.long)


class FeatureCache:
    """Features of pictures by content, for as long as the vision tower's weights stay the same.

    With a frozen tower, rollout, old log-probs, update and evaluation share one: each distinct picture is encoded once.
    """

    def __init__(self, limit_tokens: int = 400_000) -> None:
        self._limit = limit_tokens
        self._kept: OrderedDict[str, torch.Tensor] = OrderedDict()  # [visual tokens, 1 + deepstack levels, hidden]
        self._tokens = 0
        self.encoded = 0  # pictures that went through the vision tower

    def table(self, visual: torch.nn.Module, patches: PatchStore, images: Iterable[Image], merge: int) -> FeatureTable:
        """Return the features of distinct pictures, encoding (without a graph) those that are not kept."""
        wanted = {i.sha256: i for i in images}
        missing = [i for sha, i in wanted.items() if sha not in self._kept]
        with torch.no_grad():
            made = encode_images(visual, patches, missing, merge)
        self.encoded += len(missing)
        for image in missing:
            rows = made.of(image.sha256)
            self._kept[image.sha256] = rows
            self._tokens += len(rows)
        for sha in wanted:
            self._kept.move_to_end(sha)
        parts = [self._kept[sha] for sha in wanted]
        while self._tokens > self._limit and self._kept:
            self._tokens -= len(self._kept.popitem(last=False)[1])
        return _table(list(wanted), [len(p) for p in parts], parts)

    def clear(self) -> None:
        """Forget everything: the tower's weights have changed."""
        self._kept.clear()
        self._tokens = 0


def encode_images(visual: torch.nn.Module, store: PatchStore, images: Sequence[Image], merge: int) -> FeatureTable:
    """Encode distinct pictures; with a graph if gradients are on."""
    patches = dict(zip((i.sha256 for i in images), store.get(images), strict=True))
    order = sorted(patches, key=lambda sha: patches[sha].grid)  # stable: one size after the other
    parts = encode(visual, [patches[sha] for sha in order])
    return _table(order, [_tokens(patches[sha], merge) for sha in order], parts)


def _tokens(patches: Patches, merge: int) -> int:
    return patches.grid[0] * patches.grid[1] * patches.grid[2] // merge**2


def _table(shas: Sequence[str], counts: Sequence[int], parts: Sequence[torch.Tensor]) -> FeatureTable:
    starts = np.concatenate([[0], np.cumsum(counts)]).tolist()
    rows = torch.cat(list(parts)) if parts else torch.zeros(0)
    return FeatureTable(rows, dict(zip(shas, starts, strict=False)), dict(zip(shas, counts, strict=True)), parts)


def _equal_images(module, query, key, value, attention_mask, scaling, image_tokens, **_):  # type: ignore[no-untyped-def]
    """Attention inside each of many equally large pictures, as one batched product.

    The library walks over pictures in Python unless flash attention is there; for hundreds of small pictures that walk
    is most of the time.
    """
    _, heads, total, width = query.shape
    shape = (heads, total // image_tokens, image_tokens, width)
    query, key, value = (t.reshape(shape) for t in (query, key, value))
    weights = torch.softmax(torch.matmul(query * scaling, key.transpose(-1, -2)), dim=-1)
    mixed = torch.matmul(weights, value)  # [heads, pictures, tokens, width]
    return mixed.permute(1, 2, 0, 3).reshape(1, total, heads, width), None


AttentionInterface.register("equal_images", _equal_images)


def encode(visual: torch.nn.Module, patches: Sequence[Patches], *, chunk_patches: int = 800) -> list[torch.Tensor]:
    """Run the vision tower over pictures, those of one size (side by side) together.

    Args:
        patches: neighbours of equal size share a pass.
        chunk_patches: patches of a pass.

    Returns:
        One float [visual tokens, 1 + deepstack levels, hidden] a pass, in order.
    """
    passes: list[tuple[tuple[int, int, int], list[torch.Tensor]]] = []
    for patch in patches:
        full = (
            not passes or passes[-1][0] != patch.grid or len(passes[-1][1]) >= chunk_patches // (patch.grid[1] * patch.grid[2])
        )
        if full:
            passes.append((patch.grid, []))
        passes[-1][1].append(patch.values)
    return side_by_side(lambda one: _encode_equal(visual, torch.cat(one[1]), one[0], len(one[1])), passes)


def _encode_equal(visual, values: torch.Tensor, grid: tuple[int, int, int], count: int) -> torch.Tensor:  # type: ignore[no-untyped-def]
    one = torch.tensor([grid])
    merge = visual.spatial_merge_size
    indices, weights = get_vision_interpolation_indices_and_weights(
        one,
        num_grid_per_side=visual.num_grid_per_side,
        mode=visual.interpolation_mode,
        align_corners=visual.interpolation_align_corners,
        spatial_merge_size=merge,
    )
    tokens = grid[0] * grid[1] * grid[2]
    device, dtype = visual.patch_embed.proj.weight.device, visual.patch_embed.proj.weight.dtype
    extra = {}
    if visual.config._attn_implementation == "equal_images":
        extra = {"cu_seqlens": torch.tensor([0, tokens * count], dtype=torch.int32), "image_tokens": grid[1] * grid[2]}
    out = visual(
        values.to(device, dtype),
        grid_thw=one.repeat(count, 1).to(device),
        interp_indices=indices.repeat(count, 1).to(device),
        interp_weights=weights.repeat(count, 1).to(device),
        position_ids=get_vision_position_ids(one, merge).repeat(count, 1).to(device),
        return_dict=True,
        **extra,
    )
    levels = [out.pooler_output, *out.deepstack_features]
    return torch.stack([level.view(count * tokens // merge**2, -1) for level in levels], dim=1)
