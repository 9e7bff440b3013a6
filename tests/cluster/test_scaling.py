"""The controller's cost in a step: what was measured grows linearly and is small, and the measurement still runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCALING = Path(__file__).parents[2] / "benchmarks" / "cluster" / "scaling.py"


def test_the_committed_record_grows_with_the_trajectories_and_leaves_512_engines_room() -> None:
    """Half a second of a GPU for a trajectory, played and learnt, is less than any model of the size that needs 512 takes."""
    rows = json.loads((SCALING.parents[1] / "results" / "scaling.json").read_text())["rows"]
    cost = {(row["engines"], row["trajectories"]): row["milliseconds_a_trajectory"] for row in rows}
    assert {6, 512, 4096} <= {engines for engines, _ in cost} and max(trajectories for _, trajectories in cost) == 100_000
    assert max(cost.values()) < 2 * min(cost.values())
    assert 512 * cost[512, 100_000] < 500


@pytest.mark.ray
@pytest.mark.slow
def test_a_step_of_simulated_engines_runs_through_the_controller() -> None:
    done = subprocess.run([sys.executable, str(SCALING), "--one", "12", "320"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row["engines"], row["trajectories"]) == (12, 320)
    assert row["seconds"].keys() == {"draw", "rollout", "update"} and all(s > 0 for s in row["seconds"].values())
