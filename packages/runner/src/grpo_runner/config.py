"""The configuration: one TOML file, frozen, typed, unknown keys refused. Every key is described where it is defined."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from grpo_runner.faults import Fault, plan_of
from vismaze_hooks.names import nearest

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0)]
Coefficient = Annotated[float, Field(ge=0)]


WARMUP = 50
"""Steps over which the learning rate of a warm start rises."""


class ConfigError(ValueError):
    """The configuration cannot be used; the message names the key, what was expected and the nearest known name."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Run(Section):
    folder: str = Field(description="where everything about the run goes; the same folder again continues the run")
    seed: int = Field(0, description="of every draw: tasks, sampling, adapter initialisation")
    steps: Positive = Field(description="rollout-and-update steps")


class Model(Section):
    path: str = Field(description="Hugging Face folder of the base model, with tokenizer and image processor")
    tiny: str | dict[str, Any] | None = Field(
        None, description="build a small Qwen3-VL at `path` if nothing is there: a shape's name, or a table of its numbers"
    )


class Environment(Section):
    id: str = Field(description="name under which a plugin offers it, such as VisMaze-v0")
    options: dict[str, Any] = Field(default_factory=dict, description="keyword options of the environment: size, reward, …")
    prompt: str | None = Field(None, description="replaces the environment's own prompt")


class Tasks(Section):
    stream: dict[str, Any] = Field(default_factory=dict, description="options of the training stream: shortest = [2, 16], …")
    revisit: Share = Field(0.0, description="share of a step's tasks, at most, drawn again for having had both outcomes")
    evaluation: str = Field(description="name of the fixed set that results are reported on; never trained on")
    tuning: str | None = Field(None, description="name of the fixed set for calibrating the warm start and for tuning")


class WarmStart(Section):
    target: Share | None = Field(
        None,
        description="stop at this greedy solve rate on the tuning set; without it lr falls to 0 over max_steps, where it ends",
    )
    stream: dict[str, Any] = Field(default_factory=dict, description="options of the demonstrations' stream")
    seed: int = Field(0, description="of the model's initialisation and of the demonstrations; run seeds share one base")
    batch: Positive = Field(64, description="demonstrations a step")
    turns: Positive | None = Field(None, description="turns of a demonstration that are learnt, from a random one on")
    noise: Share = Field(0.0, description="share of turns in which a random word is played, and not learnt")
    habits: dict[str, Share] = Field(
        default_factory=dict,
        description="share of the turns without noise in which a baseline's answer is shown, and learnt, not the solver's",
    )
    lr: Rate = Field(1e-3, description=f"peak learning rate, after {WARMUP} steps of warm-up")
    check_every: Positive = Field(50, description="steps between two looks at the tuning set")
    max_steps: Positive = Field(2000, description="end there; with an error, when a target was not reached")

    @model_validator(mode="after")
    def _fits_together(self) -> WarmStart:
        if sum(self.habits.values()) > 1:
            raise ValueError("the shares of habits add up to more than 1, which is all turns")
        if self.target is None and self.max_steps <= WARMUP:
            raise ValueError(f"max_steps must be more than the {WARMUP} steps of warm-up where no target ends it")
        return self


class Rollout(Section):
    engine: str = Field("local", description="who samples: local, or another engine that a plugin offers")
    engine_options: dict[str, Any] = Field(default_factory=dict, description="keyword options of the engine")
    tasks: Positive = Field(description="tasks a step")
    samples: Annotated[int, Field(ge=2)] = Field(description="samples of each task: the group that rewards are compared in")
    history: Natural | Literal["full"] = Field("full", description="past turns in the prompt: all of them, or the last k")
    max_new_tokens: Positive = Field(8, description="token limit of one answer")
    temperature: Rate = Field(1.0, description="of sampling in training; log-probs are taken at the same")
    canary: Natural = Field(4, description="fixed questions on which trainer and engine must agree after every publish")


class Loss(Section):
    estimator: str = Field("grpo", description="advantage estimator of grpo-core")
    scale: Literal["std", "none", "batch"] = Field("std", description="what centred rewards are divided by")
    kind: str = Field("ppo", description="policy loss of grpo-core")
    clip_low: Coefficient = Field(0.2, description="the ratio may fall to 1 - clip_low")
    clip_high: Coefficient = Field(0.28, description="the ratio may rise to 1 + clip_high (clip-higher)")
    kl: Coefficient = Field(0.0, description="coefficient of the k3 KL to the adapter-off model")
    entropy: Coefficient = Field(0.0, description="coefficient of the entropy bonus")


