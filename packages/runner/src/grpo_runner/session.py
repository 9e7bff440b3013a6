"""Putting a run together: plugins, environment, base model, engine, learner, checkpoints. The loop itself is `train.py`."""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tomli_w

from grpo_core import LRSchedule
from grpo_runner.attempts import next_attempt
from grpo_runner.base_model import ensure_base
from grpo_runner.checkpoints import CheckpointStore
from grpo_runner.config import MAY_CHANGE, Config, ConfigError, config_hash, flat
from grpo_runner.files import write_atomic
from grpo_runner.learner import Learner
from grpo_runner.pictures import FeatureCache
from grpo_runner.policy import Lora, Policy, load_processors, shared_features
from grpo_runner.publishing import Canary
from grpo_runner.rollout import Rollouts, RolloutSettings
from grpo_runner.runs import RunFolder
from grpo_runner.scoring import Scorer
from grpo_runner.seeds import derive_seed
from vismaze_hooks import CheckpointBackend, Engine, EnvironmentOffer, Plugins, Task, Tracker
from vismaze_hooks.names import pick
from vismaze_hooks.text import make_text_environment

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


@dataclass
class Session:
    """Everything the loop needs. `version` is the step whose weights the engine holds."""

    config: Config
    plugins: Plugins
    run: RunFolder
    offer: EnvironmentOffer
    draw: Callable[[int], Task]
    fixed: tuple[Task, ...]
    base: Mapping[str, Any]
    policy: Policy
    learner: Learner
    engine: Engine
    rollouts: Rollouts
    play: RolloutSettings
    schedule: LRSchedule
    store: CheckpointStore
    trackers: list[Tracker]
    canary: Canary | None = None
    version: int = 0
    before: float = 0.0  # wall seconds of earlier attempts, by what the checkpoint says
    phases_before: Mapping[str, float] | None = None

    def resume(self) -> int:
        """Load the newest whole checkpoint; return the step it stands at, 0 at the beginning."""
        found = self.store.load(lambda folder, meta: self.learner.load(folder))
        step = found[1].step if found else 0
        if found:
            self.phases_before = found[1].meta["seconds"]
            self.run.event("resumed", step=step)
        dropped = self.run.forget_after(step)
        if dropped:
            self.run.event("metrics_dropped", lines=dropped, after_step=step)
        return step

    def checkpoint(self, step: int, score: float | None) -> None:
        """Commit the trainable weights, the optimizer and the position."""
        meta = {"seconds": self.seconds(), "base_model": self.base["identity"], "versions": versions()}
        self.store.save(step, self.learner.save, meta, score=score)

    def seconds(self) -> dict[str, float]:
        """Wall seconds by phase over all attempts."""
        before = self.phases_before or {}
        return {k: round(before.get(k, 0.0) + self.run.seconds.get(k, 0.0), 3) for k in {**before, **self.run.seconds}}

    def finished_step(self, step: int, record: Mapping[str, Any]) -> None:
        """Tell trackers and listeners; a listener that fails is an event."""
        metrics = {k: v for k, v in record.items() if isinstance(v, float | int) and k != "step"}
        for tracker in self.trackers:
            tracker.log(step, metrics)
        for problem in self.plugins.emit("vismaze_step_finished", step=step, metrics=metrics):
            self.run.event("listener_failed", step=step, **asdict(problem))

    def wait(self) -> None:
        """Wait for whatever is still being written."""
        self.store.wait()

    def close(self) -> None:
        self.engine.close()
        for tracker in self.trackers:
            tracker.close()


def find_environment(config: Config, plugins: Plugins) -> EnvironmentOffer:
    """Return the configured environment's offer.

    Raises:
        ConfigError: unknown name or options; lists what is installed.
    """
    try:
        offer = plugins.create("environment", config.environment.id, config.environment.options)
        make_text_environment(offer).close()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"environment: {error}") from error
    return offer


def fixed_set(offer: EnvironmentOffer, name: str) -> tuple[Task, ...]:
    """Return a fixed set of tasks by name.

    Raises:
        ConfigError: the environment offers no such set, or a task in it cannot be solved within its limit.
    """
    try:
        return pick("fixed set", name, offer.fixed_sets)()
    except ValueError as error:
        raise ConfigError(f"tasks: {error}") from error


