"""Putting a run together: plugins, environment, base model, engine, learner, checkpoints. The loop itself is `train.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from grpo_core import LRSchedule
from grpo_runner.attempts import fence, next_attempt
from grpo_runner.base_model import ensure_base
from grpo_runner.checkpoints import CheckpointStore, commit_folder, sweep
from grpo_runner.config import MAY_CHANGE, Config, ConfigError, config_hash
from grpo_runner.evaluate import Outcome, read_outcome
from grpo_runner.identity import run_identity, versions
from grpo_runner.interruptions import RankLost, Resize, through_losses
from grpo_runner.launch import lead
from grpo_runner.learner import Learner
from grpo_runner.policy import load_processors
from grpo_runner.publishing import Canary
from grpo_runner.ranks import Team, lora_of
from grpo_runner.rollout import Rollouts, RolloutSettings
from grpo_runner.runs import RunFolder
from grpo_runner.seeds import derive_seed
from grpo_runner.stopping import Stop
from grpo_runner.task_source import TaskSource
from vismaze_hooks import CheckpointBackend, Engine, EnvironmentOffer, Plugins, Task, Tracker
from vismaze_hooks.names import pick
from vismaze_hooks.text import make_text_environment

if TYPE_CHECKING:
    from grpo_runner.cluster import ClusterLearner, ClusterRollouts, Supervisor


@dataclass
class Session:
    """Everything the loop needs. `version` is the step whose weights the engine holds."""

    config: Config
    plugins: Plugins
    run: RunFolder
    offer: EnvironmentOffer
    tasks: TaskSource
    fixed: tuple[Task, ...]
    base: Mapping[str, Any]
    learner: Learner | Team | ClusterLearner
    engine: Engine
    rollouts: Rollouts | ClusterRollouts
    play: RolloutSettings
    schedule: LRSchedule
    store: CheckpointStore
    trackers: Mapping[str, Tracker]
    run_id: str
    stop: Stop
    supervisor: Supervisor | None = None  # of the cluster's ranks
    canary: Canary | None = None
    version: int = 0
    entries: int = 0  # how often the loop was entered in this attempt
    step: int = 0  # finished steps; outside of an update, what is in memory stands there
    evaluations: dict[int, Outcome] = field(default_factory=dict)  # by step, of all attempts
    seconds_before: Mapping[str, float] = field(default_factory=dict)  # wall seconds by phase of earlier attempts

    def resume(self) -> int:
        """Load the newest whole checkpoint; return the step it stands at, 0 at the beginning."""
        self.entries += 1
        found = self.store.load(lambda folder, meta: self.learner.load(folder), may_change=MAY_CHANGE)
        self._stand_at(found[1].step if found else 0)
        self.tasks.load(found[1].meta["tasks_at_the_edge"] if found else ())
        if found:
            meta = found[1].meta
            if self.entries == 1:  # later ones are in this attempt's own count
                self.seconds_before = meta["seconds"]
            self.evaluations = {int(step): read_outcome(record) for step, record in meta["evaluations"].items()}
            self.run.event("resumed", step=self.step, world=self.world(), written_by=meta["world"])
        dropped = self.run.forget_after(self.step)
        if dropped:
            self.run.event("metrics_dropped", lines=dropped, after_step=self.step)
        return self.step

    def _stand_at(self, step: int) -> None:
        self.step = step
        if self.supervisor is not None:
            self.supervisor.step = step

    def checkpoint(self) -> None:
        """Commit weights, optimizer and position in the background, one save at a time; a failure is told and counted.

        Raises:
            Resize: the checkpoint stands, and the cluster can take its full size again.
        """
        self.store.wait()  # before the copy is made, so that never two of them lie in memory
        found = self.evaluations.get(self.step)
        self.store.save_async(self.step, self.learner.snapshot(), self.position(), found.rate if found else None)
        if self.supervisor is not None and self.step < self.config.run.steps and self.supervisor.can_grow():
            self.store.wait()
            if self.store.newest == self.step:
                raise Resize

    def position(self) -> dict[str, Any]:
        """Return what a checkpoint says beside the tensors, the run, the configuration and its hash.

        There is no generator's state: every draw is a function of the run seed and its coordinates.
        """
        train, tasks = self.config.train, self.config.rollout.tasks
        updates = self.step * train.minibatches
        return {
            "policy_version": self.version,
            "seed": self.config.run.seed,
            "tasks_drawn": self.step * tasks,
            "tasks_at_the_edge": self.tasks.state(),
            "schedule": {"updates": updates, "next_lr": self.schedule.lr_at(updates)},
            "evaluations": {str(step): asdict(found) for step, found in self.evaluations.items()},
            "trackers": dict.fromkeys(self.trackers, self.run_id),  # each is given this id at every start
            "base_model": self.base["identity"],
            "versions": versions(),
            "world": self.world(),
            "seconds": self.seconds(),
        }

    def world(self) -> dict[str, Any]:
        """Return how the learner's work and state are laid out."""
        return {"ranks": self.learner.ranks, "frozen_base": self.config.learner.frozen_base}

    def commit(self, parent: Path, name: str, write: Callable[[Path], None], facts: Mapping[str, Any]) -> None:
        """Publish a folder of weights, unless a later attempt of the run has started.

        Raises:
            Superseded: it has; nothing was published.
        """
        commit_folder(parent, name, write, manifest=facts, attempt=self.run.attempt, fence=self.fence)

    def fence(self) -> None:
        fence(self.run.path, self.run.attempt)()

    def seconds(self) -> dict[str, float]:
        """Wall seconds by phase over all attempts."""
        before, now = self.seconds_before, self.run.seconds
        return {k: round(before.get(k, 0.0) + now.get(k, 0.0), 3) for k in {**before, **now}}

    def finished_step(self, step: int, record: Mapping[str, Any]) -> None:
        """Tell trackers and listeners; a listener that fails is an event."""
        self._stand_at(step)
        metrics = {k: v for k, v in record.items() if isinstance(v, float | int) and k != "step"}
        for tracker in self.trackers.values():
            tracker.log(step, metrics)
        for problem in self.plugins.emit("vismaze_step_finished", step=step, metrics=metrics):
            self.run.event("listener_failed", step=step, **asdict(problem))

    def wait(self) -> None:
        """Wait for whatever is still being written."""
        self.store.wait()

    def leave(self) -> int:
        """Save where the run stands, unless that has been done; returns the step of the newest checkpoint.

        Where a rank is lost meanwhile, that is one of earlier: whoever sent the signal does not wait for a recovery.
        """
        self.store.wait()
        if self.store.newest < self.step:
            try:
                self.checkpoint()
            except (RankLost, Resize) as why:
                self.run.event("leave_interrupted", step=self.step, why=str(why) or "a machine is back")
            self.store.wait()
        return self.store.newest

    def close(self) -> None:
        self.engine.close()
        self.learner.close()
        for tracker in self.trackers.values():
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


