"""How long one checkpoint stops the training, in seconds: ours (sync, async), torch.save and DCP, on one state in one run.

    python benchmarks/checkpoints/stall.py

The states: a small one (2 MB) and one of the size of an 8B LoRA with Adam (1 GB): float32 tensors with random bits. A stall is
the time until the call returns; for the asynchronous ones "done" is the time until the checkpoint stands, with nothing
else running. torch.save and DCP are measured as people call them (no fsync of files beyond their defaults, no checksum, no
rename) and, for torch.save, once more with an fsync, since ours ends on the disk. The order of the ways is drawn anew in
every round; the median over rounds is reported with every value. Writes benchmarks/results/checkpoints.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from grpo_runner import attempts
from grpo_runner.checkpoints import CheckpointStore

RESULTS = Path(__file__).parents[1] / "results" / "checkpoints.json"
State = dict[str, torch.Tensor]
Times = tuple[float, float]  # seconds until the call returned, seconds until the checkpoint stood


def make_state(megabytes: int) -> State:
    """Return tensors of 4 MB (or all of it in four) with random bits: nothing that a disk could compress."""
    count = max(4, megabytes // 4)
    generator = torch.Generator().manual_seed(1)
    return {f"layer_{i:04d}": torch.rand(megabytes * 250_000 // count, generator=generator) for i in range(count)}


def write(state: State) -> Callable[[Path], None]:
    def write_(folder: Path) -> None:
        save_file(state, folder / "state.safetensors")

    return write_


def ours(folder: Path) -> CheckpointStore:
    return CheckpointStore(
        folder / "checkpoints",
        run_folder=folder,
        attempt=attempts.next_attempt(folder),
        run_id="benchmark",
        config_hash="0",
        config={},
        keep=1,
        on_event=lambda name, fields: None,
    )


def sync_save(state: State, folder: Path) -> Times:
    store, start = ours(folder), time.perf_counter()
    store.save(1, write(state), {})
    seconds = time.perf_counter() - start
    return seconds, seconds


def async_save(state: State, folder: Path) -> Times:
    store, start = ours(folder), time.perf_counter()
    snapshot = {name: tensor.clone() for name, tensor in state.items()}
    store.save_async(1, write(snapshot), {})
    stalled = time.perf_counter() - start
    assert store.wait() is not None
    return stalled, time.perf_counter() - start


def torch_save(state: State, folder: Path) -> Times:
    start = time.perf_counter()
    torch.save(state, folder / "state.pt")
    seconds = time.perf_counter() - start
    return seconds, seconds


def torch_save_synced(state: State, folder: Path) -> Times:
    start = time.perf_counter()
    with (folder / "state.pt").open("wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    seconds = time.perf_counter() - start
    return seconds, seconds


def dcp_save(state: State, folder: Path) -> Times:
    start = time.perf_counter()
    dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    seconds = time.perf_counter() - start
    return seconds, seconds


def dcp_async_save(state: State, folder: Path) -> Times:
    start = time.perf_counter()
    future = dcp.async_save(state, checkpoint_id=folder / "dcp", no_dist=True)
    stalled = time.perf_counter() - start
    future.result()  # type: ignore[union-attr]
    return stalled, time.perf_counter() - start


WAYS: dict[str, Callable[[State, Path], Times]] = {
    "ours, sync": sync_save,
    "ours, async": async_save,
    "torch.save": torch_save,
    "torch.save + fsync": torch_save_synced,
    "DCP save": dcp_save,
    "DCP async_save": dcp_async_save,
}


def measure(megabytes: int, rounds: int, root: Path) -> dict[str, Any]:
    """Return per way the median stall and time to done, every value, and the ratio to torch.save and DCP."""
    state = make_state(megabytes)
    values: dict[str, list[Times]] = {name: [] for name in WAYS}
    draw = random.Random(1)
    for round_ in range(rounds + 1):
        for name in draw.sample(list(WAYS), len(WAYS)):
            folder = Path(tempfile.mkdtemp(dir=root))
            os.sync()  # what the one before left to be written is not charged to this one
            times = WAYS[name](state, folder)
            shutil.rmtree(folder)
            if round_:  # the first round warms caches and imports up
                values[name].append(times)
    rows: dict[str, dict[str, Any]] = {}
    for name, measured in values.items():
        rows[name] = {
            "stall_seconds": round(statistics.median(stall for stall, _ in measured), 4),
            "done_seconds": round(statistics.median(done for _, done in measured), 4),
            "stalls": [round(stall, 4) for stall, _ in measured],
        }
    for row in rows.values():
        for base in ("torch.save", "torch.save + fsync", "DCP save", "DCP async_save"):
            row[f"stall / {base}"] = round(row["stall_seconds"] / rows[base]["stall_seconds"], 3)
    return {"bytes": sum(t.numel() * 4 for t in state.values()), "rounds": rounds, "ways": rows, "load": load(state, root)}


def load(state: State, root: Path) -> dict[str, float]:
    """Return the seconds of a verified load of ours, and of reading the file alone."""
    folder = Path(tempfile.mkdtemp(dir=root))
    store = ours(folder)
    store.save(1, write(state), {})
    start = time.perf_counter()
    found = store.load(lambda f, meta: load_file(f / "state.safetensors"))
    verified = time.perf_counter() - start
    assert found is not None and torch.equal(found[0]["layer_0000"], state["layer_0000"])
    start = time.perf_counter()
    load_file(folder / "checkpoints" / "step_00000001" / "state.safetensors")
    alone = time.perf_counter() - start
    shutil.rmtree(folder)
    return {"verified_seconds": round(verified, 4), "file_alone_seconds": round(alone, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small-rounds", type=int, default=15)
    parser.add_argument("--large-rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured; default: a temporary one")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch.distributed")
    torch.set_num_threads(1)
    results: dict[str, Any] = {
        "machine": {"cpu_cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__},
        "load_average_at_start": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        results["small"] = measure(2, options.small_rounds, Path(root))
        results["large"] = measure(1000, options.large_rounds, Path(root))
    results["load_average_at_end"] = os.getloadavg()[0]
    for size in ("small", "large"):
        print(f"{size}: {results[size]['bytes']:,} bytes, {results[size]['rounds']} rounds")
        for name, row in results[size]["ways"].items():
            print(
                f"  {name:20} stall {row['stall_seconds']:8.4f} s   done {row['done_seconds']:8.4f} s   "
                f"x{row['stall / torch.save']:<7} torch.save   x{row['stall / DCP save']:<7} DCP"
            )
        print(f"  load {results[size]['load']}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
