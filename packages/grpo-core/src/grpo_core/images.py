"""Pictures as features looked up by index: one that many samples share is stored once and encoded once.

Axes: I pictures of a batch, K pictures of the table, R feature rows of all pictures together, D size of a row.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import check_integer


@dataclass(frozen=True)
class ImageTable:
    """Features of K different pictures, one below the other; pictures may have different numbers of rows."""

    index: dict[Hashable, int]
    """Content key → number of the picture, in the order of first use."""
    features: Tensor
    """[R, D]; may have a graph, then the encoder gets the summed gradient of all uses."""
    offsets: Tensor
    """[K + 1] int64: picture k is ``features[offsets[k]:offsets[k + 1]]``."""


def build_image_table(keys: Iterable[Hashable], encode: Callable[[Hashable], Tensor]) -> ImageTable:
    """Call ``encode(key) → [rows, D]`` once for every *different* key and keep the results in one table.

    The key must name the picture's content (a hash of its pixels, or task and state), not where it was used.
    """
    index: dict[Hashable, int] = {}
    parts: list[Tensor] = []
    for key in keys:
        if key in index:
            continue
        rows = encode(key)
        if rows.dim() != 2 or (parts and rows.shape[1] != parts[0].shape[1]):
            raise ValueError(f"encode({key!r}): expected shape [rows, D], the same D for all, got {tuple(rows.shape)}")
        index[key] = len(parts)
        parts.append(rows)
    offsets = torch.tensor([0, *(part.shape[0] for part in parts)]).cumsum(0)
    return ImageTable(index, torch.cat(parts) if parts else torch.zeros(0, 0), offsets)


def gather_images(table: ImageTable, pictures: Tensor) -> Tensor:
    """Feature rows of the pictures [I] in the order asked for, a picture as often as it is named: [rows, D].

    Raises ValueError for a number that the table does not have.
    """
    check_integer("pictures", pictures)
    if pictures.dim() != 1:
        raise ValueError(f"pictures: expected shape [I], got {tuple(pictures.shape)}")
    if pictures.numel() and not 0 <= int(pictures.min()) <= int(pictures.max()) < len(table.index):
        raise ValueError(f"pictures: expected 0..{len(table.index) - 1}, got {pictures.tolist()}")
    device = table.features.device
    pictures_I, offsets = pictures.to(device), table.offsets.to(device)
    starts_I, counts_I = offsets[pictures_I], offsets[pictures_I + 1] - offsets[pictures_I]
    first_I = counts_I.cumsum(0) - counts_I
    within = torch.arange(int(counts_I.sum()), device=device) - first_I.repeat_interleave(counts_I)
    return table.features[starts_I.repeat_interleave(counts_I) + within]


def mrope_positions(segments: Iterable[int | tuple[int, int, int]]) -> Tensor:
    """Rotary positions (time, height, width) of text and merged pictures: [3, T] int64. Qwen2-VL, arXiv 2409.12191.

    Text tokens count on all three axes alike; a picture starts where the text stands, holds its time and spreads its grid;
    what follows starts one after the largest position so far.

    Args:
        segments: an int is that many text tokens; ``(frames, height, width)`` is a picture *after* merging.
    """
    parts: list[Tensor] = []
    start = 0
    for segment in segments:
        if isinstance(segment, int):
            parts.append((start + torch.arange(segment)).expand(3, -1))
            start += segment
        else:
            axes = torch.meshgrid(*(torch.arange(size) for size in segment), indexing="ij")
            parts.append(start + torch.stack(axes).reshape(3, -1))
            start += max(segment)
    return torch.cat(parts, dim=1) if parts else torch.zeros(3, 0, dtype=torch.int64)