def open_session(config: Config, plugins: Plugins, tell: Callable[[str], None], stop: Stop) -> Session:
    """Build or find everything, refusing what cannot work before anything is written.

    Raises:
        ConfigError: a name, an option or a folder that does not fit.
        OSError: the run folder is there and cannot be written.
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run.folder: {folder} cannot be made: {error.strerror}; choose another (run.folder=…)") from error
    identity = run_identity(folder, config)
    run = RunFolder(folder, next_attempt(folder))
    clear_leftovers(run)
    with run.phase("warm_start"):
        base = ensure_base(config, offer, tell)
    with ExitStack() as undo:
        supervisor: Supervisor | None = None
        learner: Learner | Team | ClusterLearner
        rollouts: Rollouts | ClusterRollouts
        if config.cluster.kind == "ray":
            cluster = _cluster()
            supervisor = cluster.Supervisor(config, plugins.folder, run)
            undo.callback(supervisor.close)
            through_losses(supervisor.start, supervisor.recover)
            learner, engine = cluster.ClusterLearner(supervisor), cluster.ClusterEngine(supervisor)
            rollouts = cluster.ClusterRollouts(supervisor, run)
        else:
            learner = lead(config)
            undo.callback(learner.close)
            engine = make_engine(config, plugins)
            undo.callback(engine.close)
            processors = load_processors(Path(config.model.path))
            rollouts = Rollouts(offer, processors.chat, processors.vocabulary, prompt=config.environment.prompt)

        def measure() -> Canary | None:
            canary = make_canary(config, draw, rollouts, learner)
            if canary is not None and config.train.weights == "lora":
                run.event("canary_measured", gap=canary.measure(engine))
            return canary

        canary = through_losses(measure, supervisor.recover) if supervisor is not None else measure()
        store = CheckpointStore(
            folder / "checkpoints",
            run_folder=folder,
            attempt=run.attempt,
            run_id=identity["run_id"],
            config_hash=config_hash(config),
            config=config.model_dump(mode="json"),
            keep=config.checkpoint.keep,
            backend=_backend(config, plugins),
            on_event=lambda name, facts: run.event(name, **facts),
        )
        session = Session(
            config=config,
            plugins=plugins,
            run=run,
            offer=offer,
            tasks=TaskSource(draw, config.run.seed, revisit=config.tasks.revisit),
            fixed=fixed,
            base=base,
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
            trackers={
                name: plugins.create("tracker", name, {"folder": str(folder), "run_id": identity["run_id"], **options})
                for name, options in config.trackers.items()
            },
            run_id=identity["run_id"],
            stop=stop,
            supervisor=supervisor,
            canary=canary,
        )
        undo.pop_all()  # the session closes them
    return session


def clear_leftovers(run: RunFolder) -> None:
    """Clear what earlier attempts left half-written, so that one of them that still lives can publish none of it."""
    for folder in (run.path, *(run.path / name for name in ("sync", "adapters", "eval"))):
        if folder.is_dir() and (gone := sweep(folder, run.attempt)):
            run.event("leftovers_cleared", folder=folder.name, names=gone)


def play_settings(config: Config) -> RolloutSettings:
    """Return how turns are asked for in training."""
    history = None if config.rollout.history == "full" else config.rollout.history
    return RolloutSettings(history, config.rollout.max_new_tokens, config.rollout.temperature)


def _cluster() -> ModuleType:
    try:
        from grpo_runner import cluster  # late: ray is an extra
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("cluster.kind = 'ray' needs Ray: pip install 'grpo-runner[ray]'") from error
    return cluster


def make_canary(
    config: Config,
    draw: Callable[[int], Task],
    rollouts: Rollouts | ClusterRollouts,
    learner: Learner | Team | ClusterLearner,
) -> Canary | None:
    """Return the questions that every publish is checked with, None when the configuration leaves them out."""
    count, verify = config.rollout.canary, config.train.verify
    if not count or verify == 0:
        return None
    tasks = [draw(derive_seed(config.run.seed, "canary", n)) for n in range(count)]
    seeds = [derive_seed(config.run.seed, "canary answer", n) for n in range(count)]
    requests = rollouts.questions(tasks, play_settings(config), seeds, turns=2)
    return Canary(learner.logprobs, requests, None if isinstance(verify, str) else verify)


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


def _backend(config: Config, plugins: Plugins) -> CheckpointBackend | None:
    if config.checkpoint.backend is None:
        return None
    try:
        return plugins.create("checkpoint backend", config.checkpoint.backend, config.checkpoint.backend_options)
    except ValueError as error:
        raise ConfigError(f"checkpoint.backend: {error}") from error
