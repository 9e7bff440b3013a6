"""The tiles of a [tokens, vocabulary] matrix that is never made: see ``logprobs``, which this module works for.

Axes: N trained tokens, D hidden size, V vocabulary, C vocabulary rows of a tile, K tokens of a tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_FLOOR = -1e30
"""Start of the running maximum: finite, so that −inf minus it stays −inf and never becomes NaN."""
_ZERO = -1e4
"""exp() of it is exactly 0 in every dtype, and 0 × it is 0, where 0 × −inf would be NaN."""


class Tiles:
    """The inputs of one call, cut into vocabulary tiles and token tiles, in the dtype that sums are made in."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, banned: Tensor | None,
        temperature: float, chunks: tuple[int, int],
    ) -> None:  # fmt: skip
        self.weight, self.bias, self.targets, self.banned, self.temperature = weight, bias, targets, banned, temperature
        self.chunk_size, self.chunk_tokens = chunks
        self.dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        self.scaled_ND = hidden.to(self.dtype) / temperature

    def vocabulary(self) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the vocabulary with their rows of the head [C, D]."""
        for start in range(0, self.weight.shape[0], self.chunk_size):
            part = slice(start, min(start + self.chunk_size, self.weight.shape[0]))
            yield part, self.weight[part].to(self.dtype)

    def tokens(self) -> Iterator[slice]:
        """Slices of the tokens."""
        for start in range(0, self.scaled_ND.shape[0], self.chunk_tokens):
            yield slice(start, min(start + self.chunk_tokens, self.scaled_ND.shape[0]))

    def logits(self, some: slice, part: slice, rows_CD: Tensor) -> Tensor:
        """A fresh tile of scaled logits [K, C]."""
        logits_KC = self.scaled_ND[some] @ rows_CD.T
        if self.bias is not None:
            logits_KC += self.bias[part].to(self.dtype) / self.temperature
        return logits_KC if self.banned is None else logits_KC.masked_fill_(self.banned[part], -torch.inf)

    def place(self, some: slice, part: slice) -> tuple[Tensor, Tensor]:
        """Where in the tile each token's target is [K, 1], and whether it is there at all [K, 1]."""
        place_K1 = (self.targets[some] - part.start).unsqueeze(1)
        width = part.stop - part.start
        return place_K1.clamp(0, width - 1), (place_K1 >= 0) & (place_K1 < width)


@dataclass(frozen=True)
class Softmax:
    """What one pass over the tiles knows of each token's distribution."""

    target_N: Tensor
    """Logit of the target."""
    most_N: Tensor
    """Largest logit m."""
    total_N: Tensor
    """Σ e^(z − m)."""
    product_N: Tensor
    """Σ e^(z − m) (z − m), for the entropy; 0 unless asked for."""
    mean_ND: Tensor | None
    """Σ p_v W_v, where gathered."""
    kept: dict[tuple[int, int], tuple[Tensor, Tensor]]
    """(first vocabulary row, first token) → tile of e^(z − m) and the m [K, 1] that it was made with."""


def online_softmax(tiles: Tiles, with_entropy: bool, gather: bool, keep_megabytes: float) -> Softmax:
    """One pass over the tiles with a running maximum; keeps as many tiles as fit."""
    scaled_ND = tiles.scaled_ND
    target_N, total_N, product_N = (scaled_ND.new_zeros(scaled_ND.shape[0]) for _ in range(3))
    most_N = torch.full_like(total_N, _FLOOR)
    mean_ND = torch.zeros_like(scaled_ND) if gather else None
    kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    room = keep_megabytes * 2**20
    for part, rows_CD in tiles.vocabulary():
        for some in tiles.tokens():
            logits_KC = tiles.logits(some, part, rows_CD)
            place_K1, here_K1 = tiles.place(some, part)
            target_N[some] = torch.where(here_K1, logits_KC.gather(1, place_K1), target_N[some, None]).squeeze(1)
            old_K = most_N[some].clone()
            most_N[some] = torch.maximum(old_K, logits_KC.amax(1))
            keep_K = (old_K - most_N[some]).exp()
            shifted_KC = logits_KC.sub_(most_N[some, None])
            if with_entropy:
                shifted_KC.clamp_(min=_ZERO)
                moved_K = keep_K * (product_N[some] + (old_K - most_N[some]) * total_N[some])
                product_N[some] = moved_K + (shifted_KC.exp() * shifted_KC).sum(1)
            share_KC = shifted_KC.exp_()
            total_N[some] = total_N[some] * keep_K + share_KC.sum(1)
            if mean_ND is not None:
                torch.addmm(mean_ND[some].mul_(keep_K.unsqueeze(1)), share_KC, rows_CD, out=mean_ND[some])
            room -= share_KC.nbytes
            if room >= 0:
                kept[part.start, some.start] = (share_KC, most_N[some, None].clone())
    if mean_ND is not None:
        mean_ND /= total_N.unsqueeze(1)
    return Softmax(target_N, most_N, total_N, product_N, mean_ND, kept)


