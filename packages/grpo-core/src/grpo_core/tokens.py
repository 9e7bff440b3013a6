"""Padded and packed batches as one thing: a flat list of tokens that know their sequence.

Axes: B rows, T width of the padding, N tokens (B * T of a padded batch), S sequences.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import check_device, check_integer, check_mask, check_shape

MAX_LOG_RATIO = 20.0
"""Log-ratios are held to ±20 before exp(), so that one outlier gives a large number instead of inf."""


@dataclass(frozen=True)
class Tokens:
    """Which tokens count, and whose they are."""

    mask_N: Tensor
    """[N] bool: True for the tokens that are trained."""
    sequence_N: Tensor | None
    """[N] int64 in 0..sequences-1; None for a packed batch that came without sequence ids."""
    sequences: int
    """How many sequences there are, empty ones included; 0 where the ids are not known."""

    def select(self, values: Tensor) -> Tensor:
        """Values [B, T] or [N] as flat [N], with 0 wherever the mask is off: NaN and inf there go no further."""
        return torch.where(self.mask_N, values.reshape(-1), values.new_zeros(()))

    def sequence_sum(self, values_N: Tensor) -> Tensor:
        """Sum of already selected values over each sequence: [N] → [S]."""
        return values_N.new_zeros(self.sequences).index_add(0, self._ids(), values_N)

    def sequence_lengths(self) -> Tensor:
        """Trained tokens of each sequence: [S] int64."""
        return torch.zeros(self.sequences, dtype=torch.int64, device=self.mask_N.device).index_add(
            0, self._ids(), self.mask_N.to(torch.int64)
        )

    def sequence_mean(self, values_N: Tensor) -> Tensor:
        """Mean of already selected values over the trained tokens of each sequence, 0 for an empty one: [N] → [S]."""
        return self.sequence_sum(values_N) / self.sequence_lengths().clamp(min=1)

    def spread(self, values_S: Tensor) -> Tensor:
        """Give every token its sequence's value: [S] → [N]."""
        return values_S[self._ids()]

    def _ids(self) -> Tensor:
        if self.sequence_N is None:
            raise ValueError("sequence_ids: needed with packed [N] tensors for anything that is per sequence, got None")
        return self.sequence_N


def flatten(mask: Tensor, sequence_ids: Tensor | None) -> Tokens:
    """Read a padded mask [B, T] (a row is a sequence) or a packed one [N] with ``sequence_ids`` [N].

    Ids may be any integers in any order. Raises ValueError for a mask that is not boolean, and for ids of another shape.
    """
    check_mask("mask", mask)
    if mask.dim() == 2:
        if sequence_ids is not None:
            raise ValueError(f"sequence_ids: expected None with a padded mask {tuple(mask.shape)}, where a row is one")
        rows, width = mask.shape
        return Tokens(mask.reshape(-1), torch.arange(rows, device=mask.device).repeat_interleave(width), rows)
    if sequence_ids is None:
        return Tokens(mask, None, 0)
    check_integer("sequence_ids", sequence_ids)
    check_shape("sequence_ids", sequence_ids, mask.shape, "mask")
    check_device("sequence_ids", sequence_ids, mask, "mask")
    found, sequence_N = torch.unique(sequence_ids, return_inverse=True)
    return Tokens(mask, sequence_N, found.numel())
