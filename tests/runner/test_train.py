"""The whole path: it learns, it resumes exactly, and what it writes is what it says."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from peft import PeftModel
from safetensors.torch import load_file
from tomli_w import dumps
from transformers import AutoModelForImageTextToText

from grpo_runner import train
from grpo_runner.attempts import Superseded, next_attempt
from grpo_runner.config import Config, ConfigError, load, parse
from grpo_runner.identity import without_none
from grpo_runner.main_job import run_evaluation, run_training
from grpo_runner.runs import append_line, read_lines
from grpo_runner.stopping import Stopped
from vismaze_hooks import Plugins

TABLE = {
    "run": {"steps": 4},
    "model": {"tiny": {"vision_depth": 2, "deepstack": [0, 1]}},
    "environment": {"id": "VisMaze-v0", "options": {"size": 5, "cell_px": 8}, "prompt": "Go."},
    "tasks": {"evaluation": "vismaze-5x5"},
    "rollout": {"tasks": 2, "samples": 4, "history": 1, "max_new_tokens": 4},
    "loss": {"scale": "none"},
    "train": {"lr": 1e-2, "rank": 4, "targets": "all-linear", "minibatches": 2, "schedule": "cosine", "warmup": 1},
    "evaluation": {"every": 2, "samples": 1},
}


def config_of(folder: Path, **changes: dict) -> Config:
    """A run of seconds. Untrained models never arrive, so the reward asks only for readable answers of any kind."""
    table = {section: {**TABLE.get(section, {}), **changes.get(section, {})} for section in TABLE.keys() | changes.keys()}
    table["run"]["folder"] = str(folder / "run")
    table["model"].setdefault("path", str(folder / "base"))
    return parse(table, "test")


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    """A reward that an untrained model gets now and then, from a local plugin file."""
    from vismaze_hooks import load_plugins

    return load_plugins(["short_answers.py"], folder=Path(__file__).parent)


def run_of(folder: Path, plugins: Plugins, tell=lambda line: None, **changes: dict) -> Path:
    changes.setdefault("environment", {})["options"] = {**TABLE["environment"]["options"], "reward": "short_answers"}
    run_training(config_of(folder, **changes), plugins, tell)
    return folder / "run"


def weights(run: Path, step: int = 4) -> dict[str, torch.Tensor]:
    return load_file(run / "adapters" / f"step_{step:08d}" / "adapter_model.safetensors")


def lines(run: Path) -> list[dict]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read_lines(run / "metrics.jsonl")]


def assert_same(a: Path, b: Path, step: int = 4) -> None:
    assert all(torch.equal(x, y) for x, y in zip(weights(a, step).values(), weights(b, step).values(), strict=True))
    assert lines(a) == lines(b)
    for file in sorted((a / "eval").iterdir()):
        assert file.read_text() == (b / "eval" / file.name).read_text()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, plugins: Plugins) -> Path:
    """An uninterrupted run."""
    return run_of(tmp_path_factory.mktemp("straight"), plugins)


@pytest.mark.parametrize("stop", ["step 1/", "step 2/", "evaluation at step 2", "step 3/"])
def test_a_run_interrupted_between_steps_ends_with_the_same_weights(
    tmp_path: Path, plugins: Plugins, straight: Path, stop: str
) -> None:
    shutil.copytree(straight.parent / "base", tmp_path / "base")

    def interrupt(line: str) -> None:
        if line.startswith(stop):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_of(tmp_path, plugins, interrupt)
    run = run_of(tmp_path, plugins)
    assert_same(straight, run)
    events = [r["event"] for r in read_lines(run / "events.jsonl")]
    assert events.count("run_interrupted") == 1 and events[-1] == "run_finished"
    assert [r["step"] for r in read_lines(run / "events.jsonl") if r["event"] == "evaluated"] == [0, 2, 4]


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout": {"history": "full"}, "train": {"targets": "language"}},
        {"rollout": {"history": "full"}, "train": {"weights": "full", "minibatches": 1, "lr": 1e-3}},
        {
            "rollout": {"history": 0},
            "tasks": {"revisit": 0.5},
            "loss": {"kl": 0.1, "entropy": 0.01, "estimator": "rloo", "scale": "std"},
        },
        {"model": {"tiny": "tiny-gqa"}, "environment": {"cell_px": 32}, "train": {"minibatches": 1}},
    ],
    ids=["whole conversations", "every weight", "no past, KL and entropy", "other shape"],
)
def test_every_kind_of_run_agrees_while_running_and_resumes_exactly(
    tmp_path: Path, plugins: Plugins, changes: dict[str, dict]
) -> None:
    options = {**TABLE["environment"]["options"], "reward": "short_answers", **changes.get("environment", {})}
    changes = {**changes, "environment": {"options": options}}
    for name in ("straight", "stopped"):
        (tmp_path / name).mkdir()

    def interrupt(line: str) -> None:
        if line.startswith("step 2/"):
            raise KeyboardInterrupt

    def run(folder: Path, tell=lambda line: None) -> Path:
        run_training(config_of(folder, **changes), plugins, tell)
        return folder / "run"

    straight = run(tmp_path / "straight")
    shutil.copytree(tmp_path / "straight" / "base", tmp_path / "stopped" / "base")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", interrupt)
    stopped = run(tmp_path / "stopped")
    assert lines(straight) == lines(stopped)
    (ours,) = (straight / "adapters").iterdir()
    weights = "model.safetensors" if changes.get("train", {}).get("weights") == "full" else "adapter_model.safetensors"
    assert (ours / weights).read_bytes() == (stopped / "adapters" / ours.name / weights).read_bytes()
    for record in lines(straight):
        assert record["agreement/logprob_gap_max"] <= 1e-4 and record["agreement/tokens"] > 0
    assert any(record["optim/grad_norm"] > 0 for record in lines(straight))


def test_a_run_that_is_over_is_reported_again_and_changes_nothing(plugins: Plugins, straight: Path) -> None:
    before = json.loads((straight / "summary.json").read_text())
    after = json.loads((run_of(straight.parent, plugins) / "summary.json").read_text())
    assert before["hashes"] == after["hashes"] and before["eval_final"] == after["eval_final"]


def test_the_updates_did_something_and_the_ratios_began_at_one(straight: Path) -> None:
    first = weights(straight, 4)
    assert any(float(v.abs().max()) > 0 for k, v in first.items() if "lora_B" in k)
    for record in lines(straight):
        assert record["agreement/logprob_gap_max"] <= 1e-4
        assert record["agreement/tokens"] > 0


def test_the_export_is_a_plain_peft_folder(straight: Path) -> None:
    base = AutoModelForImageTextToText.from_pretrained(straight.parent / "base")
    model = PeftModel.from_pretrained(base, straight / "adapters" / "step_00000004")
    loaded = {n: p for n, p in model.named_parameters() if "lora_" in n}
    assert len(loaded) == len(weights(straight)) and any(float(p.abs().max()) > 0 for n, p in loaded.items() if "lora_B" in n)


def test_the_run_folder_holds_what_the_readme_says(straight: Path) -> None:
    for name in ("config.toml", "metrics.jsonl", "events.jsonl", "summary.json", "report.html"):
        assert (straight / name).is_file(), name
    assert len(list((straight / "sync").iterdir())) == 3
    assert [f.name for f in sorted((straight / "eval").iterdir())] == [f"step_{n:08d}.jsonl" for n in (0, 2, 4)]
    summary = json.loads((straight / "summary.json").read_text())
    assert {"solved", "total", "interval", "sampled_rate"} <= summary["eval_final"].keys()
    assert summary["wall_seconds"]["rollout"] > 0 and summary["hashes"]["weights"]
    assert load(straight / "config.toml") == config_of(
        straight.parent, environment={"options": {**TABLE["environment"]["options"], "reward": "short_answers"}}
    )


def test_a_run_folder_of_another_configuration_is_refused(plugins: Plugins, straight: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)begun with another configuration.*train\.lr: 0\.01 there, 0\.5 now"):
        run_of(straight.parent, plugins, train={**TABLE["train"], "lr": 0.5})


def test_a_base_model_of_another_recipe_is_refused(tmp_path: Path, plugins: Plugins, straight: Path) -> None:
    other = {"model": {"path": str(straight.parent / "base"), "tiny": {"vision_depth": 3, "deepstack": [0, 1]}}}
    with pytest.raises(ConfigError, match=r"another recipe \(differs in: tiny\)"):
        run_of(tmp_path, plugins, **other)


def test_another_run_seed_starts_from_the_same_base_and_goes_elsewhere(
    tmp_path: Path, plugins: Plugins, straight: Path
) -> None:
    model = {**TABLE["model"], "path": str(straight.parent / "base")}
    run = run_of(tmp_path, plugins, run={"steps": 1, "seed": 1}, model=model, train={**TABLE["train"], "warmup": 0})
    one, other = (json.loads((r / "summary.json").read_text()) for r in (straight, run))
    assert one["hashes"]["base_model"] == other["hashes"]["base_model"]
    assert lines(run)[0] != lines(straight)[0]


def test_every_weight_can_be_trained_and_the_export_is_a_model(tmp_path: Path, plugins: Plugins, straight: Path) -> None:
    model = {**TABLE["model"], "path": str(straight.parent / "base")}
    train = {"lr": 1e-3, "weights": "full"}
    run = run_of(tmp_path, plugins, run={"steps": 1}, model=model, train=train)
    folders = (model["path"], run / "adapters" / "step_00000001")
    before, after = (AutoModelForImageTextToText.from_pretrained(folder) for folder in folders)
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    assert lines(run)[0]["agreement/logprob_gap_max"] <= 1e-4


def test_an_evaluation_of_a_finished_run_repeats_its_last_one(plugins: Plugins, straight: Path) -> None:
    config = load(straight / "config.toml")
    found = run_evaluation(straight, config, plugins, set_name=None, adapter=None, base=False, samples=0)
    solved = json.loads((straight / "summary.json").read_text())["eval_final"]["solved"]
    assert f"{solved} of 16 solved" in found[1]


def test_half_a_line_of_a_killed_writer_costs_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append_line(path, {"step": 1})
    with path.open("a") as out:
        out.write('{"step": 2, "reward')
    append_line(path, {"step": 3})
    assert read_lines(path) == [{"step": 1}, {"step": 3}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environment": {"id": "VisMase-v0"}}, "unknown environment 'VisMase-v0'. Did you mean 'VisMaze-v0'"),
        ({"tasks": {"evaluation": "vismaze-5x6"}}, "unknown fixed set 'vismaze-5x6'. Did you mean 'vismaze-5x5'"),
        ({"rollout": {**TABLE["rollout"], "engine": "locl"}}, "unknown engine 'locl'. Did you mean 'local'"),
        ({"rollout": {**TABLE["rollout"], "engine_options": {"cache": 1}}}, "refused its options"),
        ({"train": {**TABLE["train"], "targets": "nothing"}}, "match no module"),
        ({"model": {"path": "/nonexistent/model", "tiny": None}}, "no folder /nonexistent/model"),
        ({"model": {"tiny": "tony"}}, "unknown shape 'tony'"),
        ({"model": {"tiny": {"depth": 1}}}, "unknown number 'depth'"),
        ({"tasks": {"evaluation": "vismaze-5x5", "stream": {"shortst": [2, 2]}}}, "tasks.stream"),
    ],
)
def test_what_cannot_work_is_refused_at_start(tmp_path: Path, plugins: Plugins, changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_training(config_of(tmp_path, **changes), plugins, lambda line: None)


def test_an_unwritable_run_folder_is_named(tmp_path: Path, plugins: Plugins) -> None:
    (tmp_path / "run").write_text("a file is in the way")
    with pytest.raises(ConfigError, match=r"run.folder: .*run cannot be made: File exists; choose another"):
        run_training(config_of(tmp_path), plugins, lambda line: None)


def test_ten_steps_are_four_and_six(tmp_path: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch, straight: Path) -> None:
    """Stopped by SIGTERM after step 4, off the schedule of checkpoints: LR, tasks, evaluations and every metric go on."""
    drawn: dict[int, list[str]] = {}
    draw = train.draw_tasks

    def recording(session, step):
        tasks = draw(session, step)
        drawn[step] = [t.uid for t in tasks]
        return tasks

    def stop(line: str) -> None:
        if line.startswith("step 4/"):
            os.kill(os.getpid(), signal.SIGTERM)

    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    monkeypatch.setattr(train, "draw_tasks", recording)
    changes = {"run": {"steps": 10}, "evaluation": {"every": 5, "samples": 1}, "checkpoint": {"every": 100}}
    changes["model"] = {**TABLE["model"], "path": str(straight.parent / "base")}
    whole = run_of(tmp_path / "whole", plugins, **changes)
    tasks, drawn = drawn, {}
    with pytest.raises(Stopped) as stopped:
        run_of(tmp_path / "parts", plugins, stop, **changes)
    assert stopped.value.number == signal.SIGTERM and sorted(drawn) == [0, 1, 2, 3]
    run = run_of(tmp_path / "parts", plugins, **changes)
    assert drawn == tasks
    assert_same(whole, run, 10)
    assert len({record["optim/lr"] for record in lines(run)}) == 10, "every step has its own learning rate"
    events = read_lines(run / "events.jsonl")
    assert [r["step"] for r in events if r["event"] == "evaluated"] == [0, 5, 10]
    assert [(r["step"], r["saved"]) for r in events if r["event"] == "run_stopped"] == [(4, 4)]
    assert [r["step"] for r in events if r["event"] == "resumed"] == [4]
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers, "what stood there before"


def test_a_run_that_another_start_takes_over_publishes_nothing_more(tmp_path: Path, plugins: Plugins, straight: Path) -> None:
    def take_over(line: str) -> None:
        if line.startswith("step 2/"):
            next_attempt(tmp_path / "run")

    model = {**TABLE["model"], "path": str(straight.parent / "base")}
    with pytest.raises(Superseded, match="superseded by attempt 2"):
        run_of(tmp_path, plugins, take_over, model=model, export={"every": 1})
    steps = {
        place: {f.name[:13] for f in (tmp_path / "run" / place).glob("step_*")} for place in ("sync", "adapters", "checkpoints")
    }
    assert all(max(found) <= "step_00000002" for found in steps.values()), steps
    assert not [f for f in (tmp_path / "run").rglob(".*") if f.name.startswith((".tmp", ".aside"))]


def test_a_save_that_fails_is_told_and_counted_and_costs_nothing_else(tmp_path: Path, plugins: Plugins, straight: Path) -> None:
    """Files above a size cannot be written for a while: adapters fit, training states do not."""
    adapter = (straight / "adapters" / "step_00000004" / "adapter_model.safetensors").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def tell(line: str) -> None:
        if line.startswith("step 1/"):
            while not (tmp_path / "run" / "checkpoints" / "LATEST").exists():
                time.sleep(0.01)
            resource.setrlimit(resource.RLIMIT_FSIZE, (3 * adapter // 2, limits[1]))
        if line.startswith("step 3/"):
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    model = {**TABLE["model"], "path": str(straight.parent / "base")}
    try:
        run = run_of(tmp_path, plugins, tell, model=model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    failed = [r for r in read_lines(run / "events.jsonl") if r["event"] == "checkpoint_failed"]
    assert failed[0]["step"] == 2 and "large" in failed[0]["error"]
    assert lines(run)[-1]["checkpoint/failed"] >= 1 and lines(straight)[-1]["checkpoint/failed"] == 0
    assert torch.equal(*(torch.cat([v.flatten() for v in weights(r).values()]) for r in (run, straight)))
    whole = {f.name for f in (run / "checkpoints").glob("step_*")}
    assert "step_00000004" in whole and "step_00000001" in whole and "step_00000002" not in whole


def test_a_checkpoint_says_everything_that_its_numbers_depend_on(straight: Path) -> None:
    manifest = json.loads((straight / "checkpoints" / "step_00000004" / "MANIFEST.json").read_text())
    summary = json.loads((straight / "summary.json").read_text())
    meta = manifest["meta"]
    assert manifest["config"] == summary["config"] and manifest["config_hash"] == summary["hashes"]["config"]
    assert meta["base_model"] == summary["hashes"]["base_model"] and meta["versions"] == summary["versions"]
    assert meta["evaluations"].keys() == {"0", "2", "4"} and meta["evaluations"]["4"] == summary["eval_final"]
    assert manifest["score"] == summary["eval_final"]["solved"] / summary["eval_final"]["total"]
    assert (meta["policy_version"], meta["tasks_drawn"], meta["seed"]) == (4, 8, 0)
    assert meta["schedule"]["updates"] == 8 and meta["schedule"]["next_lr"] == 0.0
    assert meta["trackers"] == {} and meta["world"]["ranks"] == 1


def test_an_export_has_a_model_card_with_its_evaluation(straight: Path) -> None:
    card = ModelCard.load(straight / "adapters" / "step_00000004" / "README.md")
    final = json.loads((straight / "summary.json").read_text())["eval_final"]
    assert card.data.library_name == "peft" and card.data.base_model == str(straight.parent / "base")
    assert [r.metric_value for r in card.data.eval_results] == [final["solved"] / final["total"]]
    assert f"| 4 | {final['solved']} of {final['total']} |" in card.text


WAITING = """
import os, signal, time
from grpo_runner.stopping import Stop, Stopped
with Stop() as stop:
    print("ready", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.01)
        try:
            stop.check()
        except Stopped as stopped:
            print(stopped, flush=True)
            break
    while time.monotonic() < end:
        time.sleep(0.01)
