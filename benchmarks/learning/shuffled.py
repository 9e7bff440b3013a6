"""The control: a run whose advantages are shuffled over the batch. A learner that gains from them has a fault.

    python benchmarks/learning/shuffled.py examples/maze-tiny.toml run.folder=runs/maze-tiny-shuffled

Everything else is the run itself, down to the command line. The order is drawn anew at each step from a fixed seed, so
nothing that an answer earned is left in what it is trained with, but the advantages as such are the same.
"""

from __future__ import annotations

import sys

import torch

from grpo_core import group_advantages
from grpo_runner import train
from grpo_runner.cli import app

generator = torch.Generator().manual_seed(0)


def shuffled(*args, **settings) -> torch.Tensor:
    """Return the advantages of the batch in another order."""
    advantages = group_advantages(*args, **settings)
    return advantages[torch.randperm(len(advantages), generator=generator)]


if __name__ == "__main__":
    train.group_advantages = shuffled
    app(["train", *sys.argv[1:]])
