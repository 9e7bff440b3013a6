"""The configuration refuses what it does not know, and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_runner.config import MAY_CHANGE, Config, ConfigError, config_hash, describe, flat, load

MINIMAL = """
[run]
folder = "runs/x"
steps = 10
[model]
path = "m"
[environment]
id = "VisMaze-v0"
[tasks]
evaluation = "vismaze-64-7x7"
[rollout]
tasks = 2
samples = 4
[train]
lr = 1e-3
[evaluation]
every = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(MINIMAL)
    return path


def test_defaults_are_filled_in_and_overrides_are_typed(file: Path) -> None:
    config = load(file, ["train.lr=3e-4", "run.folder=elsewhere", "environment.options.size=9", "rollout.history=1"])
    assert config.train.lr == 3e-4 and config.run.folder == "elsewhere"
    assert config.environment.options == {"size": 9} and config.rollout.history == 1
    assert config.loss.clip_high == 0.28 and load(file).rollout.history == "full"
    assert config.cluster.silence == 10.0 and load(file, ["cluster.deadlines.silence=3"]).cluster.silence == 3.0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lrr=1", r"unknown key 'train.lrr'. Did you mean 'train.lr'\?"),
        ("trian.lr=1", "unknown key 'trian'"),
        ("loss.clip_hi=1", "Did you mean 'loss.clip_high'"),
        ("train.lr=fast", "train.lr: .*valid number.*'fast'"),
        ("train.lr=-1", "train.lr: .*greater than 0"),
        ("rollout.samples=1", "rollout.samples: .*greater than or equal to 2"),
        ("rollout.history=sometimes", "rollout.history"),
        ("run.steps.x=1", "is a value, not a section"),
        ("run.steps", "expected key=value"),
        ("train.warmup=10", "train.warmup must be shorter than the run"),
        ("train.weights=full loss.kl=0.1", "loss.kl needs train.weights = 'lora'"),
        ("loss.estimator=rloo loss.scale=none", "read by loss.estimator = 'grpo' only"),
        ("warm_start.target=0.5", "warm_start needs tasks.tuning"),
        ("warm_start.max_steps=50 tasks.tuning=other", "warm_start: max_steps must be more than the 50 steps"),
        (
            "warm_start.habits={random=0.6,greedy=0.5} tasks.tuning=other",
            "warm_start: the shares of habits add up to more than 1",
        ),
        ("cluster.nodes=2 cluster.min_nodes=3", r"cluster.min_nodes must be at most cluster.nodes \(2\)"),
        ("cluster.kind=ray learner.ranks=2", "set cluster.nodes and cluster.ranks_per_node instead"),
        ("cluster.faults=1:1", "cluster.faults needs cluster.kind = 'ray'"),
        ("cluster.kind=ray cluster.faults=1:11", "cluster.faults: .*11 faults do not fit into 10 steps"),
        ("cluster.deadlines.updates=3", "cluster.deadlines"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_the_nearest(file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(file, override.split(" "))


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*none\.toml: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[run\n")
    with pytest.raises(ConfigError, match=r"bad\.toml is not TOML: .*line 1"):
        load(tmp_path / "bad.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ConfigError, match=r"key 'run' is missing"):
        load(tmp_path / "empty.toml")


def test_every_key_has_a_meaning() -> None:
    described = list(describe())
    assert all(info.description for key, info in described if "." in key), [k for k, i in described if not i.description]
    assert len(described) <= 70, "one more must replace another"


def test_the_hash_changes_with_what_changes_numbers_and_with_nothing_else(file: Path) -> None:
    same = ["run.folder=other", "checkpoint.every=7", "evaluation.every=3", "export.every=2", "train.verify=0"]
    assert {config_hash(load(file, [o])) for o in same} == {config_hash(load(file))}
    other = ["run.seed=1", "train.lr=2e-3", "loss.kl=0.1", "rollout.temperature=0.7", "environment.options.size=9"]
    assert len({config_hash(load(file, [o])) for o in other} | {config_hash(load(file))}) == len(other) + 1
    known = {key for key, _ in flat(load(file))} | set(Config.model_fields)
    assert set(MAY_CHANGE) <= known
