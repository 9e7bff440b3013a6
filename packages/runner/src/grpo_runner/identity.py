"""What a run is: its id and configuration, fixed at the first start, and the versions that its numbers depend on."""

from __future__ import annotations

import json
import platform
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tomli_w

from grpo_runner.config import MAY_CHANGE, Config, ConfigError, flat
from grpo_runner.files import write_atomic

VERSIONED = (
    "vismaze-hooks",
    "mazeenv",
    "grpo-core",
    "grpo-runner",
    "torch",
    "transformers",
    "peft",
    "gymnasium",
    "numpy",
    "pillow",
)


def run_identity(folder: Path, config: Config) -> dict[str, Any]:
    """Return the run's identity, written at its first start; refuse a folder that another configuration began.

    Raises:
        ConfigError: names the keys that differ, with both values.
    """
    path = folder / "run.json"
    mine = dict(flat(config, skip=MAY_CHANGE))
    if path.is_file():
        record = json.loads(path.read_text(encoding="utf-8"))
        theirs = record.get("config", {})
        differing = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
        if differing:
            lines = "\n".join(f"  {k}: {theirs.get(k)!r} there, {mine.get(k)!r} now" for k in differing)
            raise ConfigError(
                f"the run folder {folder} was begun with another configuration:\n{lines}\n"
                "Choose another run.folder (run.folder=…), or remove the folder to begin anew"
            )
    else:
        record = {"run_id": uuid.uuid4().hex, "config": mine}
        write_atomic(path, json.dumps(record) + "\n")
    write_atomic(folder / "config.toml", tomli_w.dumps(without_none(config.model_dump(mode="json"))))
    return record


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_none(v) for k, v in value.items() if v is not None}
    return [without_none(v) for v in value] if isinstance(value, list | tuple) else value


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
