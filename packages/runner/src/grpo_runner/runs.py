"""The run folder: metrics, events, evaluations, summary. A resumed run goes on in the same files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpo_runner.files import write_atomic, write_json


class RunFolder:
    """Writes a run's records. Lines are flushed whole; what a killed writer left half is dropped at the next start."""

    def __init__(self, path: Path, attempt: int) -> None:
        self.path = path
        self.attempt = attempt
        self.seconds: dict[str, float] = {}  # wall seconds by phase, of this attempt
        self._step_seconds: dict[str, float] = {}

    def event(self, name: str, **facts: Any) -> None:
        """Append to `events.jsonl`: what happened, when, in which attempt."""
        record = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "attempt": self.attempt, "event": name, **facts}
        append_line(self.path / "events.jsonl", record)

    def metrics(self, step: int, values: Mapping[str, float]) -> dict[str, Any]:
        """Append to `metrics.jsonl` the numbers of one step with the seconds its phases took."""
        record = {"step": step, **values, "seconds": {k: round(v, 4) for k, v in self._step_seconds.items()}}
        self._step_seconds = {}
        append_line(self.path / "metrics.jsonl", record)
        return record

    def forget_after(self, step: int) -> int:
        """Drop metrics of steps after `step`, which will be done again, and half lines. Returns how many were dropped."""
        self._step_seconds = {}
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return 0
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if (record := _read(line)) is not None and record["step"] <= step]
        if len(kept) < len(lines):
            write_atomic(path, "".join(f"{line}\n" for line in kept))
        return len(lines) - len(kept)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the wall time of a block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self._step_seconds[name] = self._step_seconds.get(name, 0.0) + spent

    def evaluation(self, step: int) -> Path:
        """Return the file of one evaluation."""
        return self.path / "eval" / f"step_{step:08d}.jsonl"

    def summary(self, value: Mapping[str, Any]) -> None:
        """Write `summary.json`."""
        write_json(self.path / "summary.json", value)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line, in one write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as out:
        lead = b""
        if out.tell():
            out.seek(-1, 2)
            lead = b"" if out.read(1) == b"\n" else b"\n"  # a killed writer left half a line
        out.write(lead + json.dumps(record, ensure_ascii=False).encode() + b"\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSON-lines file; a half line is passed over, a missing file is empty."""
    if not path.exists():
        return []
    return [r for line in path.read_text(encoding="utf-8").splitlines() if (r := _read(line)) is not None]


def _read(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None
