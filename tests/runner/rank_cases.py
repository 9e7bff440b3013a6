"""What `test_ranks` runs in processes of its own: each number of ranks is forked from one process that has only imported.

rank_cases.py gradients MODEL FOLDER     the gradient of recorded trajectories, on 1, 2, 3 and 4 ranks
rank_cases.py unequal MODEL FOLDER       log-probs and steps where every rank has another number of micro-batches
rank_cases.py elastic MODEL FOLDER       six steps on 1 rank; and on 2, then 1, then 3 ranks, through checkpoints
rank_cases.py regroup MODEL FOLDER     a state saved by three ranks, and again after each has become another rank
rank_cases.py failing MODEL FOLDER       three saves on 2 ranks, the second of which fails on rank 1
"""

from __future__ import annotations

import itertools
import os
import pickle
import resource
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.distributed as dist
import transformers
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from grpo_core import group_advantages
from grpo_runner import scoring
from grpo_runner.attempts import next_attempt
from grpo_runner.checkpoints import CheckpointStore
from grpo_runner.config import Config, config_hash, parse
from grpo_runner.engine_local import LocalEngine
from grpo_runner.launch import join
from grpo_runner.learner import Batch, Learner, LossSettings
from grpo_runner.ledger import samples_of
from grpo_runner.policy import load_processors, save_weights
from grpo_runner.ranks import Team, lora_of, make_learner, serve
from grpo_runner.rollout import Rollouts, RolloutSettings, training_seed
from grpo_runner.world import World
from vismaze_hooks import load_plugins

LOSS = LossSettings("ppo", 0.2, 0.28, 0.05, 0.01)  # KL and entropy too: what the reference's forward passes do among ranks
STEPS = 6
LR = 1e-4  # usual for adapters; what differs scales with it, since Adam makes steps of one size from gradients of any


def config_of(model: str, *, train: dict[str, Any], frozen_base: str = "replicate", budget: int = 16_384) -> Config:
    table = {
        "run": {"folder": "unused", "steps": STEPS},
        "model": {"path": model},
        "environment": {"id": "VisMaze-v0", "options": {"size": 5, "cell_px": 8}},
        "tasks": {"evaluation": "vismaze-5x5"},
        "rollout": {"tasks": 2, "samples": 3},
        "train": {"lr": LR, "rank": 4, "alpha": 8.0, "token_budget": budget, **train},
        "learner": {"frozen_base": frozen_base},
        "evaluation": {"every": 2},
    }
    return parse(table, "test")


WEIGHTS = {"language": {"targets": "language"}, "all-linear": {"targets": "all-linear"}, "full": {"weights": "full"}}


def record(model: str, folder: Path) -> None:
    """Write, for each kind of trained weights, a state and the batches that the policy of this state sampled."""
    offer = load_plugins().create("environment", "VisMaze-v0", {"size": 5, "cell_px": 8})
    processors = load_processors(Path(model))
    for name, train in WEIGHTS.items():
        config = config_of(model, train=train)
        learner = make_learner(config, None)
        with torch.no_grad():  # an adapter that does something
            for number, parameter in enumerate(learner.policy.trained.values()):
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
        (folder / name).mkdir(parents=True)
        learner.snapshot()(folder / name)
        save_weights(learner.policy, folder / f"{name}-weights")
        lora = lora_of(config)
        engine = LocalEngine(model=model, lora=None if lora is None else vars(lora))
        engine.publish(folder / f"{name}-weights", 0)
        rollouts = Rollouts(offer, processors.chat, processors.vocabulary, prompt="Go to the goal.")
        draw = offer.stream(shortest=(2, 2))
        batches = []
        for step in range(STEPS if name == "language" else 1):
            pairs = [(draw(10 * step + task), sample) for task in range(2) for sample in range(3)]
            played = rollouts.run(engine, pairs, RolloutSettings(1, 5, 1.0), training_seed(7, step))
            rewards = [float(n % 2) for n in range(len(played))]
            advantages = group_advantages(rewards, [t.task.uid for t in played])
            samples = [s for number, trajectory in enumerate(played) for s in samples_of(number, trajectory)]
            owner = torch.tensor([s.trajectory for s in samples])
            batches.append(Batch(samples, advantages[owner], torch.ones(len(samples), dtype=torch.bool)))
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(batches))


def batches_of(folder: Path, name: str) -> list[Batch]:
    return pickle.loads((folder / f"{name}.pickle").read_bytes())


