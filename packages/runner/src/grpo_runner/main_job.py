"""The commands' work: train and report, evaluate, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from grpo_runner import launch
from grpo_runner.adapters import AdapterError, check_fits, linear_places, read_adapter
from grpo_runner.config import Config, ConfigError, config_hash
from grpo_runner.evaluate import Outcome, evaluate, outcome, resumable
from grpo_runner.identity import versions
from grpo_runner.interruptions import RankLost, Resize, through_losses
from grpo_runner.policy import TARGETS, digest, load_processors
from grpo_runner.ranks import lora_of
from grpo_runner.report import write_report
from grpo_runner.rollout import Rollouts
from grpo_runner.session import Session, find_environment, fixed_set, make_engine, open_session, play_settings
from grpo_runner.stopping import Stop, Stopped
from grpo_runner.train import train
from vismaze_hooks import CountingEngine, EnvironmentOffer, Plugins, Task
from vismaze_hooks.text import make_text_environment


def run_training(config: Config, plugins: Plugins, tell: Callable[[str], None]) -> list[str]:
    """Train, write summary and report; return the outcome in three lines (none in a process that torchrun made another rank).

    Raises:
        Stopped: a signal came; the run stands at the end of a step, and that is saved.
    """
    if launch.follows():
        launch.follow(config)
        return []
    with Stop() as stop:
        with stop.abandons():
            session = open_session(config, plugins, tell, stop)
        run = session.run
        run.event("run_started", config_hash=config_hash(config), base_model=session.base["identity"], versions=versions())
        for problem in plugins.emit("vismaze_run_started", config=config.model_dump(mode="json")):
            run.event("listener_failed", **asdict(problem))
        error: BaseException | None = None
        try:
            first, last = train_and_summarise(session, tell)
            with run.phase("report"):
                page = make_report(run.path, config, plugins)
        except Stopped as caught:
            error = caught
            saved = session.leave()
            run.event("run_stopped", signal=str(caught), step=session.step, saved=saved)
            tell(f"{caught} after step {session.step}; the checkpoint of step {saved} stands")
            raise
        except BaseException as caught:
            error = caught
            name = "run_failed" if isinstance(caught, Exception) else "run_interrupted"
            run.event(name, error=f"{type(caught).__name__}: {caught}")
            raise
        finally:
            plugins.emit("vismaze_run_finished", step=session.version, error=error)
            session.close()
    run.event("run_finished", step=config.run.steps, seconds=round(sum(session.seconds().values()), 1))
    return [
        f"start: {_line(first)}",
        f"end:   {_line(last)} after {config.run.steps} steps, {sum(session.seconds().values()):.0f} s",
        f"report: {page}",
    ]


def train_and_summarise(session: Session, tell: Callable[[str], None]) -> tuple[Outcome, Outcome]:
    """Train and write the summary; on a cluster the loop is entered again, from the newest checkpoint, after every loss."""

    def work() -> tuple[Outcome, Outcome]:
        first, last = train(session, tell)
        session.run.summary(summarise(session, first, last))
        return first, last

    def recover(why: RankLost | Resize) -> None:
        assert session.supervisor is not None
        tell(f"{why}; going on from the newest checkpoint" if isinstance(why, RankLost) else "taking the full size again")
        try:
            with session.stop.abandons():
                session.supervisor.recover(why)
        except Stopped:
            session.step = session.store.newest  # what came after it is lost, so there is nothing to save
            raise

    return through_losses(work, recover)


def _line(result: Outcome) -> str:
    low, high = result.interval
    sampled = f", sampled {result.sampled_rate:.1%}" if result.sampled_rate is not None else ""
    return f"{result.solved} of {result.total} solved ({low:.1%} to {high:.1%}){sampled}"


def summarise(session: Session, first: Outcome, last: Outcome) -> dict[str, Any]:
    """Return `summary.json`."""
    config = session.config
    seconds = session.seconds()
    return {
        "eval_start": asdict(first),
        "eval_final": asdict(last),
        "set": {"name": config.tasks.evaluation, "tasks": [t.content_hash for t in session.fixed]},
        "steps": config.run.steps,
        "seeds": {"run": config.run.seed, "warm_start": config.warm_start.seed if config.warm_start else None},
        "hashes": {
            "config": config_hash(config),
            "base_model": session.base["identity"],
            "weights": digest(session.learner.weights()),
        },
        "wall_seconds": {**seconds, "total": round(sum(seconds.values()), 3)},
        "versions": versions(),
        "config": config.model_dump(mode="json"),
    }


def run_evaluation(
    run: Path,
    config: Config,
    plugins: Plugins,
    *,
    set_name: str | None,
    adapter: Path | None,
    base: bool,
    samples: int,
    out: Path | None = None,
) -> list[str]:
    """Evaluate an adapter of a run, or whatever a server serves, on a fixed set; return what to print.

    Args:
        out: where each episode is written as soon as it is over; an evaluation that was cut off goes on from there.
    """
    offer = find_environment(config, plugins)
    name = set_name or config.tasks.evaluation
    tasks = fixed_set(offer, name)
    where: Path | str = Path(config.model.path)
    if config.rollout.engine == "openai":
        where = f"{config.rollout.engine_options['served_model']} at {config.rollout.engine_options['base_url']}"
    elif not base:
        where = adapter or newest_export(run)
        _check_adapter(config, where)
    engine = make_engine(config, plugins)
    try:
        if isinstance(where, Path) and not base:
            engine.publish(where, 0)
        processors = load_processors(Path(config.model.path))
        rollouts = Rollouts(offer, processors.chat, processors.vocabulary, prompt=config.environment.prompt)
        done: list[dict[str, Any]] = []
        keep = None
        if out is not None:
            header = {"evaluated": str(where), "set": name, "tasks": [t.content_hash for t in tasks], "seed": config.run.seed}
            done, keep = resumable(out, header)
        play, seed = play_settings(config), config.run.seed
        rows = evaluate(rollouts, engine, tasks, play, samples=samples, run_seed=seed, done=done, keep=keep)
    finally:
        engine.close()
    lines = [f"{where} on {name}", _line(outcome(rows))]
    if done:
        lines.append(f"{len(done)} of {len(rows)} episodes were played before")
    if isinstance(engine, CountingEngine):
        lines.append(", ".join(f"{count} {name}" for name, count in engine.counts().items()))
    return lines


def _check_adapter(config: Config, folder: Path) -> None:
    """
    Raises:
        ConfigError: the adapter is damaged, or not for the run's base model and targets.
    """
    lora = lora_of(config)
    if lora is not None:
        try:
            check_fits(
                read_adapter(folder), linear_places(Path(config.model.path), TARGETS.get(lora.targets, lora.targets)), folder
            )
        except AdapterError as error:
            raise ConfigError(f"{error}. Pass another --adapter, or the run that it belongs to") from error


def newest_export(run: Path) -> Path:
    """Return the newest folder below `adapters/`.

    Raises:
        ConfigError: nothing was exported yet.
    """
    found = sorted((run / "adapters").glob("step_*")) if (run / "adapters").is_dir() else []
    if not found:
        raise ConfigError(f"{run} holds no adapter export yet; finish the run, set export.every, or pass --adapter or --base")
    return found[-1]


def make_report(run: Path, config: Config, plugins: Plugins) -> Path:
    """Write `report.html` of a run folder."""
    offer = find_environment(config, plugins)
    tasks = {t.uid: t for t in fixed_set(offer, config.tasks.evaluation)}
    return write_report(run, title=run.name, replay=lambda uid, answers: replay(offer, tasks[uid], answers))


def replay(offer: EnvironmentOffer, task: Task, answers: Sequence[str]) -> list[np.ndarray]:
    """Return the pictures of an episode: the first, and one after each answer."""
    env = make_text_environment(offer)
    frames = [env.start(task)[0]]
    frames.extend(env.step(answer)[0] for answer in answers)
    return [np.asarray(f) for f in frames]