class Train(Section):
    weights: Literal["lora", "full"] = Field("lora", description="what is trained: a LoRA adapter, or every weight")
    rank: Positive = Field(16, description="LoRA rank")
    alpha: Rate = Field(32.0, description="LoRA alpha; the update is scaled by alpha / rank")
    targets: str = Field("language", description="LoRA targets: language (what vLLM serves), all-linear, or a pattern")
    lr: Rate = Field(description="peak learning rate")
    schedule: Literal["constant", "linear", "cosine"] = Field("linear", description="decay after the warm-up")
    warmup: Natural = Field(0, description="optimizer steps of linear warm-up")
    weight_decay: Coefficient = Field(0.0, description="AdamW's")
    max_norm: Rate = Field(1.0, description="gradients are clipped to this norm; a non-finite one skips the step")
    minibatches: Positive = Field(1, description="optimizer steps a rollout, each on its own share of the tasks")
    token_budget: Positive = Field(16_384, description="padded tokens of one forward and backward pass, at most")
    verify: Annotated[float, Field(ge=0)] | Literal["measured"] = Field(
        1e-4,
        description="stop when sampler and learner differ by more on any token's log-prob; 0 does not compare; measured (for "
        "an engine in half precision): only the canary does, by up to three times the gap that is found without an adapter",
    )


class Learner(Section):
    ranks: Positive = Field(1, description="processes that learn together; where torchrun starts them, its number counts")
    frozen_base: Literal["replicate", "shard", "hybrid"] = Field(
        "replicate",
        description="frozen decoder weights of several ranks: whole on each, split over all, or over those of one machine",
    )


class Cluster(Section):
    kind: Literal["local", "ray"] = Field(
        "local",
        description="who plays and learns: this process (and the learner's ranks), or an actor for each rank on a Ray cluster",
    )
    address: str | None = Field(
        None,
        description="Ray's address, passed on unchanged; by default RAY_ADDRESS, or a Ray started for the run",
    )
    nodes: Positive = Field(1, description="machines of the full size")
    ranks_per_node: Positive = Field(1, description="ranks on each: one a GPU")
    min_nodes: Positive | None = Field(
        None, description="machines that are enough to go on with when others are lost; all by default"
    )
    cpus: Rate = Field(1, description="CPUs that Ray sets aside for a rank")
    gpus: Annotated[float, Field(ge=0)] = Field(0, description="GPUs that Ray sets aside for a rank: 1 where there are some")
    wait: Coefficient = Field(600.0, description="seconds to wait for the machines at the start, or for a replacement")
    deadlines: dict[Literal["silence", "start", "rollout", "update", "publish", "checkpoint", "leave"], Rate] = Field(
        default_factory=dict,
        description="longest seconds without a sign of life (silence), or of one call by phase, where the defaults do not fit",
    )
    faults: str | tuple[dict[str, Any], ...] = Field(
        "", description="a drill: seed:count, or a list of tables (step, phase, rank, kind); without it nothing happens"
    )

    @property
    def silence(self) -> float:
        """Seconds without a sign of life after which a rank counts as lost."""
        return self.deadlines.get("silence", 10.0)


class Evaluation(Section):
    every: Positive = Field(description="steps between evaluations; the first and the last state are always evaluated")
    samples: Natural = Field(4, description="sampled episodes of each task, beside the greedy one")


class Checkpoint(Section):
    every: Positive = Field(1, description="steps between full training checkpoints")
    keep: Positive = Field(3, description="newest checkpoints that stay; the best one stays too")
    backend: str | None = Field(None, description="a second place for them, offered by a plugin, such as local or fsspec")
    backend_options: dict[str, Any] = Field(default_factory=dict, description="keyword options of the backend")


class Export(Section):
    every: Positive | None = Field(None, description="steps between adapter exports; the last state is always exported")