def gradient_cases(ranks: int) -> list[tuple[str, str, int]]:
    """Return (trained weights, frozen base, micro-batches of a rank)."""
    if ranks == 4:
        return [("language", "hybrid", 2)]
    cases = [("language", "replicate", parts) for parts in (1, 2, 4)]
    cases += [("language", "shard", 2), ("all-linear", "replicate", 2), ("all-linear", "shard", 1), ("full", "shard", 2)]
    return cases if ranks > 1 else [case for case in cases if case[1] == "replicate"] + [("full", "replicate", 2)]


def gradients(world: World | None, model: str, folder: Path) -> None:
    """Write the whole gradient of each case, as rank 0 sees it, with the norm that clipping would use."""
    scoring.PASS_TOKENS = 1 << 30  # the budgets alone say how many there are
    ranks = 1 if world is None else world.size
    for name, frozen_base, parts in gradient_cases(ranks):
        batch = batches_of(folder, name)[0]
        entries = make_learner(config_of(model, train=WEIGHTS[name]), None).scorer.entries(batch.samples)
        longest = max(len(e.row.ids) for e in entries)
        budget = longest * max(1, -(-len(entries) // (ranks * parts)))
        learner = make_learner(config_of(model, train=WEIGHTS[name], frozen_base=frozen_base, budget=budget), world)
        learner.load(folder / name)
        plan = learner.plan(batch, range(len(batch.samples)), LOSS)
        learner.gradient(plan, LOSS, None)
        found = {}
        for key, parameter in learner.policy.trained.items():
            if parameter.grad is not None:
                whole = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
                found[key] = whole.clone()  # the step clips in place
        norm = learner._step(0.0).grad_norm
        if world is None or world.rank == 0:
            facts = {"norm": str(norm), "passes": str(len(learner.scorer._batches(plan.spoken.entries)))}
            save_file(found, folder / f"gradient-{ranks}-{name}-{frozen_base}-{parts}.safetensors", facts)


def unequal(world: World | None, model: str, folder: Path) -> None:
    """Give the ranks 0, 1, 2, … and ever more micro-batches to score; then let `Learner` share out steps of unequal length."""
    assert world is not None
    batch = batches_of(folder, "all-linear")[0]
    scorer = make_learner(config_of(model, train=WEIGHTS["all-linear"]), None).scorer
    longest = max(len(entry.row.ids) for entry in scorer.entries(batch.samples))  # as a budget: one micro-batch a sequence
    for frozen_base in ("replicate", "shard"):
        config = config_of(model, train=WEIGHTS["all-linear"], frozen_base=frozen_base, budget=longest)
        learner = make_learner(config, world)
        learner.load(folder / "all-linear")
        entries = learner.scorer.entries(batch.samples)
        whole = learner.logprobs(batch.samples)
        for order in (1, -1):
            count = 2 * [*range(world.size)][::order][world.rank]
            scores = learner.scorer.logprobs(entries[:count], filler=entries[0], group=world.control)
            assert len(scores) == count <= len(entries)
            for entry, score in zip(entries, scores, strict=False):
                assert torch.allclose(score, whole[entry.uses[0]], atol=1e-6)
        groups = [list(range(1)), list(range(1, len(batch.samples)))]  # the first leaves all ranks but one without a sequence
        metrics = learner.policy_step(batch, groups, loss=LOSS, lr=lambda _: LR, verify=None)
        assert metrics["optim/skipped_steps"] == 0


def store_of(run: Path, keep: int) -> CheckpointStore:
    run.mkdir(exist_ok=True)
    config = config_of("unused", train=WEIGHTS["language"])
    return CheckpointStore(
        run / "checkpoints",
        run_folder=run,
        attempt=next_attempt(run),
        run_id=run.name,
        config_hash=config_hash(config),
        config={},
        keep=keep,
        on_event=lambda event, fields: print(event, fields, flush=True),
    )


def steps(learner: Learner | Team, folder: Path, name: str, end: int) -> None:
    """Go on from the newest checkpoint, or from the recorded state, to a step; every step is saved while the next one runs."""
    run = folder / name
    store = store_of(run, 2)
    found = store.load(lambda place, meta: learner.load(place))
    if found is None:
        learner.load(folder / "language")
    batches = batches_of(folder, "language")
    for step in range(found[1].step if found else 0, end):
        groups = [list(range(0, len(batches[step].samples), 2)), list(range(1, len(batches[step].samples), 2))]
        metrics = learner.policy_step(batches[step], groups, loss=LOSS, lr=lambda _: LR, verify=None)
        assert metrics["optim/skipped_steps"] == 0
        store.wait()
        store.save_async(step + 1, learner.snapshot(), {"ranks": learner.ranks})
    store.wait()
    assert store.newest == end and not store.failed
    save_file({n: w.contiguous() for n, w in learner.weights().items()}, run / "weights.safetensors")
    learner.save(run / "adapter", learner.weights())


def elastic(world: World | None, model: str, folder: Path, name: str, end: int) -> None:
    learner = make_learner(config_of(model, train=WEIGHTS["language"], frozen_base="shard"), world)
    if world is None:
        steps(learner, folder, name, end)
    elif world.rank:
        serve(learner, world)
    else:
        team = Team(learner, world)
        steps(team, folder, name, end)
        team.close()


def failing(world: World | None, model: str, folder: Path) -> None:
    """Save three times; a file of rank 1 may not grow during the second. After it a copy is made and never written."""
    assert world is not None
    learner = make_learner(config_of(model, train=WEIGHTS["language"]), world)
    if world.rank:
        copy, copies = learner.snapshot, itertools.count(1)

        def snapshot() -> Callable[[Path], None]:
            write, number = copy(), next(copies)
            return (lambda place: limited(write, place)) if number == 2 else write

        learner.snapshot = snapshot  # type: ignore[method-assign]
        serve(learner, world)
        return
    team, store = Team(learner, world), store_of(folder / "failing", 3)
    team.load(folder / "language")
    for step in (1, 2, 3):
        store.save_async(step, team.snapshot(), {})
        store.wait()
        if step == 2:
            assert (store.failed, store.newest) == (1, 1)
            team.snapshot()
    assert (store.failed, store.newest) == (1, 3)
    store.load(lambda place, meta: team.load(place))
    team.close()


def regroup(world: World | None, model: str, folder: Path, port: int) -> None:
    """Save the recorded state as one rank, and again as another rank of a new group of the same size."""
    assert world is not None
    for generation in (0, 1):
        learner = make_learner(config_of(model, train=WEIGHTS["language"]), world)
        learner.load(folder / "language")
        place = folder / f"group-{generation}"
        place.mkdir(exist_ok=True)
        learner.snapshot()(place)
        if generation == 0:
            dist.destroy_process_group()
            store = dist.TCPStore("127.0.0.1", port, world.size, is_master=False)
            world = join((world.rank + 1) % world.size, world.size, world.size, store, generation=1)


def same_as_recorded(world: World | None, model: str, folder: Path) -> None:
    """Read on one rank what `regroup` saved."""
    learner = make_learner(config_of(model, train=WEIGHTS["language"]), world)
    learner.load(folder / "language")
    recorded = {name: weight.clone() for name, weight in learner.weights().items()}
    for generation in (0, 1):
        learner.load(folder / f"group-{generation}")
        assert all(torch.equal(recorded[name], weight) for name, weight in learner.weights().items()), generation


def limited(write: Callable[[Path], None], place: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        write(place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def ranked(size: int, work: Callable[..., None], *arguments: Any) -> None:
    """Do something on a number of ranks, each a fork of this process."""
    store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False) if size > 1 else None
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            world = None
            if store is not None:
                mine = dist.TCPStore("127.0.0.1", store.port, size, is_master=False)
                world = join(rank, size, 2 if size == 4 else size, mine)
            try:
                work(world, *arguments)
                if world is not None and dist.is_initialized():
                    dist.destroy_process_group()
            except BaseException:  # noqa: BLE001 — a test process ends here, whatever it was
                traceback.print_exc()
                os._exit(1)  # at once: a fork that unwinds further waits for threads that it does not have
            os._exit(0)
        children.append(child)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert ended == [0] * size, f"{work.__name__} on {size} ranks ended with {ended}"


def main(what: str, model: str, folder: Path) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    ranked(1, lambda world: record(model, folder))
    if what == "gradients":
        for size in (1, 2, 3, 4):
            ranked(size, gradients, model, folder)
    elif what == "unequal":
        for size in (2, 3):
            ranked(size, unequal, model, folder)
    elif what == "failing":
        ranked(2, failing, model, folder)
    elif what == "regroup":
        second = dist.TCPStore("127.0.0.1", 0, 3, is_master=True, wait_for_workers=False)
        ranked(3, regroup, model, folder, second.port)
        ranked(1, same_as_recorded, model, folder)
    else:
        ranked(1, elastic, model, folder, "whole", STEPS)
        for size, end in ((2, 2), (1, 4), (3, STEPS)):
            ranked(size, elastic, model, folder, "parts", end)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