def open_session(config: Config, plugins: Plugins, tell: Callable[[str], None]) -> Session:
    """Build or find everything, refusing what cannot work before anything is written.

    Raises:
        ConfigError: a name, an option or a folder that does not fit.
        OSError: the run folder cannot be written.
    """
    offer = find_environment(config, plugins)
    fixed = fixed_set(offer, config.tasks.evaluation)
    if offer.stream is None:
        raise ConfigError(f"environment {offer.id} offers no training stream")
    try:
        draw = offer.stream(**config.tasks.stream)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tasks.stream: {error}") from error
    folder = Path(config.run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    identity = _identity(folder, config)
    run = RunFolder(folder, next_attempt(folder))
    with run.phase("warm_start"):
        base = ensure_base(config, offer, tell)
    policy, learner = _learner(config)
    engine = make_engine(config, plugins)
    processors = load_processors(Path(config.model.path))
    rollouts = Rollouts(offer, processors.chat, processors.vocabulary, prompt=config.environment.prompt)
    canary = make_canary(config, draw, rollouts, learner.scorer)
    if canary is not None and policy.peft is not None:
        run.event("canary_measured", gap=canary.measure(engine))
    store = CheckpointStore(
        folder / "checkpoints",
        run_folder=folder,
        attempt=run.attempt,
        run_id=identity["run_id"],
        config_hash=config_hash(config),
        config=dict(flat(config, skip=MAY_CHANGE)),
        keep=config.checkpoint.keep,
        backend=_backend(config, plugins),
        on_event=lambda name, facts: run.event(name, **facts),
    )
    return Session(
        config=config,
        plugins=plugins,
        run=run,
        offer=offer,
        draw=draw,
        fixed=fixed,
        base=base,
        policy=policy,
        learner=learner,
        engine=engine,
        rollouts=rollouts,
        play=play_settings(config),
        schedule=LRSchedule(
            peak=config.train.lr,
            kind=config.train.schedule,
            total_steps=config.run.steps * config.train.minibatches,
            warmup_steps=config.train.warmup,
        ),
        store=store,
        trackers=[plugins.create("tracker", name, {"folder": str(folder), **o}) for name, o in config.trackers.items()],
        canary=canary,
    )


def play_settings(config: Config) -> RolloutSettings:
    """Return how turns are asked for in training."""
    history = None if config.rollout.history == "full" else config.rollout.history
    return RolloutSettings(history, config.rollout.max_new_tokens, config.rollout.temperature)


def make_canary(config: Config, draw: Callable[[int], Task], rollouts: Rollouts, scorer: Scorer) -> Canary | None:
    """Return the questions that every publish is checked with, None when the configuration leaves them out."""
    count, verify = config.rollout.canary, config.train.verify
    if not count or verify == 0:
        return None
    tasks = [draw(derive_seed(config.run.seed, "canary", n)) for n in range(count)]
    seeds = [derive_seed(config.run.seed, "canary answer", n) for n in range(count)]
    requests = rollouts.questions(tasks, play_settings(config), seeds, turns=2)
    return Canary(scorer, requests, None if isinstance(verify, str) else verify)


def make_engine(config: Config, plugins: Plugins) -> Engine:
    """Make the configured engine on the base model."""
    options = {
        "model": config.model.path,
        "lora": asdict(lora) if (lora := lora_of(config)) is not None else None,
        "keep_history": config.rollout.history == "full",
        **config.rollout.engine_options,
    }
    try:
        return plugins.create("engine", config.rollout.engine, options)
    except ValueError as error:
        raise ConfigError(f"rollout.engine: {error}") from error


def lora_of(config: Config) -> Lora | None:
    """Return the adapter's settings, None when every weight is trained."""
    if config.train.weights == "full":
        return None
    return Lora(config.train.rank, config.train.alpha, config.train.targets)


def _learner(config: Config) -> tuple[Policy, Learner]:
    folder = Path(config.model.path)
    try:
        policy = Policy(folder, lora=lora_of(config), seed=derive_seed(config.run.seed, "adapter") % 2**31)
    except ValueError as error:
        raise ConfigError(f"train.targets: {error}") from error
    scorer = Scorer(
        policy,
        load_processors(folder),
        features=FeatureCache() if policy.trains_vision else shared_features(folder),
        token_budget=config.train.token_budget,
        temperature=config.rollout.temperature,
    )
    return policy, Learner(policy, scorer, weight_decay=config.train.weight_decay, max_norm=config.train.max_norm)


def _backend(config: Config, plugins: Plugins) -> CheckpointBackend | None:
    if config.checkpoint.backend is None:
        return None
    try:
        return plugins.create("checkpoint backend", config.checkpoint.backend, config.checkpoint.backend_options)
    except ValueError as error:
        raise ConfigError(f"checkpoint.backend: {error}") from error


def _identity(folder: Path, config: Config) -> dict[str, Any]:
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
