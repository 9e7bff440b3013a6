"""What the package is made of: torch only, small modules, names in one place, an example and documents that run."""

import ast
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

import grpo_core

ROOT = Path(__file__).parents[2]
SOURCE = Path(grpo_core.__file__).parent
MODULES = sorted(SOURCE.glob("*.py"))
DOCUMENT = ROOT / "docs" / "grpo-core.md"
EXAMPLE = ROOT / "examples" / "grpo_by_hand.py"


def imported_by(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.partition(".")[0]


def test_torch_is_the_only_dependency():
    assert [re.split(r"[<>=!~ \[]", line)[0] for line in requires("grpo-core")] == ["torch"]
    allowed = set(sys.stdlib_module_names) | {"torch"}
    assert {(path.name, name) for path in MODULES for name in imported_by(path) if name not in allowed} == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_modules_and_functions_fit_on_a_screen(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    long = [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60
    ]
    assert long == []


def test_every_public_name_has_a_docstring_and_a_place_in_the_document():
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in grpo_core.__all__:
        assert getattr(grpo_core, name).__doc__, name
        assert f"`{name}" in text, f"{name} is not in docs/grpo-core.md"


@pytest.mark.parametrize("document", [DOCUMENT, ROOT / "packages" / "grpo-core" / "README.md"], ids=lambda path: path.name)
def test_the_code_blocks_of_the_documents_run(document):
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    scope = {}
    for block in blocks:
        exec(compile(block, str(document), "exec"), scope)


def test_the_example_is_short_and_imports_nothing_else():
    text = EXAMPLE.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 120
    assert set(imported_by(EXAMPLE)) <= {"torch", "grpo_core", *sys.stdlib_module_names}


@pytest.mark.slow
def test_the_example_learns():
    result = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=600, check=True)
    rates = [float(rate) for rate in re.findall(r"solved ([0-9.]+)", result.stdout)]
    assert rates[0] < 0.5 and rates[-1] > 0.9, result.stdout
