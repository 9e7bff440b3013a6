"""kill -9 at seeded instants: every start after it loads the last checkpoint that was acknowledged, or a later one."""

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def campaign():
    spec = importlib.util.spec_from_file_location("kill_campaign", Path(__file__).with_name("kill_campaign.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["kill_campaign"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["kill_campaign"]


def test_no_kill_loses_an_acknowledged_checkpoint(campaign, tmp_path):
    rows = campaign.campaign(tmp_path / "run", kills=24, seed=7)
    assert len(rows) == 24 and all(row.resumed >= row.acknowledged for row in rows), rows
    assert {row.how.split()[0] for row in rows} == {"operation", "time"}


def test_a_kill_at_each_operation_of_one_save(campaign, tmp_path):
    """The first save with something to retire, from its first file to its last deletion, in steps of two."""
    folder, last = tmp_path / "run", 0
    for _ in range(2):
        last = saved(campaign.start(folder, campaign.NEVER, None))
    for operation in range(1, 33, 2):
        lines = campaign.start(folder, operation, None)
        assert lines[0].split() == ["resumed", str(last)] or int(lines[0].split()[1]) == last + 1, (operation, lines)
        last = saved(lines)


def saved(lines):
    return max(int(line.split()[1]) for line in lines)
