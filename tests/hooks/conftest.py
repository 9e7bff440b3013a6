"""Installing a pretended distribution: a folder on `sys.path` with its metadata, as pip would leave it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from vismaze_hooks import plugins as plugins_module

settings.register_profile("untimed", deadline=None)  # no test here depends on the time it takes
settings.load_profile("untimed")

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(distribution, source, entry_point="name")` puts a plugin module `<distribution>_plugin` where it is found."""
    monkeypatch.setattr(plugins_module, "_current", None)  # whatever a test loads is forgotten afterwards

    def add(distribution: str, source: str, entry_point: str | None = None) -> Path:
        folder = tmp_path / distribution
        info = folder / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        module = f"{distribution}_plugin"
        (folder / f"{module}.py").write_text("from vismaze_hooks import hookimpl\n" + source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[vismaze]\n{entry_point or distribution} = {module}\n")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, module, raising=False)
        importlib.invalidate_caches()
        return folder

    return add
