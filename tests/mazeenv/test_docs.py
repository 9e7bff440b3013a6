"""The documents' Python runs, and their tables and names are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mazeenv import MazeConfig, fixed
from vismaze_hooks import load_plugins

ROOT = Path(__file__).parents[2]
PAGES = ("docs/environments.md", "packages/mazeenv/README.md")
BLOCKS = [
    (page, number, block)
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S))
    if "MyMaze" not in block  # the reader's own
]


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_code_blocks_run(page, number, block):
    exec(compile(block, f"{page} block {number}", "exec"), {})


def test_every_name_has_its_place_in_the_page():
    page = (ROOT / PAGES[0]).read_text(encoding="utf-8")
    plugins = load_plugins()
    ours = [name for (_, name), owner in plugins.owners.items() if owner == "mazeenv"]
    for name in (*ours, *fixed.SETS, *(field for field in MazeConfig.__dataclass_fields__)):
        assert f"`{name}`" in page, name


def test_the_table_of_fixed_sets_is_true():
    page = (ROOT / PAGES[0]).read_text(encoding="utf-8")
    for name, entry in fixed.SETS.items():
        board = f"{entry.size[0]}×{entry.size[1]}"
        assert re.search(rf"\| `{name}` \| {board}[^|]*\| {entry.count} \|", page), name
