"""A sample of the fault campaign: real runs, killed in every phase, lose nothing and end as if nothing had happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parents[2] / "benchmarks" / "faults" / "campaign.py"
PHASES = {"rollout", "reward", "update", "publish", "save", "evaluate", "retention"}


@pytest.mark.slow
def test_kills_in_every_phase_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(CAMPAIGN), "--kills", "14", "--seed", "5", "--results", str(tmp_path / "faults.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    record = json.loads((tmp_path / "faults.json").read_text())
    assert (record["kills"], record["resumed"], record["lost_steps"], record["digest_equal"]) == (14, 14, 0, True)
    assert {row["phase"] for row in record["rows"]} == PHASES
    assert {kind for row in record["rows"] for kind in ("call", "visit") if row["instant"].startswith(kind)} == {
        "call",
        "visit",
    }


def test_the_committed_record_is_of_a_whole_campaign() -> None:
    record = json.loads((CAMPAIGN.parents[1] / "results" / "faults.json").read_text())
    assert record["kills"] == record["resumed"] == len(record["rows"]) >= 200
    assert record["lost_steps"] == 0 and record["digest_equal"] is True and record["failed"] == []
    assert all(found["kills"] == found["resumed"] >= 28 for found in record["by_phase"].values())
    assert record["by_phase"].keys() == PHASES