"""


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_at_once(second: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "stopped by SIGINT\n" and process.poll() is None
            process.send_signal(second)
            assert process.wait(60) == -second
            assert "SIGINT: this step is finished first; once more stops at once" in process.stderr.read()
        finally:
            process.kill()


@pytest.mark.slow
def test_signals_at_any_moment_lose_nothing_that_was_committed(tmp_path: Path, straight: Path) -> None:
    """With checkpoints far apart, so that what stands is what the signals' ends saved."""
    shutil.copytree(straight.parent / "base", tmp_path / "base")
    options = {**TABLE["environment"]["options"], "reward": "short_answers"}
    config = config_of(tmp_path, environment={"options": options}, checkpoint={"every": 100})
    shutil.copy(Path(__file__).parent / "short_answers.py", tmp_path)
    table = without_none(config.model_dump(mode="json")) | {"plugins": ["short_answers.py"]}
    (tmp_path / "c.toml").write_text(dumps(table))
    command = [sys.executable, "-m", "grpo_runner.cli", "train", str(tmp_path / "c.toml")]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    codes = []
    for sent, after in ((signal.SIGINT, "step 1/"), (signal.SIGTERM, "evaluation at step 2"), (signal.SIGKILL, "step 3/")):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith(after):
                    process.send_signal(sent)
                    break
            rest = process.stderr.read()
        codes.append(process.returncode)
        assert sent is signal.SIGKILL or "the same command continues" in rest, rest
    assert codes == [130, 143, -9]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    events = read_lines(tmp_path / "run" / "events.jsonl")
    stopped = [r for r in events if r["event"] == "run_stopped"]
    assert all(r["saved"] == r["step"] for r in stopped)
    resumed = [r["step"] for r in events if r["event"] == "resumed"]
    assert resumed == [stopped[0]["step"], stopped[1]["step"], stopped[1]["step"]]
    assert_same(straight, tmp_path / "run")
