"""Measures mazeenv against its peers, all in this one process, in interleaved rounds; prints JSON. Started by `run.py`."""

from __future__ import annotations

import io
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from itertools import count

import envpool
import gymnasium as gym
import labmaze
import minigrid  # registers its environments
import numpy as np
from minigrid.wrappers import RGBImgObsWrapper
from PIL import Image

import mazeenv
from mazeenv.generators import wilson
from vismaze_hooks.integers import Integers

warnings.simplefilter("ignore")
SECONDS = 0.15  # each measurement of each round
LOOP = (
    "#########\n#S......#\n#.#####.#\n#.#...#.#\n#.#.#.#.#\n#.#.#.#.#\n#.###.#.#\n#....G..#\n#########"  # 9×9, two ways round
)

Rate = tuple[Callable[[], object], int]  # what is repeated, and how many units it is


def step_9x9() -> dict[str, Rate]:
    """One environment, step and RGB picture at 25 px, pictures dropped."""
    env = gym.make("VisMaze-v0", size=9, cell_px=25, max_moves=1 << 40)
    env.reset(options={"maze": LOOP})
    moves = count()
    found: dict[str, Rate] = {"mazeenv": (lambda: env.step(3 - (next(moves) & 1)), 1)}  # right, left, right, …
    for name, light in (("minigrid", False), ("minigrid, view highlighted", True)):  # False: the faster one
        peer = RGBImgObsWrapper(gym.make("MiniGrid-SimpleCrossingS9N1-v0", highlight=light, max_steps=1 << 40), tile_size=25)
        peer.reset(seed=0)
        found[name] = (lambda peer=peer: peer.step(0), 1)  # turning left: it always moves something
    return found


def generation_9x9() -> dict[str, Rate]:
    """A new 9×9 maze with its grid."""
    seeds = count()
    peer = labmaze.RandomMaze(height=9, width=9, max_rooms=0, random_seed=1)

    def regenerate() -> object:
        peer.regenerate()
        return peer.entity_layer

    return {"mazeenv": (lambda: wilson(9, 9, Integers(next(seeds))), 1), "labmaze": (regenerate, 1)}


def batch_64() -> dict[str, Rate]:
    """64 environments in one batch, pictures at 8 px; the peer's observations are 7×7×3 codes, no pictures."""
    between = gym.make_vec("VisMaze-v0", num_envs=64, size=9, cell_px=8, copy=False, max_moves=1 << 40)
    between.reset(options={"maze": LOOP})
    copied = gym.make_vec("VisMaze-v0", num_envs=64, size=9, cell_px=8, max_moves=1 << 40)
    copied.reset(options={"maze": LOOP})
    fresh = gym.make_vec("VisMaze-v0", num_envs=64, size=9, cell_px=8, copy=False)
    fresh.reset(seed=0)
    to_and_fro = [np.full(64, 3), np.full(64, 2)]
    random = np.random.default_rng(0).integers(0, 4, (1024, 64))
    turn = [count() for _ in range(3)]
    found: dict[str, Rate] = {
        "between resets": (lambda: between.step(to_and_fro[next(turn[0]) & 1]), 64),
        "between resets, copied": (lambda: copied.step(to_and_fro[next(turn[1]) & 1]), 64),
        "fresh mazes": (lambda: fresh.step(random[next(turn[2]) & 1023]), 64),
    }
    forward = np.zeros(64, dtype=np.int32)
    for threads in (1, 2):
        peer = envpool.make(
            "MiniGrid-SimpleCrossingS9N1-v0", env_type="gymnasium", num_envs=64, num_threads=threads, max_episode_steps=1 << 30
        )
        peer.reset()
        found[f"envpool, {threads} thread{'s' * (threads > 1)}"] = (lambda peer=peer: peer.step(forward), 64)
    return found


def vlm_turn() -> dict[str, Rate]:
    """Step and PNG bytes, in turn for 8 environments on one maze; the peer encodes an RGB PNG at every turn.

    The model gets the PNG, so the environment need not draw the array too: observation "ascii" is the small one. The same
    with both is measured beside it.
    """

    def group(observation: str) -> list[gym.Env]:
        envs = [gym.make("VisMaze-v0", size=9, cell_px=25, observation=observation, max_moves=1 << 40) for _ in range(8)]
        for env in envs:
            env.reset(options={"maze": LOOP})
        return envs

    def cached(envs: list[gym.Env]) -> Callable[[], object]:
        bare, turns = [env.unwrapped for env in envs], count()

        def turn() -> object:
            at = next(turns)
            envs[at & 7].step(3 - (at >> 3 & 1))
            return bare[at & 7].png()

        return turn

    def plain(envs: list[gym.Env]) -> Callable[[], object]:
        turns = count()

        def turn() -> object:
            at = next(turns)
            file = io.BytesIO()
            Image.fromarray(envs[at & 7].step(3 - (at >> 3 & 1))[0]).save(file, "PNG")
            return file.getvalue()

        return turn

    return {
        "mazeenv": (cached(group("ascii")), 1),
        "mazeenv, RGB array too": (cached(group("rgb")), 1),
        "RGB PNG each turn": (plain(group("rgb")), 1),
    }