class Config(Section):
    plugins: tuple[str, ...] = Field((), description="local plugins: module names, or Python files beside the configuration")
    trackers: dict[str, dict[str, Any]] = Field(default_factory=dict, description="trackers by name, with their options")
    run: Run
    model: Model
    environment: Environment
    tasks: Tasks
    warm_start: WarmStart | None = None
    rollout: Rollout
    loss: Loss = Loss()
    train: Train
    learner: Learner = Learner()
    cluster: Cluster = Cluster()
    evaluation: Evaluation
    checkpoint: Checkpoint = Checkpoint()
    export: Export = Export()

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        if self.warm_start is not None and self.tasks.tuning is None:
            raise ValueError("warm_start needs tasks.tuning, the set that it is calibrated on")
        if self.loss.scale != "std" and self.loss.estimator != "grpo":
            raise ValueError(f"loss.scale = {self.loss.scale!r} is read by loss.estimator = 'grpo' only; remove one of them")
        if self.train.weights == "full" and self.loss.kl > 0:
            raise ValueError("loss.kl needs train.weights = 'lora': the reference is the model with its adapter off")
        if self.train.weights == "full" and self.train.verify == "measured":
            raise ValueError("train.verify = 'measured' needs train.weights = 'lora': it is measured without the adapter")
        if self.train.schedule != "constant" and self.train.warmup >= self.run.steps * self.train.minibatches:
            raise ValueError("train.warmup must be shorter than the run (run.steps * train.minibatches)")
        if self.cluster.min_nodes is not None and self.cluster.min_nodes > self.cluster.nodes:
            raise ValueError(f"cluster.min_nodes must be at most cluster.nodes ({self.cluster.nodes})")
        if self.cluster.kind == "ray" and self.learner.ranks > 1:
            raise ValueError("learner.ranks are of one machine; on Ray set cluster.nodes and cluster.ranks_per_node instead")
        if self.cluster.faults and self.cluster.kind != "ray":
            raise ValueError("cluster.faults needs cluster.kind = 'ray': a local run has nobody who recovers it")
        try:
            self.fault_plan()
        except ValueError as error:
            raise ValueError(f"cluster.faults: {error}") from error
        return self

    def fault_plan(self) -> tuple[Fault, ...]:
        """Return what shall go wrong, in the order of the run; empty without a drill."""
        ranks = self.cluster.nodes * self.cluster.ranks_per_node
        return plan_of(self.cluster.faults, steps=self.run.steps, ranks=ranks)


MAY_CHANGE = (
    "run.folder",
    "rollout.engine",
    "rollout.engine_options",
    "rollout.canary",
    "evaluation",
    "checkpoint",
    "export",
    "learner",
    "cluster",
    "trackers",
    "train.verify",
)
"""Keys (or sections) in which a continued run may differ: they change no number of the training, or last digits (`learner`,
`cluster`)."""


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file and apply `key=value` overrides; values are TOML, bare words are strings.

    Raises:
        ConfigError: no such file, no TOML, an unknown key (the nearest is suggested), or a wrong value.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"override {override!r}: expected key=value, such as train.lr=3e-4")
        _put(table, key.strip().split("."), _value(text.strip()), override)
    return parse(table, str(path))


def parse(table: dict[str, Any], source: str) -> Config:
    """Check a configuration given as a table; `source` is for messages."""
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{source}: {line}" for line in _explain(error))) from error


def config_hash(config: Config) -> str:
    """Return the sha256 of everything in a configuration that changes numbers."""
    return hashlib.sha256(json.dumps(dict(flat(config, skip=MAY_CHANGE)), sort_keys=True).encode()).hexdigest()


def flat(config: Config, *, skip: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every key as "section.name" with its JSON value, in the order of definition."""
    for section, value in config.model_dump(mode="json").items():
        if section in skip:
            continue
        if isinstance(getattr(config, section), Section):
            yield from ((f"{section}.{k}", v) for k, v in value.items() if f"{section}.{k}" not in skip)
        else:
            yield section, value


def describe() -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key with its definition."""
    for section, info in Config.model_fields.items():
        kind = _section_type(info)
        if kind is None:
            yield section, info
        else:
            yield from ((f"{section}.{name}", field) for name, field in kind.model_fields.items())


def _section_type(info: FieldInfo) -> type[Section] | None:
    candidates = (info.annotation, *getattr(info.annotation, "__args__", ()))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, Section)), None)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(table: dict[str, Any], keys: Sequence[str], value: Any, override: str) -> None:
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"override {override!r}: {key!r} is a value, not a section")
    table[keys[-1]] = value


def _explain(error: ValidationError) -> Iterator[str]:
    known = [key for key, _ in describe()] + list(Config.model_fields)
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            yield f"unknown key {key!r}.{nearest(key, known)} `grpo-run config show` lists all keys."
        elif item["type"] == "missing":
            yield f"key {key!r} is missing."
        else:
            got = f", got {item['input']!r}" if not isinstance(item["input"], dict) else ""
            yield f"{key or 'configuration'}: {item['msg'].removeprefix('Value error, ')}{got}"
