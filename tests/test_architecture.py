"""Who imports whom, and what an import drags in."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"vismaze_hooks", "mazeenv", "grpo_core", "grpo_runner"}
PLUGINS = {p.name for p in ROOT.glob("plugins/*/src/*")}
ALLOWED = {
    "vismaze_hooks": set(),
    "mazeenv": {"vismaze_hooks"},
    "grpo_core": set(),
    "grpo_runner": {"vismaze_hooks", "grpo_core"},
    **{plugin: {"vismaze_hooks", "mazeenv"} for plugin in PLUGINS},
}
FOLDERS = {folder.name: folder for folder in [*ROOT.glob("packages/*/src/*"), *ROOT.glob("plugins/*/src/*")] if folder.is_dir()}


def imports_of(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_the_way_the_design_says(package: str) -> None:
    files = list(FOLDERS[package].rglob("*.py"))
    assert files
    for file in files:
        strangers = imports_of(file) & (OURS | PLUGINS) - ALLOWED[package] - {package}
        assert not strangers, f"{file.relative_to(ROOT)} imports {strangers}"


@pytest.mark.parametrize(
    ("package", "never"),
    [
        ("vismaze_hooks", {"torch", "gymnasium", "numpy", "transformers"}),
        ("mazeenv", {"torch", "transformers", "peft", "matplotlib", "pygame"}),
        ("grpo_core", {"transformers", "peft", "numpy.testing", "gymnasium", "ray", "vllm"}),
        ("grpo_runner.cli", {"torch", "transformers", "peft", "numpy", "gymnasium"}),
        ("grpo_runner.plugin", {"torch", "transformers", "peft"}),
        ("grpo_runner.train", {"mazeenv", "vllm", "ray", "matplotlib", "torchvision"}),
    ],
)
def test_an_import_drags_in_nothing_heavy(package: str, never: set[str]) -> None:
    code = f"import sys, {package}; print(*sorted(sys.modules))"
    loaded = set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())
    assert not loaded & never


def test_one_module_imports_vllm_and_runs_in_a_process_of_its_own() -> None:
    assert [f.name for f in FOLDERS["grpo_runner"].rglob("*.py") if "vllm" in imports_of(f)] == ["vllm_process.py"]
    for file in FOLDERS["grpo_runner"].rglob("*.py"):
        code = file.read_text(encoding="utf-8")
        assert file.name == "vllm_process.py" or ("import vllm_process" not in code and "vllm_process import" not in code)


def test_ray_is_imported_by_the_cluster_and_the_jobs_only() -> None:
    found = {f for f in FOLDERS["grpo_runner"].rglob("*.py") if "ray" in imports_of(f)}
    assert {f.name for f in found if f.parent.name != "cluster"} <= {"job_server.py", "jobs.py"} and len(found) > 4


def test_the_loop_fits_on_a_page() -> None:
    tree = ast.parse((ROOT / "packages/runner/src/grpo_runner/train.py").read_text(encoding="utf-8"))
    loop = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "train")
    assert loop.end_lineno is not None and loop.end_lineno - loop.lineno < 60


def test_the_runner_knows_no_environment() -> None:
    for file in FOLDERS["grpo_runner"].rglob("*.py"):
        code = file.read_text(encoding="utf-8").lower().replace("vismaze_hooks", "").replace("vismaze-hooks", "")
        for word in ("visgym", "frozenlake", "size=7", "klotski", "jigsaw", "matchstick", "minigrid", "firstperson"):
            assert word not in code, f"{file.name} speaks of {word}"
