"""The native vector environment: the same as `SyncVectorEnv`, only faster; and groups."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from mazeenv import VisMazeEnv
from mazeenv.vector import VisMazeVectorEnv

SMALL = "#####\n#S..#\n###.#\n#G..#\n#####"
OPTIONS = {
    "rgb": {"size": 7},
    "weighted": {"size": 5, "reward": {"sparse": 2.0, "progress": 0.5, "invalid_penalty": 0.1}, "stop_required": True},
    "symbolic": {"size": (5, 7), "observation": "symbolic", "loops": 1},
    "ascii": {"size": 5, "observation": "ascii", "generator": "prim", "braid": 0.5, "max_moves": 9},
    "stop": {"size": 5, "stop_required": True, "theme": "visgym"},
    "trail": {"size": 5, "theme": "trail"},
    "random colours": {"size": 5, "theme": "random"},
    "preset": {"size": 5, "cell_px": "qwen2.5-vl"},
    "crop": {"size": 7, "observation": "egocentric", "observation_options": {"fog": True}},
    "corners": {"size": 7, "ends": "corners", "shortest": (8, 10), "max_moves": 11},
}


def same(a, b, at="") -> None:
    """Assert that two results are equal by type, dtype and value; say where they are not."""
    assert type(a) is type(b), at
    if isinstance(a, dict):
        assert set(a) == set(b), (at, set(a) ^ set(b))
        for key in a:
            same(a[key], b[key], f"{at}/{key}")
    elif isinstance(a, tuple):
        assert len(a) == len(b), at
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{at}({i})")
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), at
        if a.dtype == object:
            for i, (x, y) in enumerate(zip(a.flat, b.flat, strict=True)):
                same(x, y, f"{at}[{i}]")
        else:
            assert np.array_equal(a, b), at
    else:
        assert a == b, at


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_equals_sync_vector_env_step_by_step(mode, options):
    options = {"cell_px": 3, **options}
    one = gym.make_vec("VisMaze-v0", num_envs=4, autoreset_mode=mode, **options)
    two = SyncVectorEnv([lambda: VisMazeEnv(**options)] * 4, autoreset_mode=mode)
    assert isinstance(one, VisMazeVectorEnv)
    assert (one.observation_space, one.action_space) == (two.observation_space, two.action_space)
    same(one.reset(seed=3), two.reset(seed=3), "reset")
    draw, ends, wins = np.random.default_rng(0), 0, 0
    for step in range(300):
        actions = draw.integers(0, 5 if step % 5 == 0 else 4, 4)
        for i, state in enumerate(one.states):  # half the time the best action, so that some succeed
            if draw.random() < 0.5:
                best = state.maze.optimal_actions(state.cell)
                actions[i] = best[0] if best else 4
        a, b = one.step(actions), two.step(actions)
        same(a, b, f"step {step}")
        over = a[2] | a[3]
        ends, wins = ends + over.sum(), wins + (a[1] > 0.9).sum()
        if mode is AutoresetMode.DISABLED and over.any():
            masks = [{"reset_mask": over.copy()} for _ in range(2)]
            same(one.reset(options=masks[0]), two.reset(options=masks[1]), f"masked reset {step}")
        if step % 100 == 99:
            same(one.reset(), two.reset(), "reset without a seed")
    assert ends > 30 and wins > 5


def test_a_thousand_steps_of_the_default():
    one, two = VisMazeVectorEnv(3, cell_px=1), SyncVectorEnv([lambda: VisMazeEnv(cell_px=1)] * 3)
    same(one.reset(seed=0), two.reset(seed=0))
    for actions in np.random.default_rng(1).integers(0, 5, (1000, 3)):
        same(one.step(actions), two.step(actions))


def test_seeds_in_a_list_and_a_given_maze():
    one, two = (
        make()
        for make in (
            lambda: VisMazeVectorEnv(3, size=5, cell_px=2),
            lambda: SyncVectorEnv([lambda: VisMazeEnv(size=5, cell_px=2)] * 3),
        )
    )
    same(one.reset(seed=[5, 0, 9]), two.reset(seed=[5, 0, 9]))
    same(one.reset(seed=[None, 7, None]), two.reset(seed=[None, 7, None]))
    same(one.reset(options={"maze": SMALL, "max_moves": 20}), two.reset(options={"maze": SMALL, "max_moves": 20}))
    same(one.reset(options={"max_moves": 6}), two.reset(options={"max_moves": 6}))
    for actions in np.random.default_rng(1).integers(0, 4, (60, 3)):
        same(one.step(actions), two.step(actions))


def test_a_group_plays_the_same_mazes_in_the_same_order():
    env = VisMazeVectorEnv(6, group_size=3, size=7, cell_px=1, autoreset_mode="SameStep")
    env.reset(seed=4)
    single = VisMazeVectorEnv(2, size=7, cell_px=1)
    single.reset(seed=4)
    assert [s.maze for s in env.states] == [m.maze for m in single.states for _ in range(3)]
    played = [[state.maze.sha256] for state in env.states]
    draw = np.random.default_rng(0)
    for _ in range(400):
        *_, terminated, truncated, _ = env.step(draw.integers(0, 5, 6))
        for i in np.flatnonzero(terminated | truncated):
            played[i].append(env.states[i].maze.sha256)
    for group in (played[:3], played[3:]):
        together = min(map(len, group))
        assert together > 20 and group[0][:together] == group[1][:together] == group[2][:together]
        assert len({len(episodes) for episodes in group}) > 1, "they should have got out of step, or this shows little"
    assert not set(played[0]) & set(played[3])


def test_group_seeds_are_one_for_each_group():
    env = VisMazeVectorEnv(4, group_size=2, size=7)
    env.reset(seed=[8, 9])
    with pytest.raises(ValueError, match="3 seeds: 2 are needed"):
        env.reset(seed=[1, 2, 3])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["deepcopy", "pickle"])
def test_copies_in_mid_episode_go_on_alike(copied):
    env = VisMazeVectorEnv(3, size=7, cell_px=2)
    env.reset(seed=0)
    draw = np.random.default_rng(0)
    for _ in range(5):
        env.step(draw.integers(0, 4, 3))
    other = copied(env)
    for _ in range(60):
        actions = draw.integers(0, 4, 3)
        same(env.step(actions), other.step(actions))
    same(env.reset(), other.reset())


def test_observations_are_copies_unless_asked_otherwise():
    env = VisMazeVectorEnv(2, size=5, cell_px=2)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    first[:] = 7
    second = env.step(np.array([0, 0]))[0]
    assert not np.shares_memory(first, second) and np.array_equal(env.reset(seed=0)[0], kept)
    shared = VisMazeVectorEnv(2, size=5, cell_px=2, copy=False)
    assert shared.reset(seed=0)[0] is shared.step(np.array([0, 0]))[0]


def test_what_is_returned_does_not_change_later():
    env = VisMazeVectorEnv(3, size=5, cell_px=1, autoreset_mode="SameStep")
    kept = [env.reset(seed=0)]
    copies = copy.deepcopy(kept)
    for actions in np.random.default_rng(2).integers(0, 4, (40, 3)):
        kept.append(env.step(actions))
        copies.append(copy.deepcopy(kept[-1]))
    same(tuple(kept), tuple(copies))


@pytest.mark.parametrize(
    "actions", [[0, 1], [0, 1, 5], [0, -1, 2], [0.0, 1.0, 2.0], 1, [[0, 1, 2]], ["up", "up", "up"], [True, False, True]]
)
def test_wrong_actions_are_refused_and_nothing_has_changed(actions):
    env = VisMazeVectorEnv(3, size=5)
    env.reset(seed=0)
    before = env.states
    with pytest.raises(gym.error.InvalidAction):
        env.step(actions)
    assert env.states == before


def test_out_of_order_calls_say_what_to_do():
    env = VisMazeVectorEnv(2, size=5, max_moves=6, autoreset_mode="Disabled")
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step(np.array([0, 0]))
    env.reset(options={"maze": SMALL})
    for _ in range(6):
        env.step(np.array([0, 0]))
    with pytest.raises(gym.error.ResetNeeded, match=r"\[0, 1\] are over"):
        env.step(np.array([0, 0]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"num_envs": 5, "group_size": 2}, "multiple"),
        ({"num_envs": 2, "group_size": 0}, "group_size"),
        ({"num_envs": 2, "autoreset_mode": "Never"}, "Never"),
        ({"num_envs": 2, "sise": 5}, "Did you mean 'size'"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        VisMazeVectorEnv(**options)


@pytest.mark.parametrize("mask", [[True, False], np.array([1, 0]), np.array([True]), np.array([False, False])])
def test_wrong_reset_masks_are_refused(mask):
    env = VisMazeVectorEnv(2, size=5)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(options={"reset_mask": mask})


def test_a_refused_reset_changes_nothing():
    env = VisMazeVectorEnv(2, size=5)
    env.reset(seed=0)
    before = env.states
    for options in ({"maez": SMALL}, {"maze": "#"}, {"maze": SMALL, "max_moves": 2}):
        with pytest.raises(ValueError):
            env.reset(seed=1, options=options)
    assert env.states == before


def test_rendering():
    env = VisMazeVectorEnv(2, size=5, cell_px=2, render_mode="rgb_array")
    shown, _ = env.reset(seed=0)
    assert np.array_equal(np.stack(env.render()), shown)
    assert VisMazeVectorEnv(2, size=5).render() is None
