"""The base model: a folder that is there, or a small model that is built and warm-started on demonstrations."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpo_core import LRSchedule
from grpo_runner.config import WARMUP, Config, ConfigError, WarmStart
from grpo_runner.engine_local import LocalEngine
from grpo_runner.evaluate import evaluate, outcome
from grpo_runner.files import replace_folder, write_json
from grpo_runner.imitation import Imitation
from grpo_runner.ledger import samples_of
from grpo_runner.pictures import FeatureCache
from grpo_runner.policy import Policy, load_processors, model_identity, save_weights
from grpo_runner.rollout import Rollouts, RolloutSettings
from grpo_runner.scoring import Scorer
from grpo_runner.seeds import derive_seed
from vismaze_hooks import EnvironmentOffer, Task
from vismaze_hooks.answers import CLOSE, OPEN
from vismaze_hooks.text import make_text_environment

RECIPE = "vismaze_recipe.json"
Tell = Callable[[str], None]


def ensure_base(config: Config, offer: EnvironmentOffer, tell: Tell) -> dict[str, Any]:
    """Return the base model's record {identity, recipe, …}; build and warm-start it if the configuration says how.

    A folder that was made by the same recipe is used again, so that all run seeds start from one base.

    Raises:
        ConfigError: no such folder and no recipe, or the folder was made by another recipe.
    """
    folder = Path(config.model.path)
    if config.model.tiny is None:
        if not folder.is_dir():
            raise ConfigError(
                f"model.path: no folder {folder}. Name a Hugging Face folder, or set model.tiny to build a small one"
            )
        load_processors(folder)
        return {"identity": model_identity(folder), "recipe": None}
    recipe = _recipe(config)
    record = folder / RECIPE
    if record.is_file():
        made: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        if made["recipe"] != recipe:
            differing = sorted(k for k in recipe.keys() | made["recipe"].keys() if recipe.get(k) != made["recipe"].get(k))
            raise ConfigError(
                f"the base model in {folder} was made by another recipe (differs in: {', '.join(differing)}). "
                "Choose another model.path, or remove the folder to build it again"
            )
        tell(f"base model {folder} is there already ({made['identity'][:12]})")
        return made
    if folder.exists():
        raise ConfigError(f"model.path: {folder} exists but holds no model that this project built; choose another path")
    return _make(config, offer, recipe, folder, tell)


def _recipe(config: Config) -> dict[str, Any]:
    """Everything that the base depends on, as JSON gives it back; nothing of the run that starts from it, rewards included."""
    environment = config.environment.model_dump(mode="json")
    environment["options"].pop("reward", None)
    recipe = {
        "tiny": asdict(_shape(config)),
        "environment": environment,
        "tuning": config.tasks.tuning,
        "history": config.rollout.history,
        "max_new_tokens": config.rollout.max_new_tokens,
        "warm_start": config.warm_start.model_dump(mode="json") if config.warm_start else None,
    }
    return json.loads(json.dumps(recipe))


def _shape(config: Config) -> Any:
    from grpo_runner.tiny_model import SHAPES, TinyShape  # late: `tokenizers` is needed only to build

    tiny = config.model.tiny
    if isinstance(tiny, str):
        if tiny not in SHAPES:
            raise ConfigError(f"model.tiny: unknown shape {tiny!r}; known: {', '.join(SHAPES)}")
        return SHAPES[tiny]
    known = {f.name for f in fields(TinyShape)}
    unknown = sorted(set(tiny or {}) - known)
    if unknown:
        raise ConfigError(f"model.tiny: unknown number {unknown[0]!r}; known: {', '.join(sorted(known))}")
    numbers: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in (tiny or {}).items()}
    return TinyShape(**numbers)


def _make(config: Config, offer: EnvironmentOffer, recipe: dict[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    from grpo_runner.tiny_model import build_tiny_model

    texts = _texts(config, offer)
    words = [OPEN, CLOSE, *offer.words]
    with replace_folder(folder) as temporary:
        seed = config.warm_start.seed if config.warm_start else 0
        raw = temporary / "raw"
        build_tiny_model(raw, shape=_shape(config), seed=seed, words=words, texts=texts, positions=_positions(config, offer))
        tell(f"built a Qwen3-VL of {_parameters(raw):,} parameters")
        history = warm_start(config, offer, raw, config.warm_start, tell) if config.warm_start else []
        for file in raw.iterdir():
            file.rename(temporary / file.name)
        raw.rmdir()
        record: dict[str, Any] = {"identity": model_identity(temporary), "recipe": recipe, "warm_start": history}
        write_json(temporary / RECIPE, record)
    tell(f"base model {folder} ({record['identity'][:12]})")
    return record


def _texts(config: Config, offer: EnvironmentOffer, episodes: int = 16) -> list[str]:
    """What the environment says, from a few scripted episodes: the tokenizer's merges are learnt from it."""
    env = make_text_environment(offer, prompt=config.environment.prompt)
    texts = ["user\n", "assistant\n"] * episodes
    for number, task in enumerate(_draw(offer, {}, 0, episodes)):
        _, info = env.start(task)
        texts.append(f"{info['prompt']}\n")
        for turn in range(task.move_limit):
            answer = f"{OPEN}{offer.words[(number + turn) % len(offer.words)]}{CLOSE}" if turn % 5 else "?"
            _, _, terminated, truncated, info = env.step(answer)
            texts.append(info["feedback"])
            if terminated or truncated:
                break
    return texts


