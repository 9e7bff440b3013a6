"""Log-probs of chosen tokens from hidden states and the output head, without the [tokens, vocabulary] matrix.

Axes: N trained tokens, D hidden size, V vocabulary, C vocabulary rows of a tile, K tokens of a tile.

    z_v = (h · W_v + b_v) / T,      log p_y = z_y − logsumexp_v z_v,      H = −Σ_v p_v log p_v

The logits exist only as tiles [K, C] in float32. With E = Σ_v p_v W_v, the gradient to a hidden state is
g (W_y − E) / T, so for a frozen head the forward pass gathers E beside the running softmax (online, as in
Milakov & Gimelshein, arXiv 1805.02867) and the backward pass needs no logits at all. For a trained head, and for the
gradient of the entropy, the tiles are made a second time.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._checks import check_device, check_floating, check_integer, check_positive, check_shape, widen

_FLOOR = -1e30
"""Start of the running maximum: finite, so that −inf minus it stays −inf and never becomes NaN."""
_ZERO = -1e4
"""exp() of it is exactly 0 in every dtype, and 0 × it is 0, where 0 × −inf would be NaN."""


class ImpossibleTokenError(ValueError):
    """A token that is said to have been sampled has probability 0 under the policy."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    banned_ids: Tensor | None = None,
    chunk_size: int = 2048,
    chunk_tokens: int = 1024,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log p of each target, and on demand the entropy of its distribution; float32 inside (float64 for float64).

    Give it the hidden states of the trained positions only: the state that *predicts* the target, one place before it.
    Gradients flow to ``hidden``, ``weight`` and ``bias``, whichever require them, from both results. Peak memory is a few
    tiles of chunk_tokens × chunk_size float32 numbers and a [N, D] matrix.

    Args:
        hidden: [N, D] floating-point.
        weight: [V, D] the output head, on the same device.
        targets: [N] integers in 0..V-1.
        bias: [V] or None.
        temperature: the one that the tokens were sampled at; above 0.
        banned_ids: [K] integers that the sampler can never draw (placeholders of pictures, …): logit −inf here too.
        chunk_size: vocabulary rows per tile.
        chunk_tokens: tokens per tile.
        with_entropy: also return the entropy, finite where some logits are −inf.

    Returns:
        ``(logprobs [N], entropy [N] or None)``.

    Raises:
        ImpossibleTokenError: a target is banned or has the logit −inf.
        ValueError: shape, dtype, device or range of an argument, naming it.
    """
    _check(hidden, weight, targets, bias, temperature, chunk_size, chunk_tokens)
    banned_V = _banned(banned_ids, targets, weight.shape[0])
    logprobs_N, entropy_N = _TokenLogprobs.apply(
        hidden, weight, bias, targets.to(torch.int64), banned_V, temperature, (chunk_size, chunk_tokens), with_entropy,
        torch.is_grad_enabled(),
    )  # fmt: skip
    _refuse_impossible(logprobs_N.detach(), targets)
    return logprobs_N, entropy_N if with_entropy else None


def logits_logprobs(
    logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    banned_ids: Tensor | None = None,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """:func:`token_logprobs` for logits [..., V] that exist already, with targets [...]; plain autograd, float32 inside."""
    check_floating("logits", logits)
    check_integer("targets", targets)
    check_shape("targets", targets, logits.shape[:-1], "logits without the vocabulary")
    check_device("targets", targets, logits, "logits")
    check_positive("temperature", temperature)
    scaled = widen(logits) / temperature
    banned_V = _banned(banned_ids, targets, logits.shape[-1])
    if banned_V is not None:
        scaled = scaled.masked_fill(banned_V, -torch.inf)
    distribution = scaled.log_softmax(-1)
    _check_range(targets, logits.shape[-1])
    logprobs = distribution.gather(-1, targets.to(torch.int64).unsqueeze(-1)).squeeze(-1)
    _refuse_impossible(logprobs.detach().reshape(-1), targets.reshape(-1))
    if not with_entropy:
        return logprobs, None
    possible = torch.where(distribution > -torch.inf, distribution, 0.0)  # before exp(): 0 × −inf is NaN, backward too
    return logprobs, -(torch.where(distribution > -torch.inf, possible.exp(), 0.0) * possible).sum(-1)


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, temperature: float, *chunks: int) -> None:
    check_floating("hidden", hidden)
    check_floating("weight", weight)
    check_integer("targets", targets)
    if hidden.dim() != 2:
        raise ValueError(f"hidden: expected shape [N, D], got {tuple(hidden.shape)}")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[1]:
        raise ValueError(f"weight: expected shape [V, {hidden.shape[1]}], got {tuple(weight.shape)}")
    check_shape("targets", targets, hidden.shape[:1], "hidden's first axis")
    check_device("weight", weight, hidden, "hidden")
    check_device("targets", targets, hidden, "hidden")
    if bias is not None:
        check_floating("bias", bias)
        check_shape("bias", bias, weight.shape[:1], "weight's first axis")
        check_device("bias", bias, hidden, "hidden")
    check_positive("temperature", temperature)
    for name, size in zip(("chunk_size", "chunk_tokens"), chunks, strict=True):
        check_positive(name, size)
    _check_range(targets, weight.shape[0])


def _check_range(targets: Tensor, vocabulary: int) -> None:
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < vocabulary:
        raise ValueError(f"targets: expected ids in 0..{vocabulary - 1}, got {int(targets.min())}..{int(targets.max())}")


def _banned(banned_ids: Tensor | None, targets: Tensor, vocabulary: int) -> Tensor | None:
    if banned_ids is None:
        return None
    check_integer("banned_ids", banned_ids)
    if banned_ids.dim() != 1:
        raise ValueError(f"banned_ids: expected shape [K], got {tuple(banned_ids.shape)}")
    if banned_ids.numel() and not 0 <= int(banned_ids.min()) <= int(banned_ids.max()) < vocabulary:
        raise ValueError(f"banned_ids: expected ids in 0..{vocabulary - 1}, got {banned_ids.tolist()}")
    banned_V = torch.zeros(vocabulary, dtype=torch.bool, device=targets.device)
    banned_V[banned_ids.to(targets.device, torch.int64)] = True
    return banned_V


def _refuse_impossible(logprobs_N: Tensor, targets_N: Tensor) -> None:
    impossible_N = torch.isneginf(logprobs_N)
    if bool(impossible_N.any()):
        places = impossible_N.nonzero().squeeze(1)[:8]
        raise ImpossibleTokenError(
            f"targets: {int(impossible_N.sum())} of {logprobs_N.numel()} tokens cannot be sampled (logit −inf or banned); "
            f"first at {places.tolist()} with ids {targets_N[places].tolist()}"
        )


class _Tiles:
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


class _TokenLogprobs(torch.autograd.Function):
    """See the module's docstring; saves its inputs and [N]- and [N, D]-sized results only."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, banned: Tensor | None,
        temperature: float, chunks: tuple[int, int], with_entropy: bool, grad: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        tiles = _Tiles(hidden, weight, bias, targets, banned, temperature, chunks)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        gather = grad and needs_hidden and not (needs_weight or needs_bias)
        with torch.autocast(hidden.device.type, enabled=False):  # its matmuls would run in half precision
            target_N, most_N, total_N, product_N, mean_ND = _online_softmax(tiles, with_entropy, gather)
        entropy_N = total_N.log() - product_N / total_N
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, targets, banned, most_N + total_N.log(), entropy_N, mean_ND)
        ctx.temperature, ctx.chunks = temperature, chunks
        if not with_entropy:
            ctx.mark_non_differentiable(entropy_N)
        return target_N - most_N - total_N.log(), entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor | None, grad_entropy_N: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, banned, normaliser_N, entropy_N, mean_ND = ctx.saved_tensors
        tiles = _Tiles(hidden, weight, bias, targets, banned, ctx.temperature, ctx.chunks)
        if grad_N is None:
            grad_N = torch.zeros_like(normaliser_N)
        with torch.autocast(hidden.device.type, enabled=False):
            if mean_ND is not None and grad_entropy_N is None:
                grad_hidden = weight[targets].to(tiles.dtype).sub_(mean_ND).mul_((grad_N / ctx.temperature).unsqueeze(1))
                return (grad_hidden.to(hidden.dtype), *[None] * 8)
            grads = _recompute(tiles, grad_N, grad_entropy_N, normaliser_N, entropy_N, ctx.needs_input_grad[:3], hidden)
        return (*grads, *[None] * 6)


