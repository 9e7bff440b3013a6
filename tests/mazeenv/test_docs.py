"""The documents' Python runs, and their tables and names are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mazeenv import MazeConfig, fixed
from mazeenv.themes import THEMES
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
    theirs = {"mazeenv", "vismaze-hooks", "klotski", "jigsaw", "matchstick", "firstperson"}
    ours = [name for (_, name), owner in plugins.owners.items() if owner in theirs]
    for name in (*ours, "Gymnasium-v0", *THEMES, *fixed.SETS, *(field for field in MazeConfig.__dataclass_fields__)):
        assert f"`{name}`" in page, name


def test_every_picture_of_the_page_is_there():
    page = (ROOT / PAGES[0]).read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page)
    assert len(pictures) >= 10
    for picture in pictures:
        assert (ROOT / "docs" / picture).is_file(), picture


def test_the_table_of_fixed_sets_is_true():
    page = (ROOT / PAGES[0]).read_text(encoding="utf-8")
    for name, entry in fixed.SETS.items():
        board = f"{entry.size[0]}×{entry.size[1]}"
        assert re.search(rf"\| `{name}` \| {board}[^|]*\| {entry.count} \|", page), name
