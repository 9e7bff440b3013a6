"""Every random draw is a function of its coordinates, so nothing depends on who served it or in what order."""

from __future__ import annotations

import hashlib
import struct


def derive_seed(run_seed: int, purpose: str, *coordinates: int | str) -> int:
    """Return a 64-bit seed for one draw.

    Args:
        purpose: what the draw is for ("task", "sample", …); two purposes never share a stream.
        coordinates: such as step, task uid, sample and turn.
    """
    text = "\x1f".join([str(run_seed), purpose, *map(str, coordinates)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniform(seed: int, position: int) -> float:
    """Return the uniform draw in [0, 1) for one sampled token: a function of the turn's seed and the token's position."""
    digest = hashlib.blake2b(struct.pack("<QQ", seed, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
