"""The loop. One way through; only weights come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from grpo_core import group_advantages
from grpo_runner.cards import model_card
from grpo_runner.checkpoints import is_committed, ring
from grpo_runner.evaluate import Outcome, check_disjoint, evaluate, outcome, read_evaluation, write_evaluation
from grpo_runner.learner import Batch, LossSettings
from grpo_runner.ledger import Sample, Trajectory, samples_of
from grpo_runner.policy import digest
from grpo_runner.publishing import lent, publish_weights
from grpo_runner.rollout import training_seed
from grpo_runner.seeds import derive_seed
from grpo_runner.session import Session
from vismaze_hooks import CountingEngine, Engine, Task

Tell = Callable[[str], None]


def train(session: Session, tell: Tell) -> tuple[Outcome, Outcome]:
    """Run from where the run folder stands to the last step. Returns the first and the last evaluation.

    The checkpoint comes last in a step: once it stands, nothing of the step is left to do.

    Raises:
        Stopped: a signal came; what `session.leave()` then saves goes on with the same numbers.
    """
    config, run = session.config, session.run
    done = session.resume()
    publish(session, done)
    if done == 0:
        with session.stop.abandons():
            evaluate_step(session, 0, tell)
    for step in range(done, config.run.steps):
        with session.stop.abandons(), run.phase("rollout"):
            tasks = draw_tasks(session, step)
            trajectories = play(session, step, tasks)
        with lent(session.engine, run.phase), run.phase("update"):
            metrics = update(session, step, trajectories)
        with run.phase("publish"):
            metrics |= publish(session, step + 1)
        last = step + 1 == config.run.steps
        if last or (step + 1) % config.evaluation.every == 0:
            evaluate_step(session, step + 1, tell)
        counts = {"checkpoint/failed": float(session.store.failed), "tasks/revisited": float(session.tasks.revisited)}
        record = run.metrics(step + 1, metrics | counts)
        if last or (config.export.every and (step + 1) % config.export.every == 0):
            export(session, step + 1)
        session.tasks.learn(trajectories)
        session.finished_step(step + 1, record)
        if last or (step + 1) % config.checkpoint.every == 0:
            with run.phase("checkpoint"):
                session.checkpoint()
        tell(progress(step + 1, config.run.steps, record))
    session.wait()
    return session.evaluations[0], session.evaluations[config.run.steps]


def draw_tasks(session: Session, step: int) -> list[Task]:
    """Return the tasks of one step: a function of the run seed, the step and the outcomes before it."""
    tasks = session.tasks.draw(step, session.config.rollout.tasks)
    check_disjoint(session.fixed, tasks, session.config.tasks.evaluation)
    return tasks


def play(session: Session, step: int, tasks: list[Task]) -> list[Trajectory]:
    """Sample every task's group. A task drawn twice in one step is two groups' worth of samples of one group.

    Raises:
        RuntimeError: every single episode failed.
    """
    count: Counter[str] = Counter()
    pairs = []
    for task in tasks:
        for _ in range(session.config.rollout.samples):
            pairs.append((task, count[task.uid]))
            count[task.uid] += 1
    seeds = training_seed(session.config.run.seed, step)
    trajectories = session.rollouts.run(session.engine, pairs, session.play, seeds)
    for error, times in Counter(t.error for t in trajectories if t.error is not None).items():
        session.run.event("episodes_failed", step=step + 1, episodes=times, error=error[-2000:])
    if all(t.error is not None for t in trajectories):
        raise RuntimeError(
            f"all {len(trajectories)} episodes of step {step + 1} failed, the first with {trajectories[0].error}"
        )
    return trajectories


def update(session: Session, step: int, trajectories: list[Trajectory]) -> dict[str, float]:
    """Advantages by task, then one optimizer step for each mini-batch of tasks."""
    config = session.config
    rewards = [t.reward for t in trajectories]
    per_trajectory = group_advantages(
        rewards, [t.task.uid for t in trajectories], estimator=config.loss.estimator, scale=config.loss.scale
    )
    samples = [s for number, trajectory in enumerate(trajectories) for s in samples_of(number, trajectory)]
    owner = torch.tensor([s.trajectory for s in samples])
    kept = torch.tensor([r is not None for r in rewards])[owner]
    loss = LossSettings(config.loss.kind, config.loss.clip_low, config.loss.clip_high, config.loss.kl, config.loss.entropy)
    metrics = session.learner.policy_step(
        Batch(samples, per_trajectory[owner], kept),
        minibatches(samples, trajectories, config.train.minibatches, derive_seed(config.run.seed, "minibatch", step)),
        loss=loss,
        lr=lambda number: session.schedule.lr_at(step * config.train.minibatches + number),
        verify=None if isinstance(config.train.verify, str) else config.train.verify or None,
    )
    return metrics | describe(trajectories, session.version) | engine_counts(session.engine)


def minibatches(samples: list[Sample], trajectories: list[Trajectory], count: int, seed: int) -> list[list[int]]:
    """Return sample numbers by mini-batch; a task's whole group stays in one, since its pictures are shared."""
    uids = list(dict.fromkeys(t.task.uid for t in trajectories))
    uids.sort(key=lambda uid: derive_seed(seed, "order", uid))
    place = {uid: n * count // len(uids) for n, uid in enumerate(uids)}
    parts: list[list[int]] = [[] for _ in range(count)]
    for number, sample in enumerate(samples):
        parts[place[trajectories[sample.trajectory].task.uid]].append(number)
    return [part for part in parts if part]


def describe(trajectories: list[Trajectory], version: int) -> dict[str, float]:
    """Return the numbers of one step's rollouts."""
    groups: dict[str, list[float]] = {}
    for trajectory in trajectories:
        if trajectory.reward is not None:
            groups.setdefault(trajectory.task.uid, []).append(trajectory.reward)
    equal = [g for g in groups.values() if max(g) == min(g)]
    turns = [t for trajectory in trajectories for t in trajectory.turns]
    return {
        "reward/mean": fmean(r for g in groups.values() for r in g) if groups else 0.0,
        "reward/solved": fmean(t.success for t in trajectories),
        "rollout/failed": float(sum(t.error is not None for t in trajectories)),
        "reward/excluded": float(sum(t.reward is None for t in trajectories)),
        "groups/zero_variance": len(equal) / max(len(groups), 1),
        "groups/none_solved": sum(g[0] <= 0 for g in equal) / max(len(groups), 1),
        "groups/all_solved": sum(g[0] > 0 for g in equal) / max(len(groups), 1),
        "rollout/moves": fmean(t.moves for t in trajectories),
        "rollout/invalid": fmean([not t.readable for t in turns] or [0.0]),
        "rollout/staleness_max": float(max((version - t.weights_version for t in turns), default=0)),
    }


def engine_counts(engine: Engine) -> dict[str, float]:
    """Return what an engine counts, as metrics."""
    found = engine.counts() if isinstance(engine, CountingEngine) else {}
    return {f"engine/{name.replace(' ', '_')}": float(count) for name, count in found.items()}


def publish(session: Session, step: int) -> dict[str, float]:
    """Write the weights to `sync/`, load them into the engine, prove that they are there. Returns metrics."""
    name = f"step_{step:08d}-{session.run.attempt:04d}-{session.entries:03d}"
    parent = session.run.path / "sync"
    weights = session.learner.weights()
    if not (parent / name).exists():
        session.commit(parent, name, lambda f: session.learner.save(f, weights), {"step": step})
    metrics = publish_weights(
        session.engine, session.canary, parent / name, step, adapter=weights if session.config.train.weights == "lora" else None
    )
    session.version = step
    ring(parent, 3)
    return metrics


def evaluate_step(session: Session, step: int, tell: Tell) -> None:
    """Evaluate the current weights on the fixed set, unless the same weights have been evaluated for this step already."""
    weights = digest(session.learner.weights())
    found = read_evaluation(session.run.evaluation(step))
    if found is None or found[0].get("weights") != weights or len(found[1]) != found[0]["episodes"]:
        with session.run.phase("evaluate"):
            samples, seed = session.config.evaluation.samples, session.config.run.seed
            rows = evaluate(session.rollouts, session.engine, session.fixed, session.play, samples=samples, run_seed=seed)
        header = {"step": step, "set": session.config.tasks.evaluation, "weights": weights, "episodes": len(rows)}
        write_evaluation(session.run.evaluation(step), header, rows)
        found = header, rows
        result = outcome(rows)
        facts = {"solved": result.solved, "total": result.total, "sampled_rate": result.sampled_rate}
        session.run.event("evaluated", step=step, **facts)
    result = session.evaluations[step] = outcome(found[1])
    low, high = result.interval
    sampled = f", sampled {result.sampled_rate:.1%}" if result.sampled_rate is not None else ""
    tell(f"evaluation at step {step}: {result.solved} of {result.total} solved ({low:.1%} to {high:.1%}){sampled}")


def export(session: Session, step: int) -> None:
    """Write a plain PEFT folder (or model folder) of the current weights to `adapters/`, with a model card."""
    name = f"step_{step:08d}"
    parent = session.run.path / "adapters"
    weights = session.learner.weights()
    facts = {"step": step, "base_model": session.base["identity"], "weights": digest(weights)}
    if is_committed(parent / name, facts):
        return

    def write(folder: Path) -> None:
        session.learner.save(folder, weights)
        (folder / "README.md").write_text(card(session, step, facts["weights"]), encoding="utf-8")

    session.commit(parent, name, write, facts)
    session.run.event("adapter_exported", step=step, folder=f"adapters/{name}")


def card(session: Session, step: int, weights: str) -> str:
    """Return the model card of an export."""
    config = session.config
    return model_card(
        name=session.run.path.name,
        base=config.model.path,
        base_identity=session.base["identity"],
        weights=weights,
        adapter=config.train.weights == "lora",
        step=step,
        set_name=config.tasks.evaluation,
        history=session.evaluations,
    )


def progress(step: int, steps: int, record: dict[str, Any]) -> str:
    """Return one line about a finished step."""
    seconds = sum(record["seconds"].values())
    return (
        f"step {step}/{steps}  solved {record['reward/solved']:.3f}  mixed groups {1 - record['groups/zero_variance']:.2f}  "
        f"moves {record['rollout/moves']:.1f}  entropy {record.get('policy/entropy', 0.0):.3f}  "
        f"grad {record['optim/grad_norm']:.2f}  {seconds:.1f} s"
    )
