"""Fixed sets, training streams, and that they never meet."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mazeenv import Maze, MazeConfig, canonical_hash, eval_set, fixed, grid, read_file, training_stream, walls_hash
from mazeenv.make_sets import BINS_7X7, BINS_9X9, EVALUATION_7X7, TUNING_7X7, build, spanning_trees
from mazeenv.offer import maze_offer, visgym_easy_offer, visgym_hard_offer
from mazeenv.symmetry import images
from vismaze_hooks.text import make_text_environment

SETS = sorted(fixed.SETS)
DATA = Path(fixed.__file__).parent / "data"


def test_the_files_are_what_make_sets_writes():
    for name, content in build().items():
        data = (DATA / f"{name}.jsonl").read_bytes()
        assert data == content.encode("ascii"), name
        assert hashlib.sha256(data).hexdigest() == fixed.SETS[name].sha256, name


@pytest.mark.parametrize("name", SETS)
def test_each_line_says_what_is_true(name):
    entry, tasks = fixed.SETS[name], eval_set(name)
    lines = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    assert len(lines) == len(tasks) == entry.count
    for index, (line, task) in enumerate(zip(lines, tasks, strict=True)):
        maze = Maze.from_text(task.options["maze"])
        assert line["rows"] == maze.text.split("\n") and (maze.height, maze.width) == entry.size
        assert task.uid == f"{name}/{index}"
        assert task.content_hash == line["sha256"] == hashlib.sha256(maze.text.encode()).hexdigest()
        assert line["limit"] == line["shortest"] + 4 == task.move_limit == task.options["max_moves"]
        assert task.labels == {"shortest": maze.shortest, "class": line["class"][:8]}
    assert max(task.labels["shortest"] for task in tasks) == entry.longest
    assert len({task.content_hash for task in tasks}) == len(tasks)


@pytest.mark.parametrize(
    ("name", "bins"),
    [("vismaze-64-7x7", BINS_7X7), ("vismaze-tune-7x7", BINS_7X7), ("vismaze-64", BINS_9X9), ("vismaze-512", BINS_9X9)],
)
def test_four_bins_of_path_lengths_have_equal_shares_in_every_part(name, bins):
    lengths = [task.labels["shortest"] for task in eval_set(name)]
    for at in range(0, len(lengths), 4):
        assert [low <= n <= high for n, (low, high) in zip(lengths[at : at + 4], bins, strict=True)] == [True] * 4


def test_the_28_classes_of_7x7_are_split_in_three():
    trees = spanning_trees(7, 7)
    classes = Counter(walls_hash(walls, 7)[:8] for walls in trees)
    assert len(trees) == 192 and len(classes) == 28
    evaluation, tuning = set(EVALUATION_7X7), set(TUNING_7X7)
    training = set(classes) - evaluation - tuning
    assert not evaluation & tuning and evaluation | tuning <= set(classes)
    assert len(training) == 18 and sum(classes[name] for name in training) == 124
    assert {task.labels["class"] for task in eval_set("vismaze-64-7x7")} == evaluation
    assert {task.labels["class"] for task in eval_set("vismaze-tune-7x7")} == tuning
    stream = training_stream(MazeConfig(size=7), "VisMaze-v0")
    assert {stream(seed).labels["class"] for seed in range(2000)} == training


@pytest.mark.parametrize(
    "options",
    [
        {"size": 5},
        {"size": 7},
        {"size": 9},
        {"size": 11, "ends": "corners", "max_moves": 30, "stop_required": True},
        {"size": 7, "generator": "kruskal"},
        {"size": 9, "generator": "depth_first"},
    ],
)
def test_training_never_meets_a_fixed_set_in_any_orientation(options):
    stream = training_stream(MazeConfig(**options), "VisMaze-v0")
    walls, whole = set(), set()
    for name, entry in fixed.SETS.items():
        for maze in fixed.mazes(name):
            whole |= {image.text for image in images(maze)}
            if entry.holds_out == "walls":
                walls |= {image.walls for image in images(maze)}
    for seed in range(4000):
        maze = Maze.from_text(stream(seed).options["maze"])
        assert maze.text not in whole and maze.walls not in walls


def test_without_the_exclusion_it_does_meet_them():
    """So the test above can fail."""
    stream = training_stream(MazeConfig(size=7), "VisMaze-v0", exclude=[])
    walls = {image.walls for maze in fixed.mazes("vismaze-64-7x7") for image in images(maze)}
    met = sum(Maze.from_text(stream(seed).options["maze"]).walls in walls for seed in range(1000))
    assert met == pytest.approx(1000 * 32 / 192, abs=60)
    some = training_stream(MazeConfig(size=7), "VisMaze-v0", exclude=["vismaze-tune-7x7"])
    assert any(Maze.from_text(some(seed).options["maze"]).walls in walls for seed in range(200))


def test_5x5_has_one_class_so_start_and_goal_are_held_out():
    everything = {canonical_hash(m): n for n in ("vismaze-5x5", "vismaze-tune-5x5") for m in fixed.mazes(n)}
    assert Counter(everything.values()) == {"vismaze-5x5": 2, "vismaze-tune-5x5": 1}
    stream = training_stream(MazeConfig(size=5), "VisMaze-v0")
    left = {canonical_hash(Maze.from_text(stream(seed).options["maze"])) for seed in range(500)}
    assert len(left) == 3 and not left & set(everything)


def test_evaluation_tuning_and_each_other_share_no_tree():
    groups = {
        "5x5": ("vismaze-5x5", "vismaze-tune-5x5"),
        "7x7": ("vismaze-64-7x7", "vismaze-tune-7x7"),
        "9x9": ("vismaze-64", "vismaze-512", "vismaze-tune", "vismaze-visgym-easy"),
    }
    for size, names in groups.items():
        hashes = [{canonical_hash(m) if size == "5x5" else walls_hash(m.walls, m.width) for m in fixed.mazes(n)} for n in names]
        assert len(set().union(*hashes)) == sum(map(len, hashes)), size


def test_a_stream_is_a_pure_function_of_the_seed():
    one, two = (training_stream(MazeConfig(size=9), "VisMaze-v0") for _ in range(2))
    assert [one(seed) for seed in range(50)] == [two(seed) for seed in reversed(range(50))][::-1]
    assert one(2**64 - 1) == one(-1) and one(0) != one(1)
    assert one(255).uid == "VisMaze-v0/00000000000000ff"
    assert len({one(seed).content_hash for seed in range(1000)}) > 990


def test_a_stream_is_the_same_in_every_process():
    code = (
        "import mazeenv as m; s = m.training_stream(m.MazeConfig(size=7), 'x'); print([s(k).content_hash for k in range(20)])"
    )
    found = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1 and len(found.pop()) > 1000


def test_stream_options():
    config = MazeConfig(size=7)
    short = training_stream(config, "x", shortest=(4, 6))
    assert {short(seed).labels["shortest"] for seed in range(300)} == {4, 6}
    longer = training_stream(config, "x", shortest=(4, 6), extra_moves=5)
    for seed in range(20):
        assert longer(seed).move_limit == longer(seed).options["max_moves"] == short(seed).move_limit + 5
        assert longer(seed).content_hash == short(seed).content_hash
    drawn = training_stream(config, "x", shortest=(4, 6), extra_moves=(-4, 2))
    spare = Counter(drawn(seed).move_limit - int(drawn(seed).labels["shortest"]) for seed in range(700))
    assert set(spare) == set(range(7)) and all(60 < n < 140 for n in spare.values())
    tight = training_stream(MazeConfig(size=7, max_moves=10), "x", extra_moves=(-4, 0))
    assert all(tight(seed).move_limit >= int(tight(seed).labels["shortest"]) for seed in range(300))
    even = training_stream(config, "x", bins=BINS_7X7)
    shares = Counter(next(b for b in BINS_7X7 if b[0] <= even(seed).labels["shortest"] <= b[1]) for seed in range(4000))
    assert all(900 < n < 1100 for n in shares.values())


def test_a_stream_draws_boards_with_loops_and_with_passages_walled_up():
    """3×3 rooms: 12 inner walls, 8 of them opened by a tree."""
    stream = training_stream(MazeConfig(size=7), "x", bins=BINS_7X7, loops=(0, 2), blocked=(0, 1))
    tasks = [stream(seed) for seed in range(1500)]
    mazes = [Maze.from_text(task.options["maze"]) for task in tasks]
    opened = Counter(sum(not maze.walls[door] for door, _, _ in grid.doors(7, 7)) for maze in mazes)
    assert set(opened) == {7, 8, 9, 10} and min(opened.values()) > 50
    held_out = {task.labels["class"] for name in ("vismaze-64-7x7", "vismaze-tune-7x7") for task in eval_set(name)}
    seen = {task.labels["class"] for task in tasks}
    assert not seen & held_out and len(seen) > 5 * 18, "there are 18 classes of trees to train on"
    same = training_stream(MazeConfig(size=7, loops=1), "x")
    assert [same(n) for n in range(50)] == [training_stream(MazeConfig(size=7), "x", loops=1)(n) for n in range(50)]


@pytest.mark.parametrize("change", [{"loops": (0, 2)}, {"blocked": 1}, {"flipped": 1}, {"flipped": (0, 3)}])
def test_changed_boards_keep_two_cells_away_from_every_board_of_a_fixed_set(change):
    sets = [Maze.from_text(task.options["maze"]) for name in ("vismaze-64-7x7", "vismaze-tune-7x7") for task in eval_set(name)]
    boards = np.array([np.frombuffer(image.walls, np.uint8) for maze in set(sets) for image in images(maze)])
    stream = training_stream(MazeConfig(size=7), "x", bins=BINS_7X7, **change)
    free = training_stream(MazeConfig(size=7), "x", bins=BINS_7X7, exclude=(), **change)

    def nearest(task):
        return int((boards != np.frombuffer(Maze.from_text(task.options["maze"]).walls, np.uint8)).sum(1).min())

    assert min(nearest(stream(seed)) for seed in range(300)) >= 2
    assert min(nearest(free(seed)) for seed in range(300)) < 2, "without the sets such boards are drawn"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shortest": (18, 20)}, "from 2 to 16"),
        ({"shortest": 4}, "pair"),
        ({"bins": []}, "bins"),
        ({"bins": [(2, 4)], "shortest": (2, 4)}, "bins"),
        ({"exclude": ["vismaze-64-7"]}, "Did you mean 'vismaze-64-7x7'"),
        ({"extra_moves": -5}, "at least -4"),
        ({"extra_moves": (2, 1)}, "extra_moves"),
        ({"extra_moves": (0, True)}, "extra_moves"),
        ({"extra_moves": "4"}, "extra_moves"),
        ({"extra_moves": 1.5}, "extra_moves"),
        ({"loops": (0, 5)}, "0 to 4"),
        ({"loops": "2"}, "loops"),
        ({"blocked": (3, 1)}, "blocked"),
        ({"blocked": -1}, "at least 0"),
        ({"flipped": (2, 0)}, "flipped"),
        ({"flipped": 1.0}, "flipped"),
    ],
)
def test_wrong_stream_options_are_refused_when_it_is_made(options, said):
    with pytest.raises(ValueError, match=said):
        maze_offer(size=7).stream(**options)


def test_a_stream_with_nothing_left_says_so(monkeypatch):
    monkeypatch.setattr("mazeenv.tasks.ATTEMPTS", 50)
    every = frozenset(walls_hash(walls, 7) for walls in spanning_trees(7, 7))
    monkeypatch.setattr(fixed, "held_out", lambda *_: (every, frozenset()))
    with pytest.raises(ValueError, match="nothing left to draw"):
        training_stream(MazeConfig(size=7), "x")


def test_offers_list_the_sets_that_fit_board_and_limit():
    assert set(maze_offer(size=7).fixed_sets) == {"vismaze-64-7x7", "vismaze-tune-7x7"}
    assert set(maze_offer(size=5).fixed_sets) == {"vismaze-5x5", "vismaze-tune-5x5"}
    assert set(maze_offer().fixed_sets) == {"vismaze-64", "vismaze-512", "vismaze-tune", "vismaze-visgym-easy"}
    assert set(visgym_easy_offer().fixed_sets) == {"vismaze-visgym-easy"}
    assert set(visgym_hard_offer().fixed_sets) == {"vismaze-visgym-hard"}
    assert maze_offer(size=13).fixed_sets == {}
    with pytest.raises(ValueError, match="cannot be solved within it"):
        eval_set("vismaze-64", MazeConfig(max_moves=10))
    with pytest.raises(ValueError, match="Did you mean 'vismaze-64'"):
        eval_set("vismaze-46")


@pytest.mark.parametrize("options", [{"size": 5}, {"size": 7}, {}, {"size": 7, "stop_required": True}])
def test_the_solver_solves_every_maze_of_every_set_in_shortest_moves(options):
    offer = maze_offer(cell_px=1, **options)
    env = make_text_environment(offer)
    for make in offer.fixed_sets.values():
        for task in make():
            env.start(task)
            actions = offer.solver(env.unwrapped)
            assert len(actions) == task.labels["shortest"] + bool(options.get("stop_required"))
            rewards = [env.step(offer.answer(offer.words[action]))[1] for action in actions]
            assert rewards == [0.0] * (len(actions) - 1) + [1.0]


def played(offer, name, baseline, rounds) -> float:
    """Return the mean number of mazes of a set that a baseline solves."""
    env, draw, solved = make_text_environment(offer), np.random.default_rng(0), 0
    for _ in range(rounds):
        for task in offer.fixed_sets[name]():
            env.start(task)
            over = False
            while not over:
                action = offer.baselines[baseline](env.unwrapped, draw)
                _, _, terminated, truncated, info = env.step(offer.answer(offer.words[action]))
                over = terminated or truncated
            solved += info["success"]
    return solved / rounds


def test_random_play_solves_at_most_three_of_the_64():
    assert played(maze_offer(size=7, cell_px=1), "vismaze-64-7x7", "random", 60) < 2


def test_greedy_play_solves_more_but_not_most():
    assert 10 < played(maze_offer(size=7, cell_px=1), "vismaze-64-7x7", "greedy", 5) < 32


# Files of one's own


def lines() -> list[dict]:
    return [json.loads(line) for line in fixed.write_lines(fixed.mazes("vismaze-5x5")).splitlines()]


def test_a_file_of_ones_own_is_read(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(fixed.write_lines(fixed.mazes("vismaze-64-7x7")))
    assert read_file(file) == fixed.mazes("vismaze-64-7x7")


def changed(line: dict, **values) -> dict:
    return {**line, **values}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda line: changed(line, rows=["#####", "#S.G.", "#####"]), "open border at row 1, column 4"),
        (lambda line: changed(line, rows=["#####", "#S#G#", "#####"]), "unreachable goal"),
        (lambda line: changed(line, rows=["####", "#SG#", "####"]), "size 3×4"),
        (lambda line: changed(line, rows=["#####", "#S.G#", "####"]), "unequal length"),
        (lambda line: changed(line, rows=[]), "rows must be a list"),
        (lambda line: changed(line, rows="#####"), "rows must be a list"),
        (lambda line: changed(line, sha256="0" * 64), "wrong sha256"),
        (lambda line: changed(line, shortest=2 + line["shortest"]), "wrong shortest"),
        (lambda line: changed(line, start=[3, 3]), "wrong start"),
        (lambda line: changed(line, goal=[1, 2]), "wrong goal"),
        (lambda line: changed(line, **{"class": "x"}), "wrong class"),
        (lambda line: changed(line, limit=line["shortest"] - 1), "cannot be solved within it"),
        (lambda line: changed(line, limit="many"), "cannot be solved within it"),
        (lambda line: changed(line, colour="red"), "exactly the keys"),
        (lambda line: {"rows": line["rows"]}, "exactly the keys"),
        (lambda line: [1, 2], "exactly the keys"),
        (lambda line: lines()[0], "the maze of line 1 once more"),
    ],
)
def test_a_wrong_file_is_refused_naming_file_line_and_rule(tmp_path, change, rule):
    file = tmp_path / "mine.jsonl"
    records = lines()
    records[2] = change(records[2])
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(ValueError, match=rf"mine\.jsonl, line 3: .*{rule}"):
        read_file(file)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "no maze"), (b"{", "line 1: not JSON"), (b"\xff\xfe", "not UTF-8"), (b"[" * 100_000, "line 1: not JSON")],
)
def test_a_file_that_is_none_is_refused(tmp_path, content, said):
    file = tmp_path / "mine.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"mine\.jsonl.*{said}"):
        read_file(file)


def test_a_shipped_file_that_was_changed_is_refused(monkeypatch):
    entry = fixed.SETS["vismaze-5x5"]
    fixed.mazes.cache_clear()
    monkeypatch.setitem(fixed.SETS, "vismaze-5x5", fixed.FixedSet(entry.size, entry.count, entry.longest, "0" * 64, "maze"))
    with pytest.raises(ValueError, match=r"vismaze-5x5\.jsonl.*the file was changed"):
        eval_set("vismaze-5x5")
    fixed.mazes.cache_clear()
