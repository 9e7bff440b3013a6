"""The controller's cost in a step: what was measured grows linearly and is small, and the measurement still runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCALING = Path(__file__).parents[2] / "benchmarks" / "cluster" / "scaling.py"


@pytest.mark.ray
@pytest.mark.slow
def test_a_step_of_simulated_engines_runs_through_the_controller() -> None:
    done = subprocess.run([sys.executable, str(SCALING), "--one", "12", "320"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row["engines"], row["trajectories"]) == (12, 320)
    assert row["seconds"].keys() == {"draw", "rollout", "update"} and all(s > 0 for s in row["seconds"].values())
