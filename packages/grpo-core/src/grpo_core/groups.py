"""Samples by the task they answered: group numbers from any ids, and sums over ragged groups.

Axes: N samples, G groups. A group is what shares a uid, wherever its samples stand and however many are left.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import check_integer, check_shape


@dataclass(frozen=True)
class Groups:
    """Which group each sample is in."""

    index_N: Tensor
    """[N] int64 in 0..groups-1."""
    groups: int
    """Upper bound of the group numbers; some may have no sample."""

    def count(self, keep_N: Tensor | None = None) -> Tensor:
        """Samples of each group, of those kept: [G] float64."""
        weights_N = None if keep_N is None else keep_N.double()
        return torch.bincount(self.index_N, weights_N, minlength=self.groups).double()

    def sum(self, values_N: Tensor) -> Tensor:
        """Sum of float64 values over each group: [N] → [G]."""
        return torch.bincount(self.index_N, values_N, minlength=self.groups)

    def mean(self, values_N: Tensor, keep_N: Tensor | None = None) -> Tensor:
        """Mean over each group; values that are not kept must be 0 already. 0 for an empty group: [N] → [G]."""
        return self.sum(values_N) / self.count(keep_N).clamp(min=1)

    def spread(self, values_G: Tensor) -> Tensor:
        """Give every sample its group's value: [G] → [N]."""
        return values_G.index_select(0, self.index_N)

    def anchor(self, values_N: Tensor, keep_N: Tensor | None = None) -> Tensor:
        """One kept value of each group, whichever, 0 for an empty group: [N] → [G].

        Differences from it are exactly 0 in a group of equal values, where a mean would leave a rounding residue.
        """
        index_N, kept_N = (self.index_N, values_N) if keep_N is None else (self.index_N[keep_N], values_N[keep_N])
        return kept_N.new_zeros(self.groups).scatter_(0, index_N, kept_N)


def make_groups(uids: Sequence[Hashable] | Tensor, samples: int, *, name: str = "uids") -> Groups:
    """Number the groups of ``samples`` uids: hashables of any kind, or an integer tensor [N].

    Raises ValueError for another count of uids, or a tensor that does not hold integers.
    """
    if isinstance(uids, Tensor):
        check_integer(name, uids)
        check_shape(name, uids, (samples,), "rewards")
        return _number_integers(uids.to(torch.int64))
    if len(uids) != samples:
        raise ValueError(f"{name}: expected shape ({samples},) (one per reward), got ({len(uids)},)")
    numbers: dict[Hashable, int] = {}
    index = [numbers.setdefault(uid, len(numbers)) for uid in uids]
    return Groups(torch.tensor(index, dtype=torch.int64), len(numbers))


def _number_integers(uids_N: Tensor) -> Groups:
    if uids_N.numel() == 0:
        return Groups(uids_N, 0)
    low, high = (int(bound) for bound in torch.aminmax(uids_N))
    if high - low < 2 * uids_N.numel():
        return Groups(uids_N - low if low else uids_N, high - low + 1)  # dense enough: no sort
    found, index_N = torch.unique(uids_N, return_inverse=True)
    return Groups(index_N, found.numel())