def recompute(
    tiles: Tiles,
    upstream: tuple[Tensor, Tensor | None, Tensor, Tensor],
    needs: tuple[bool, ...],
    dtype: torch.dtype,
    kept: dict[tuple[int, int], tuple[Tensor, Tensor]],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """∂/∂z_v = g (1[v = y] − p_v) − g_H p_v (log p_v + H), tile by tile, carried on to hidden states, head and bias.

    ``upstream`` is g, g_H, log Σ e^z and H of every token; ``needs`` says which of the three gradients are wanted.
    """
    grad_ND = torch.zeros_like(tiles.scaled_ND) if needs[0] else None
    # Every tile writes its rows with its first tokens; only without tokens nothing would.
    make = torch.empty_like if tiles.scaled_ND.shape[0] else torch.zeros_like
    grad_VD = make(tiles.weight) if needs[1] else None
    grad_V = torch.empty_like(tiles.bias) if needs[2] and tiles.bias is not None else None
    for part, rows_CD in tiles.vocabulary():
        rows_grad_CD = _room(grad_VD, part, tiles.dtype)
        bias_grad_C = rows_CD.new_zeros(rows_CD.shape[0])
        for some in tiles.tokens():
            slope_KC = _slope(tiles, some, part, rows_CD, upstream, kept.get((part.start, some.start)))
            if grad_ND is not None:
                grad_ND[some].addmm_(slope_KC, rows_CD)
            if rows_grad_CD is not None:
                rows_grad_CD.addmm_(slope_KC.T, tiles.scaled_ND[some], beta=float(some.start > 0))
            if grad_V is not None:
                bias_grad_C += slope_KC.sum(0)
        if grad_VD is not None and rows_grad_CD is not None and grad_VD.dtype != tiles.dtype:
            grad_VD[part] = rows_grad_CD.to(grad_VD.dtype)
        if grad_V is not None:
            grad_V[part] = (bias_grad_C / tiles.temperature).to(grad_V.dtype)
    if grad_ND is not None:
        grad_ND = (grad_ND / tiles.temperature).to(dtype)
    return grad_ND, grad_VD, grad_V


def _room(grad_VD: Tensor | None, part: slice, dtype: torch.dtype) -> Tensor | None:
    """Where a vocabulary tile's gradient is summed: in its final place, unless that is too coarse for sums."""
    if grad_VD is None or grad_VD.dtype == dtype:
        return None if grad_VD is None else grad_VD[part]
    return torch.empty_like(grad_VD[part], dtype=dtype)


def _slope(
    tiles: Tiles, some: slice, part: slice, rows_CD: Tensor, upstream: tuple[Tensor, Tensor | None, Tensor, Tensor],
    kept: tuple[Tensor, Tensor] | None,
) -> Tensor:  # fmt: skip
    """The gradient to one tile of logits [K, C], from the kept tile or a fresh one."""
    grad_N, grad_entropy_N, normaliser_N, entropy_N = upstream
    factor_K1 = grad_N[some, None]
    if kept is not None:
        share_KC, most_K1 = kept
        slope_KC = share_KC * ((most_K1 - normaliser_N[some, None]).exp() * -factor_K1)
    elif grad_entropy_N is None:
        slope_KC = tiles.logits(some, part, rows_CD).sub_(normaliser_N[some, None]).exp_().mul_(-factor_K1)
    else:
        log_KC = tiles.logits(some, part, rows_CD).sub_(normaliser_N[some, None]).clamp_(min=_ZERO)
        slope_KC = log_KC.add(entropy_N[some, None]).mul_(-grad_entropy_N[some, None]).sub_(factor_K1).mul_(log_KC.exp_())
    place_K1, here_K1 = tiles.place(some, part)
    return slope_KC.scatter_add_(1, place_K1, torch.where(here_K1, factor_K1, 0.0))
