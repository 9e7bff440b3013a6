"""Each wheel is built, installed alone in a fresh environment, and used there."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MEMBERS = {
    "packages/hooks": (
        "vismaze-hooks",
        "import vismaze_hooks; print(sorted(vismaze_hooks.load_plugins().offers))",
        {"pluggy"},
    ),
    "packages/mazeenv": (
        "mazeenv",
        "import gymnasium, mazeenv; env = gymnasium.make('VisMaze-v0', size=7); print(env.reset(seed=0)[0].shape)",
        {"gymnasium", "numpy", "pillow", "pluggy", "cloudpickle", "farama-notifications", "typing_extensions"},
    ),
    "packages/grpo-core": (
        "grpo-core",
        "from grpo_core import group_advantages; print(group_advantages([1.0, 0.0, 0.0, 0.0], [7] * 4))",
        {
            "torch",
            "filelock",
            "fsspec",
            "jinja2",
            "markupsafe",
            "mpmath",
            "networkx",
            "setuptools",
            "sympy",
            "typing_extensions",
        },
    ),
    **{
        f"plugins/{name}": (
            f"vismaze-{name}",
            f"import vismaze_hooks as h; o = h.load_plugins().create('environment', '{id}'); print(o.words, o.id)",
            {"gymnasium", "numpy", "pluggy", "cloudpickle", "farama-notifications", "typing_extensions"} | more,
        )
        for name, id, more in (
            ("klotski", "Klotski-v0", set()),
            ("jigsaw", "Jigsaw-v0", set()),
            ("matchstick", "Matchstick-v0", set()),
            ("firstperson", "FirstPersonMaze-v0", {"mazeenv", "pillow"}),
            ("gymnasium", "Gymnasium-v0", {"pillow"}),
        )
    },
    "packages/runner": ("grpo-runner", "import grpo_runner.train, sys; assert 'mazeenv' not in sys.modules; print('ok')", None),
}


def run(*command: str | Path) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for member in MEMBERS:
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT / member)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("member", MEMBERS)
def test_a_wheel_alone_brings_what_it_needs_and_nothing_else(member: str, wheels: Path, tmp_path: Path) -> None:
    name, code, expected = MEMBERS[member]
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "install", "--find-links", wheels, "-c", ROOT / "constraints-cpu.txt", name)
    without_numpy = "ignore:Failed to initialize NumPy"  # torch's own remark where nothing brings NumPy
    assert run(python, "-W", "error", "-W", without_numpy, "-c", code).strip()
    listed = {line.split("==")[0].split(" @ ")[0].lower() for line in run(*pip, "freeze").splitlines()}
    if expected is not None:
        assert listed - {"vismaze-hooks", "pip", name} <= expected, "an unexpected dependency"
    unwanted = {"mazeenv", "torch", "torchvision", "ray", "vllm", "pygame", "pygame-ce"} - {name} - (expected or {"torch"})
    assert not listed & unwanted
    files = run(python, "-c", f"from importlib.metadata import files; print(*files('{name}'))")
    assert "LICENSE" in files and "py.typed" in files