def _online_softmax(tiles: _Tiles, with_entropy: bool, gather: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """One pass over the tiles: target logit, maximum m, Σ e^(z−m), Σ e^(z−m) (z−m), and E where ``gather``."""
    scaled_ND = tiles.scaled_ND
    target_N, total_N, product_N = (scaled_ND.new_zeros(scaled_ND.shape[0]) for _ in range(3))
    most_N = torch.full_like(total_N, _FLOOR)
    mean_ND = torch.zeros_like(scaled_ND) if gather else None
    for part, rows_CD in tiles.vocabulary():
        for some in tiles.tokens():
            logits_KC = tiles.logits(some, part, rows_CD)
            place_K1, here_K1 = tiles.place(some, part)
            target_N[some] = torch.where(here_K1, logits_KC.gather(1, place_K1), target_N[some, None]).squeeze(1)
            old_K = most_N[some].clone()
            most_N[some] = torch.maximum(old_K, logits_KC.amax(1))
            keep_K = (old_K - most_N[some]).exp()
            shifted_KC = logits_KC.sub_(most_N[some, None]).clamp_(min=_ZERO)
            if with_entropy:
                moved_K = keep_K * (product_N[some] + (old_K - most_N[some]) * total_N[some])
                product_N[some] = moved_K + (shifted_KC.exp() * shifted_KC).sum(1)
            share_KC = shifted_KC.exp_()
            total_N[some] = total_N[some] * keep_K + share_KC.sum(1)
            if mean_ND is not None:
                torch.addmm(mean_ND[some].mul_(keep_K.unsqueeze(1)), share_KC, rows_CD, out=mean_ND[some])
    if mean_ND is not None:
        mean_ND /= total_N.unsqueeze(1)
    return target_N, most_N, total_N, product_N, mean_ND


def _recompute(
    tiles: _Tiles, grad_N: Tensor, grad_entropy_N: Tensor | None, normaliser_N: Tensor, entropy_N: Tensor,
    needs: tuple[bool, ...], hidden: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """∂/∂z_v = g (1[v = y] − p_v) − g_H p_v (log p_v + H), tile by tile, carried on to hidden states, head and bias."""
    grad_ND = torch.zeros_like(tiles.scaled_ND) if needs[0] else None
    grad_VD = torch.empty_like(tiles.weight) if needs[1] else None
    grad_V = torch.empty_like(tiles.bias) if needs[2] and tiles.bias is not None else None
    for part, rows_CD in tiles.vocabulary():
        rows_grad_CD = torch.zeros_like(rows_CD) if needs[1] else None
        bias_grad_C = rows_CD.new_zeros(rows_CD.shape[0])
        for some in tiles.tokens():
            log_KC = tiles.logits(some, part, rows_CD).sub_(normaliser_N[some, None])
            factor_K1 = grad_N[some, None]
            if grad_entropy_N is None:
                slope_KC = log_KC.exp_().mul_(-factor_K1)
            else:
                bent_KC = log_KC.clamp_(min=_ZERO).add(entropy_N[some, None]).mul_(-grad_entropy_N[some, None])
                slope_KC = bent_KC.sub_(factor_K1).mul_(log_KC.exp_())
            place_K1, here_K1 = tiles.place(some, part)
            slope_KC.scatter_add_(1, place_K1, torch.where(here_K1, factor_K1, 0.0))
            if grad_ND is not None:
                grad_ND[some].addmm_(slope_KC, rows_CD)
            if rows_grad_CD is not None:
                rows_grad_CD.addmm_(slope_KC.T, tiles.scaled_ND[some])
            bias_grad_C += slope_KC.sum(0)
        if grad_VD is not None and rows_grad_CD is not None:
            grad_VD[part] = rows_grad_CD.to(grad_VD.dtype)
        if grad_V is not None:
            grad_V[part] = (bias_grad_C / tiles.temperature).to(grad_V.dtype)
    if grad_ND is not None:
        grad_ND = (grad_ND / tiles.temperature).to(hidden.dtype)
    return grad_ND, grad_VD, grad_V
