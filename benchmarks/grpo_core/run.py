"""All benchmarks of grpo-core in one run: ``python benchmarks/grpo_core/run.py``; writes benchmarks/results/grpo_core.json.

Makes a virtual environment of its own in a temporary folder with torch, TRL and Liger (``--environment FOLDER`` uses one
that is there). Every measurement has a process of its own, candidates take turns, the best of the rounds counts.
Threads: OMP_NUM_THREADS, else all cores.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULT = ROOT / "benchmarks" / "results" / "grpo_core.json"
CANDIDATES = ("grpo_core", "trl", "liger")
FULL_LOGITS_MEGABYTES = 8192 * 151_936 * 4 / 2**20


def make_environment(folder: Path) -> Path:
    """A virtual environment with the peers; returns its Python."""
    python = folder / "bin" / "python"
    if python.exists():
        return python
    venv.create(folder, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "torch==2.13.0"], check=True)  # pinned: this one is the CPU build on the test machines
    subprocess.run([*install, "trl==1.16.0"], check=True)
    subprocess.run([*install, "--no-deps", "liger-kernel==0.8.5"], check=True)  # its Triton is for GPUs
    subprocess.run([*install, "--no-deps", str(ROOT / "packages" / "grpo-core")], check=True)
    return python


def case(python: Path, script: str, *arguments: str) -> dict:
    """Run one measurement and read its JSON."""
    command = [str(python), str(HERE / script), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return {"failed": result.stderr.strip().splitlines()[-1] if result.stderr else f"exit code {result.returncode}"}
    return json.loads(result.stdout.strip().splitlines()[-1])


def logprobs(python: Path, rounds: int, positions: str, candidates: tuple[str, ...]) -> dict:
    """Best seconds and largest peak of every candidate, for the head frozen and trained, with the ratios that count."""
    table: dict[str, dict] = {}
    for head in ("frozen", "trained"):
        best: dict[str, dict] = {}
        for _ in range(rounds):
            for name in candidates:
                got = case(python, "logprobs_case.py", name, head, positions)
                print(f"  {positions:8} {head:7} {name:9} {json.dumps(got)}", file=sys.stderr, flush=True)
                old = best.get(name)
                if "failed" in got or old is None or "failed" in old:
                    best[name] = old if old and "failed" in got else got
                else:
                    joined = {key: min(got[key], old[key]) for key in ("seconds", "cpu_seconds")}
                    best[name] = got | joined | {"peak_megabytes": max(got["peak_megabytes"], old["peak_megabytes"])}
        table[head] = best
    return table


def judge(selected: dict, whole: dict) -> dict:
    """The issue's ratios."""
    verdict = {}
    for head, entries in selected.items():
        ours = entries["grpo_core"]
        peers = {name: entry for name, entry in entries.items() if name != "grpo_core" and "failed" not in entry}
        verdict[head] = {
            "peak_over_full_logits": ours["peak_megabytes"] / FULL_LOGITS_MEGABYTES,
            "peak_limit": 1 / 20,
            # On a busy machine the clock counts what others do; CPU work with one thread does not.
            "seconds_over_fastest_peer": ours["seconds"] / min(entry["seconds"] for entry in peers.values()),
            "cpu_seconds_over_fastest_peer": ours["cpu_seconds"] / min(entry["cpu_seconds"] for entry in peers.values()),
            "peak_over_peer": {name: ours["peak_megabytes"] / entry["peak_megabytes"] for name, entry in peers.items()},
            "cpu_seconds_over_peer_with_all_positions": {
                name: ours["seconds"] / entry["seconds"] for name, entry in whole.get(head, {}).items() if "failed" not in entry
            },
        }
    return verdict


def main() -> None:
    """Run everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", type=Path, help="folder of the virtual environment, made if it is not there")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every candidate")
    parser.add_argument("--all-positions", action="store_true", help="also give Liger all 8,192 positions (minutes)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(options.environment or Path(folder) / "environment")
        selected = logprobs(python, options.rounds, "selected", CANDIDATES)
        whole = logprobs(python, 1, "all", ("liger",)) if options.all_positions else {}
        result = {
            "machine": {
                "processor": platform.processor() or platform.machine(),
                "cores": os.cpu_count(),
                "threads": os.environ.get("OMP_NUM_THREADS", "all"),
                "load_at_end": os.getloadavg()[0],
            },
            "logprobs": {
                "shape": "1,024 trained of 8,192 tokens, vocabulary 151,936, hidden 1,024, float32",
                "selected_positions": selected,
                "all_positions": whole,
                "ratios": judge(selected, whole),
            },
            "advantages": case(python, "advantages_case.py"),
            "agreement_with_trl": case(python, "agreement_case.py"),
        }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({"ratios": result["logprobs"]["ratios"], "advantages": result["advantages"]}, indent=2))


if __name__ == "__main__":
    main()
