"""Real clients: wrappers that draw, stack, resize and record, worker processes, training libraries' checks."""

from __future__ import annotations

import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import (
    FlattenObservation,
    FrameStackObservation,
    GrayscaleObservation,
    RecordEpisodeStatistics,
    RecordVideo,
    RenderCollection,
    ResizeObservation,
    TimeLimit,
)

from mazeenv import VisMazeEnv


def test_frames_are_stacked():
    env = FrameStackObservation(gym.make("VisMaze-v0", size=5, cell_px=4), stack_size=3)
    first, _ = env.reset(seed=0)
    second = env.step(env.unwrapped.state.maze.solution()[0])[0]
    assert first.shape == (3, 20, 20, 3) and np.array_equal(second[1], first[2]) and not np.array_equal(second[2], first[2])


def test_observations_are_resized():
    pytest.importorskip("cv2", reason="Gymnasium resizes with OpenCV")
    env = ResizeObservation(gym.make("VisMaze-v0", size=5, cell_px=8), (84, 84))
    shown, _ = env.reset(seed=0)
    assert shown.shape == (84, 84, 3) and shown in env.observation_space
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) >= 4


def test_an_episode_is_recorded_as_video(tmp_path: Path):
    pytest.importorskip("moviepy", reason="Gymnasium records with moviepy")
    env = gym.make("VisMaze-v0", size=5, cell_px=16, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # moviepy's own
        env = RecordVideo(env, str(tmp_path), disable_logger=True)
        env.reset(seed=0)
        for action in env.unwrapped.state.maze.solution():
            env.step(action)
        env.close()
    (video,) = tmp_path.glob("*.mp4")
    assert video.stat().st_size > 1000


def test_gymnasiums_other_wrappers():
    env = RecordEpisodeStatistics(TimeLimit(gym.make("VisMaze-v0", size=5, cell_px=2), 50))
    env.reset(seed=0)
    for action in env.unwrapped.state.maze.solution():
        *_, info = env.step(action)
    assert info["episode"]["r"] == 1.0
    assert FlattenObservation(gym.make("VisMaze-v0", size=5, cell_px=2)).reset(seed=0)[0].shape == (300,)
    assert GrayscaleObservation(gym.make("VisMaze-v0", size=5, cell_px=2)).reset(seed=0)[0].shape == (10, 10)
    collected = RenderCollection(gym.make("VisMaze-v0", size=5, cell_px=2, render_mode="rgb_array"))
    collected.reset(seed=0)
    collected.step(0)
    assert len(collected.render()) == 2


def make_env() -> gym.Env:
    return VisMazeEnv(size=5, cell_px=2)


@pytest.mark.slow
@pytest.mark.parametrize("shared_memory", [True, False])
def test_spawned_workers_give_what_one_process_gives(shared_memory):
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        makers = [make_env] * 2
        there = AsyncVectorEnv(makers, context="spawn", shared_memory=shared_memory, autoreset_mode=mode)
        here = SyncVectorEnv(makers, autoreset_mode=mode)
        try:
            assert np.array_equal(there.reset(seed=1)[0], here.reset(seed=1)[0])
            for actions in np.random.default_rng(0).integers(0, 5, (40, 2)):
                a, b = there.step(actions), here.step(actions)
                assert all(np.array_equal(x, y) for x, y in zip(a[:4], b[:4], strict=True))
                assert a[4]["feedback"].tolist() == b[4]["feedback"].tolist()
                assert a[4]["position"].tolist() == b[4]["position"].tolist()
        finally:
            there.close()


def test_what_stable_baselines_checks():
    """Its `check_env` is run by `examples/sb3_maze.py`; these are the demands that go beyond Gymnasium's."""
    env = VisMazeEnv(size=5)
    assert isinstance(env.action_space, spaces.Discrete) and env.action_space.start == 0
    space = env.observation_space
    assert space.dtype == np.uint8 and (space.low == 0).all() and (space.high == 255).all() and min(space.shape[:2]) >= 36
    env.reset(seed=0)
    _, reward, terminated, truncated, _ = env.step(0)
    assert type(reward) is float and type(terminated) is bool and type(truncated) is bool
