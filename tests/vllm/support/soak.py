"""Publishes adapters in turn, samples a token with each, and watches the engine's memory: `make soak`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_runner.engine_vllm import VllmEngine
from vismaze_hooks import Request

WARM = 10  # publishes after which the allocators have their size
ALLOWED = 32 << 20  # bytes: growth since then that is no leak


@dataclass(frozen=True)
class Soak:
    """What a soak found; the engine itself refuses an adapter whose digest differs."""

    publishes: int
    grown_bytes: int  # resident memory of the engine's process since the warm-up


def soak(engine: VllmEngine, folders: Sequence[Path], *, publishes: int) -> Soak:
    """Publish the folders in turn, each time under a path that the engine has not seen.

    Raises:
        PublishError: a publish after which the engine held anything else.
    """
    request = Request(engine.processors.chat.encode("Go to the goal.\n" * 4), (), 0, 1, 1.0)
    before = 0
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(publishes):
            path = Path(temporary) / f"step_{number:08d}"
            shutil.copytree(folders[number % len(folders)], path)
            engine.publish(path, number)
            (completion,) = engine.generate([request])
            assert completion.weights_version == number
            shutil.rmtree(path)
            if number == WARM:
                before = engine.look().resident_bytes
    return Soak(publishes, engine.look().resident_bytes - before)


def main() -> int:
    from small import LORA, OPTIONS, exported, random_policy, small_model

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publishes", type=int, default=1_000)
    publishes = parser.parse_args().publishes
    with tempfile.TemporaryDirectory() as temporary:
        base = small_model(Path(temporary) / "base")
        engine = VllmEngine(model=str(base), lora=LORA, **OPTIONS)
        folders = [exported(random_policy(base, seed), Path(temporary) / str(seed)) for seed in (1, 2)]
        result = soak(engine, folders, publishes=publishes)
        engine.close()
    print(f"{result.publishes} publishes, digests equal each time, memory of the engine grew by {result.grown_bytes >> 10} KiB")
    return 0 if result.grown_bytes <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