EVERY = {
    "rgb": ("VisMaze-v0", {"size": 9, "cell_px": 25}),
    "rgb, trail": ("VisMaze-v0", {"size": 9, "cell_px": 25, "theme": "trail"}),
    "egocentric, fog": ("VisMaze-v0", {"size": 9, "observation": "egocentric", "observation_options": {"fog": True}}),
    "first_person": ("VisMaze-v0", {"size": 9, "observation": "first_person"}),
    "Klotski-v0": ("Klotski-v0", {"size": (4, 4), "dominoes": 3, "singles": 4}),
    "Jigsaw-v0": ("Jigsaw-v0", {"tiles": 3}),
    "Matchstick-v0": ("Matchstick-v0", {}),
    "FirstPersonMaze-v0": ("FirstPersonMaze-v0", {"size": 9}),
    "Gymnasium-v0 of MiniGrid": (
        "Gymnasium-v0",
        {
            "env": "minigrid:MiniGrid-Empty-Random-5x5-v0",
            "words": {"left": 0, "right": 1, "forward": 2},
            "search": 0,
            "move_limit": 1000,
        },
    ),
}


def every_environment() -> dict[str, Rate]:
    """Step and picture of every environment and observation, pictures dropped; resets at the ends are part of it."""

    def steps(env: gym.Env) -> Callable[[], object]:
        draw = np.random.default_rng(0)
        actions, at = draw.integers(env.action_space.n, size=4096).tolist(), count()
        env.reset(seed=0)

        def step() -> object:
            shown, _, terminated, truncated, _ = env.step(actions[next(at) & 4095])
            return env.reset() if terminated or truncated else shown

        return step

    found: dict[str, Rate] = {name: (steps(gym.make(id, **options)), 1) for name, (id, options) in EVERY.items()}
    peer = RGBImgObsWrapper(gym.make("MiniGrid-SimpleCrossingS9N1-v0", highlight=False), tile_size=25)
    return {**found, "minigrid": (steps(peer), 1)}


PARTS = (step_9x9, generation_9x9, batch_64, vlm_turn, every_environment)


def rate(repeated: Callable[[], object], units: int) -> tuple[float, float]:
    """Return units per second, and per second of processor time of all threads, over `SECONDS`."""
    for _ in range(20):
        repeated()
    calls, begun, busy = 0, time.perf_counter(), time.process_time()
    while (spent := time.perf_counter() - begun) < SECONDS:
        for _ in range(10):
            repeated()
        calls += 10
    return calls * units / spent, calls * units / (time.process_time() - busy)


def import_seconds(module: str) -> float:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


RATIOS = {
    "step and RGB picture, 9×9, 25 px, ÷ minigrid": ("step_9x9", "mazeenv", "minigrid"),
    "generation with grid, 9×9, ÷ labmaze": ("generation_9x9", "mazeenv", "labmaze"),
    "batch of 64, 8 px, between resets, ÷ envpool, 1 thread": ("batch_64", "between resets", "envpool, 1 thread"),
    "batch of 64, 8 px, between resets, ÷ envpool, 2 threads": ("batch_64", "between resets", "envpool, 2 threads"),
    "the same with copied observations ÷ envpool, 1 thread": ("batch_64", "between resets, copied", "envpool, 1 thread"),
    "batch of 64, a fresh maze at every reset, ÷ between resets": ("batch_64", "fresh mazes", "between resets"),
    "VLM turn in a group of 8 ÷ an RGB PNG each turn": ("vlm_turn", "mazeenv", "RGB PNG each turn"),
    "the same, with the RGB array drawn too": ("vlm_turn", "mazeenv, RGB array too", "RGB PNG each turn"),
    **{f"{name}, with resets, ÷ minigrid": ("every_environment", name, "minigrid") for name in EVERY},
}


def main(rounds: int) -> None:
    parts = {part.__name__: part() for part in PARTS}
    measured: dict[tuple[str, str], list[tuple[float, float]]] = {(p, who): [] for p, rates in parts.items() for who in rates}
    imports: dict[str, list[float]] = {"gymnasium": [], "mazeenv": []}
    for number in range(rounds):
        for name, rates in parts.items():
            order = list(rates)
            for who in order[number % len(order) :] + order[: number % len(order)]:  # nobody is always first
                measured[name, who].append(rate(*rates[who]))
        for module, seconds in imports.items():
            seconds.append(import_seconds(module))

    def ratio(part: str, ours: str, theirs: str, clock: int) -> float:
        """Return the median over the rounds of what the two did in the same round."""
        pairs = zip(measured[part, ours], measured[part, theirs], strict=True)
        return round(statistics.median(a[clock] / b[clock] for a, b in pairs), 3)

    over = [ours - theirs for ours, theirs in zip(imports["mazeenv"], imports["gymnasium"], strict=True)]
    packages = ("mazeenv", "gymnasium", "numpy", "pillow", "minigrid", "labmaze", "envpool")
    result = {
        "rounds": rounds,
        "load_average": os.getloadavg()[0],  # of the machine at the end: others may work on it too
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "ratios": {name: ratio(*what, 0) for name, what in RATIOS.items()},
        "ratios_of_processor_time": {name: ratio(*what, 1) for name, what in RATIOS.items()},
        "import_seconds_over_gymnasium": round(statistics.median(over), 3),
        "per_second": {f"{p}: {who}": round(statistics.median(v[0] for v in rates)) for (p, who), rates in measured.items()},
    }
    assert minigrid and mazeenv
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main(int(sys.argv[1]))