def _positions(config: Config, offer: EnvironmentOffer) -> int:
    """Return the patches along the longer side of a picture: the learned grid of positions then needs no resampling."""
    picture, _ = make_text_environment(offer).start(_draw(offer, {}, 0, 1)[0])
    height, width = np.asarray(picture).shape[:2]
    return max(2, -(-height // _shape(config).patch_size), -(-width // _shape(config).patch_size))


def _draw(offer: EnvironmentOffer, options: dict[str, Any], seed: int, count: int, at: int = 0) -> list[Task]:
    if offer.stream is None:
        raise ConfigError(f"environment {offer.id} offers no training stream")
    draw = offer.stream(**options)
    return [draw(derive_seed(seed, "demonstration", at, n)) for n in range(count)]


def warm_start(config: Config, offer: EnvironmentOffer, folder: Path, settings: WarmStart, tell: Tell) -> list[dict[str, Any]]:
    """Imitate the solver in the folder's model until the tuning set is solved to the target; keeps the nearest state.

    Without a target it imitates for `max_steps` steps, its learning rate falling to 0, and keeps the last state.

    Returns:
        The looks at the tuning set: [{"step", "turns", "loss", "rate"}, …].

    Raises:
        ConfigError: the target was not reached within max_steps.
    """
    assert config.tasks.tuning is not None
    processors = load_processors(folder)
    policy = Policy(folder, lora=None, seed=0)
    scorer = Scorer(policy, processors, features=FeatureCache(), token_budget=config.train.token_budget, temperature=1.0)
    imitation = Imitation(policy, scorer, weight_decay=0.01, max_norm=1.0)
    engine = LocalEngine(model=str(folder), keep_history=config.rollout.history == "full")
    rollouts = Rollouts(offer, processors.chat, processors.vocabulary, prompt=config.environment.prompt)
    history_limit = None if config.rollout.history == "full" else config.rollout.history
    play = RolloutSettings(history_limit, config.rollout.max_new_tokens, config.rollout.temperature)
    tuning = offer.fixed_sets[config.tasks.tuning]()
    looks: list[dict[str, Any]] = []
    turns, before = 0, None
    kind, target = ("cosine", math.inf) if settings.target is None else ("constant", settings.target)
    schedule = LRSchedule(settings.lr, kind, total_steps=settings.max_steps, warmup_steps=WARMUP)
    for step in range(settings.max_steps):
        tasks = _draw(offer, settings.stream, settings.seed, settings.batch, step)
        episodes = rollouts.demonstrate(
            tasks, play, turns=settings.turns, noise=settings.noise, habits=settings.habits, seed=settings.seed
        )
        samples = [s for number, episode in enumerate(episodes) for s in samples_of(number, episode)]
        turns += sum(e.moves for e in episodes)
        metrics = imitation.step(samples, lr=schedule.lr_at(step))
        ends = settings.target is None and step + 1 == settings.max_steps
        if (step + 1) % settings.check_every and not ends:
            continue
        with replace_folder(folder.with_name("warm")) as temporary:
            save_weights(policy, temporary)
        engine.publish(folder.with_name("warm"), step + 1)
        rate = outcome(evaluate(rollouts, engine, tuning, play, samples=0, run_seed=0)).rate
        looks.append({"step": step + 1, "turns": turns, "loss": metrics["sft/loss"], "rate": rate})
        tell(
            f"warm start: step {step + 1}, {turns:,} turns, loss {metrics['sft/loss']:.3f}, solves {rate:.1%} of the tuning set"
        )
        if ends or rate >= target:
            if before is not None and target - looks[-2]["rate"] < rate - target:
                _restore(policy, before)
                looks[-2]["chosen"] = True
            else:
                looks[-1]["chosen"] = True
            policy.core.save_pretrained(folder)
            _remove(folder.with_name("warm"))
            return looks
        before = _copy(policy)
    raise ConfigError(
        f"the warm start solved at most {max(look['rate'] for look in looks):.1%} of {config.tasks.tuning} in "
        f"{settings.max_steps} steps; the target is {target:.1%}. Raise warm_start.max_steps or change its stream"
    )


def _copy(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.trained.items()}


@torch.no_grad()
def _restore(policy: Policy, weights: dict[str, torch.Tensor]) -> None:
    for name, parameter in policy.trained.items():
        parameter.copy_(weights[name])


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _parameters(folder: Path) -> int:
    from safetensors import safe_open

    total = 0
    with safe_open(folder / "model.safetensors", "pt") as file:
        for key in file.keys():  # noqa: SIM118 — safe_open is no mapping
            total += file.get_tensor(key).numel()
    return total
