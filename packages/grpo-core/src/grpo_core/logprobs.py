"""Log-probs of chosen tokens from hidden states and the output head, without the [tokens, vocabulary] matrix.

Axes: N trained tokens, D hidden size, V vocabulary, C vocabulary rows of a tile, K tokens of a tile.

    z_v = (h · W_v + b_v) / T,      log p_y = z_y − logsumexp_v z_v,      H = −Σ_v p_v log p_v

The logits exist only as tiles [K, C] in float32. With E = Σ_v p_v W_v, the gradient to a hidden state is
g (W_y − E) / T, so for a frozen head the forward pass gathers E beside the running softmax (online, as in
Milakov & Gimelshein, arXiv 1805.02867) and the backward pass needs no logits at all. For a trained head, and for the
gradient of the entropy, the tiles are made a second time, but for the first ``keep_megabytes`` of them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._checks import check_device, check_floating, check_integer, check_positive, check_shape, widen
from .tiles import Tiles, online_softmax, recompute


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
    keep_megabytes: float = 128.0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log p of each target, and on demand the entropy of its distribution; float32 inside (float64 for float64).

    Give it the hidden states of the trained positions only: the state that *predicts* the target, one place before it.
    Gradients flow to ``hidden``, ``weight`` and ``bias``, whichever require them, from both results. Peak memory is a few
    tiles of chunk_tokens × chunk_size float32 numbers, a [N, D] matrix, and what ``keep_megabytes`` allows.

    Args:
        hidden: [N, D] floating-point.
        weight: [V, D] the output head, on the same device.
        targets: [N] integers in 0..V-1.
        bias: [V] or None.
        temperature: the one that the tokens were sampled at; above 0.
        banned_ids: [K] integers that the sampler can never draw (placeholders of pictures, …): logit −inf here too.
        chunk_size: vocabulary rows per tile.
        chunk_tokens: tokens per tile.
        keep_megabytes: tiles kept from forward to backward instead of made again; only for a trained head, without entropy.
        with_entropy: also return the entropy, finite where some logits are −inf.

    Returns:
        ``(logprobs [N], entropy [N] or None)``.

    Raises:
        ImpossibleTokenError: a target is banned or has the logit −inf.
        ValueError: shape, dtype, device or range of an argument, naming it.
    """
    _check(hidden, weight, targets, bias, temperature, chunk_size, chunk_tokens)
    banned_V = _banned(banned_ids, targets, weight.shape[0])
    settings = (temperature, (chunk_size, chunk_tokens), keep_megabytes, with_entropy, torch.is_grad_enabled())
    logprobs_N, entropy_N = _TokenLogprobs.apply(hidden, weight, bias, targets.to(torch.int64), banned_V, *settings)
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


class _TokenLogprobs(torch.autograd.Function):
    """See the module's docstring; saves its inputs, [N]- and [N, D]-sized results, and the tiles that may be kept."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, banned: Tensor | None,
        temperature: float, chunks: tuple[int, int], keep_megabytes: float, with_entropy: bool, grad: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        tiles = Tiles(hidden, weight, bias, targets, banned, temperature, chunks)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        gather = grad and needs_hidden and not (needs_weight or needs_bias)
        keep = keep_megabytes if grad and (needs_weight or needs_bias) and not with_entropy else 0.0
        with torch.autocast(hidden.device.type, enabled=False):  # its matmuls would run in half precision
            found = online_softmax(tiles, with_entropy, gather, keep)
        log_total_N = found.total_N.log()
        entropy_N = log_total_N - found.product_N / found.total_N
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, targets, banned, found.most_N + log_total_N, entropy_N, found.mean_ND)
        ctx.temperature, ctx.chunks, ctx.kept = temperature, chunks, found.kept
        if not with_entropy:
            ctx.mark_non_differentiable(entropy_N)
        return found.target_N - found.most_N - log_total_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor | None, grad_entropy_N: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, banned, normaliser_N, entropy_N, mean_ND = ctx.saved_tensors
        tiles = Tiles(hidden, weight, bias, targets, banned, ctx.temperature, ctx.chunks)
        if grad_N is None:
            grad_N = torch.zeros_like(normaliser_N)
        with torch.autocast(hidden.device.type, enabled=False):
            if mean_ND is not None and grad_entropy_N is None:
                grad_hidden = weight[targets].to(tiles.dtype).sub_(mean_ND).mul_((grad_N / ctx.temperature).unsqueeze(1))
                return (grad_hidden.to(hidden.dtype), *[None] * 9)
            upstream = (grad_N, grad_entropy_N, normaliser_N, entropy_N)
            grads = recompute(tiles, upstream, ctx.needs_input_grad[:3], hidden.dtype, ctx.kept)
        return (*grads, *[None] * 7)
