"""The commands' work: train and report, evaluate, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from grpo_runner import launch
from grpo_runner.config import Config, ConfigError, config_hash
from grpo_runner.evaluate import Outcome, evaluate, outcome
from grpo_runner.identity import versions
from grpo_runner.policy import digest, load_processors
from grpo_runner.report import write_report
from grpo_runner.rollout import Rollouts
from grpo_runner.session import Session, find_environment, fixed_set, make_engine, open_session, play_settings
from grpo_runner.stopping import Stop, Stopped
from grpo_runner.train import train
from vismaze_hooks import EnvironmentOffer, Plugins, Task
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
            first, last = train(session, tell)
            run.summary(summarise(session, first, last))
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
            "weights": digest(session.policy, session.learner.weights()),
        },
        "wall_seconds": {**seconds, "total": round(sum(seconds.values()), 3)},
        "versions": versions(),
        "config": config.model_dump(mode="json"),
    }


def run_evaluation(
    run: Path, config: Config, plugins: Plugins, *, set_name: str | None, adapter: Path | None, base: bool, samples: int
) -> list[str]:
    """Evaluate an adapter of a run on a fixed set; return what to print."""
    offer = find_environment(config, plugins)
    name = set_name or config.tasks.evaluation
    tasks = fixed_set(offer, name)
    engine = make_engine(config, plugins)
    try:
        where = Path(config.model.path)
        if not base:
            where = adapter or newest_export(run)
            engine.publish(where, 0)
        processors = load_processors(Path(config.model.path))
        rollouts = Rollouts(offer, processors.chat, processors.vocabulary, prompt=config.environment.prompt)
        rows = evaluate(rollouts, engine, tasks, play_settings(config), samples=samples, run_seed=config.run.seed)
    finally:
        engine.close()
    return [f"{where} on {name}", _line(outcome(rows))]


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
