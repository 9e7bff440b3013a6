"""The same multi-turn rollout by the engines local and vllm and by Hugging Face `generate`, in one run.

    PYTHONPATH=tests/vllm/support .venv-vllm/bin/python benchmarks/engines/run.py

Writes benchmarks/results/engines.json. The engines take turns; the best of the rounds counts. What is compared is the work of a
rollout: all turns of a group of episodes with the full history, each turn one more picture in the prompt. Greedy play of a base
model without training goes to the move limit, so that all three play equally long episodes.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from small import GREEDY, LORA, OPTIONS, exported, random_policy, small_model

from grpo_runner.engine_local import LocalEngine
from grpo_runner.engine_vllm import VllmEngine
from grpo_runner.ledger import Trajectory
from grpo_runner.policy import Policy, RowBuilder, collate, load_processors
from grpo_runner.rollout import Rollouts, training_seed
from grpo_runner.vllm_options import check_installed
from vismaze_hooks import Completion, Engine, Request, Task, load_plugins

RESULT = Path(__file__).parents[1] / "results" / "engines.json"


class HuggingFace:
    """`generate` on each turn's whole prompt, all running episodes as one left-padded batch: what a plain loop would do."""

    def __init__(self, policy: Policy, base: Path) -> None:
        self.policy, self.encoded = policy, 0
        policy.core.set_attn_implementation("sdpa")  # the runner's own needs to be told how large the pictures are
        self._processors = load_processors(base)
        self._rows = RowBuilder(self._processors)

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        vocabulary = self._processors.vocabulary
        batch = collate([self._rows.build(r.prompt_ids, r.images) for r in requests], vocabulary.pad)
        images = [i for r in requests for i in r.images]
        patches = self._processors.patches.get(images)
        self.encoded += len(images)
        out = self.policy.core.generate(
            input_ids=batch.ids,
            attention_mask=batch.mask,
            mm_token_type_ids=(batch.ids == vocabulary.image_pad).int(),
            pixel_values=torch.cat([p.values for p in patches]),
            image_grid_thw=torch.tensor([p.grid for p in patches]),
            max_new_tokens=requests[0].max_new_tokens,
            do_sample=False,
            eos_token_id=vocabulary.end_of_turn,
            pad_token_id=vocabulary.pad,
            suppress_tokens=list(vocabulary.banned),
        )[:, batch.ids.shape[1] :].tolist()
        return [self._completion(ids, vocabulary.end_of_turn) for ids in out]

    def _completion(self, ids: list[int], end: int) -> Completion:
        stopped = end in ids
        kept = ids[: ids.index(end) + 1] if stopped else ids
        return Completion(tuple(kept), (0.0,) * len(kept), stopped, 0)

    def publish(self, adapter_folder: Path, version: int) -> None:
        raise NotImplementedError("the benchmark gives the weights at once")

    def close(self) -> None:
        pass


def measure(engine: Engine, rollouts: Rollouts, tasks: Sequence[Task], encoded: Callable[[], int]) -> dict[str, float]:
    """Play the tasks once; returns seconds and counts."""
    before, start = encoded(), time.perf_counter()
    trajectories = rollouts.run(engine, [(t, 0) for t in tasks], GREEDY, training_seed(0, 0))
    seconds = time.perf_counter() - start
    turns = [turn for t in trajectories for turn in t.turns]
    return {
        "seconds": seconds,
        "turns": len(turns),
        "tokens": sum(len(t.token_ids) for t in turns),
        "pictures_encoded": encoded() - before,
        "pictures_shown": sum(len(t.images) for t in turns),
        "pictures_distinct": sum(len(_distinct(t)) for t in trajectories),
    }


def _distinct(trajectory: Trajectory) -> set[str]:
    return {i.sha256 for turn in trajectory.turns for i in turn.images}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    offer = load_plugins().create("environment", "VisMaze-v0", {"size": 5, "cell_px": 8})
    with tempfile.TemporaryDirectory() as temporary:
        base = small_model(Path(temporary) / "base")
        policy = random_policy(base, 7)
        adapter = exported(policy, Path(temporary) / "adapter")
        processors = load_processors(base)
        rollouts = Rollouts(offer, processors.chat, processors.vocabulary)
        local = LocalEngine(model=str(base), lora=LORA, keep_history=True)
        vllm = VllmEngine(model=str(base), lora=LORA, **OPTIONS)
        plain = HuggingFace(policy, base)
        for engine in (local, vllm):
            engine.publish(adapter, 0)
        engines = {
            "local": (local, lambda: local.features.encoded),
            "vllm": (vllm, lambda: vllm.look().pictures_encoded),
            "huggingface_generate": (plain, lambda: plain.encoded),
        }
        found: dict[str, dict[str, float]] = {}
        for number in range(arguments.rounds + 1):
            tasks = [offer.stream()(1_000 * number + n) for n in range(arguments.episodes)]  # type: ignore[misc]
            for name, (engine, encoded) in engines.items():
                one = measure(engine, rollouts, tasks, encoded)  # type: ignore[arg-type]
                one["turns_per_second"] = one["turns"] / one["seconds"]
                one["tokens_per_second"] = one["tokens"] / one["seconds"]
                one["pictures_encoded_per_episode"] = one["pictures_encoded"] / len(tasks)
                print(name, {k: round(v, 2) for k, v in one.items()}, flush=True)
                if number and (name not in found or one["turns_per_second"] > found[name]["turns_per_second"]):
                    found[name] = one  # the first round warms up
        vllm.close()
    machine = {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    result = {
        "machine": machine,
        "vllm": check_installed(),
        "engines": {k: {n: round(x, 3) for n, x in v.items()} for k, v in found.items()},
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULT}")


if __name__ == "__main__":
    main()
