"""The command line: fast help, one clear message for what a user can mend, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def grpo_run(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "grpo_runner.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_help_lists_the_commands() -> None:
    done = grpo_run("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("train", "sft", "eval", "report", "plugins", "config"))


def test_plugins_lists_what_is_installed_and_who_offers_it() -> None:
    done = grpo_run("plugins")
    assert done.returncode == 0
    for word in ("VisMaze-v0", "rgb", "sparse", "local", "mazeenv", "grpo-runner", "Corridor-v0"):
        assert word in done.stdout, word


def test_config_show_prints_every_key_with_its_meaning(examples: Path) -> None:
    done = grpo_run("config", "show", str(examples / "maze-tiny.toml"), "train.lr=0.5")
    assert done.returncode == 0 and "train.lr = 0.5" in done.stdout and "rollout.history = 1" in done.stdout
    assert "train.lr = required" in grpo_run("config", "show").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "none.toml"], "cannot read the configuration none.toml"),
        (["train", "{examples}/maze-quick.toml", "train.lrr=1"], "Did you mean 'train.lr'?"),
        (["train", "{examples}/maze-quick.toml", "environment.id=VisMaze-v1"], "Did you mean 'VisMaze-v0'?"),
        (["train", "{examples}/maze-quick.toml", "environment.options.size=6"], "size"),
        (["train", "{examples}/maze-quick.toml", "environment.options.reward=sparce"], "sparse"),
        (["train", "{examples}/maze-quick.toml", 'plugins=["absent"]'], "local plugin 'absent'"),
        (["train", "{examples}/maze-quick.toml", "run.folder=/dev/null/x"], "/dev/null/x"),
        (["eval", "nowhere"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(tmp_path: Path, examples: Path, arguments: list[str], message: str) -> None:
    done = grpo_run(*(a.format(examples=examples) for a in arguments), folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_full_disk_is_named_and_the_run_continues_when_there_is_room(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        """
[run]
folder = "run"
steps = 2
[model]
path = "base"
tiny = { vision_depth = 2, deepstack = [0, 1] }
[environment]
id = "Corridor-v0"
[tasks]
evaluation = "corridor-2"
[rollout]
tasks = 2
samples = 2
max_new_tokens = 3
[train]
lr = 1e-3
[evaluation]
every = 2
samples = 0
"""
    )
    limited = f"ulimit -f 200; exec {sys.executable} -m grpo_runner.cli train {config}"  # files of at most 100 KiB
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode not in (0, 130)
    assert "File too large" in done.stderr
    assert not list(tmp_path.glob("run/checkpoints/step_*")) and not (tmp_path / "base").exists()
    again = grpo_run("train", str(config), folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 2
    for line in ("start:", "end:", "report:"):
        assert line in again.stdout
