"""Speeds of mazeenv and its peers, written to `benchmarks/results/environments.json`.

    python benchmarks/environments/run.py [--rounds 7] [--venv FOLDER]

The peers are installed from the package registry into an environment of the benchmark's own, in a temporary folder (or in
FOLDER, which is kept and used again). All measurements are taken in one process on one thread, in rounds in which all
take their turn, so what else the machine does falls on all alike: the ratios count, the absolute numbers do not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEERS = ("minigrid==3.2.0", "labmaze==1.0.6", "envpool==1.2.5", "gymnasium==1.4.0")


def prepare(folder: Path) -> Path:
    """Return the Python of the benchmark's own environment, with everything installed."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    members = [str(ROOT / "packages" / name) for name in ("hooks", "mazeenv")]
    members += [str(ROOT / "plugins" / name) for name in ("klotski", "jigsaw", "matchstick", "firstperson", "gymnasium")]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS, *members], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--venv", type=Path, help="kept and used again; default: a temporary folder")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "environments.json")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        python = prepare(chosen.venv or Path(temporary) / "venv")
        settings = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [str(python), str(Path(__file__).with_name("measure.py")), str(chosen.rounds)]
        done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, text=True, check=True)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(done.stdout, encoding="utf-8")
    sys.stdout.write(done.stdout)


if __name__ == "__main__":
    main()
