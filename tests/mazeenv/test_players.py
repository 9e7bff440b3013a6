"""`mazeenv play`, `show` and `replay`."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import pty
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from mazeenv import VisMazeEnv, cli, eval_set
from mazeenv.episodes import Recorded, draw_task, offer_of, play_back, read_episode, solved, write_episodes
from mazeenv.play import half_blocks
from mazeenv.show import replay_page

SMALL = {"size": 5, "cell_px": 8}
COMMAND = [sys.executable, "-m", "mazeenv.cli"]


@pytest.fixture
def episode():
    """A solved level, with one unreadable answer and one bump before the way."""
    task = draw_task(offer_of("VisMaze-v0", SMALL), 3)
    way = solved("VisMaze-v0", SMALL, task).answers
    return Recorded("VisMaze-v0", task, ("<b>what?</b>", *way), SMALL)


def test_an_episode_goes_through_a_file_and_shows_the_same(tmp_path, episode):
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, [episode, episode])
    for number in (0, 1, -1):
        again = read_episode(path, number)
        assert again == episode
    prompt, shown = play_back(again)
    assert "red square" in prompt and len(shown) == len(episode.answers) + 1
    assert [moment.reward for moment in shown] == [0.0] * len(episode.answers) + [1.0] and shown[-1].ending == "success"
    env = VisMazeEnv(**SMALL)
    assert np.array_equal(shown[0].picture, env.reset(options=dict(episode.task.options))[0])
    assert not shown[1].readable and shown[1].answer == "<b>what?</b>"


def test_a_line_of_an_evaluation_finds_its_task_in_the_fixed_set(tmp_path):
    path = tmp_path / "step_0.jsonl"
    row = {"uid": "vismaze-64-7x7/3", "mode": "greedy", "answers": ["<action>up</action>"], "success": False}
    path.write_text(json.dumps({"step": 0}) + "\n" + json.dumps(row) + "\n")
    found = read_episode(path, options={"size": 7})
    assert found.task == eval_set("vismaze-64-7x7")[3] and found.answers == ("<action>up</action>",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1: not JSON"),
        ('{"step": 0}\n', "no episode 0; 0 lines"),
        (
            '{"answers": [], "uid": "vismaze-64-7x8/3"}\n',
            "line 1: no episode: unknown fixed set.*Did you mean 'vismaze-64-7x7'",
        ),
        ('{"answers": [], "uid": "vismaze-64-7x7/64"}\n', "the tasks 0 to 63"),
        ('{"answers": [], "task": {"uid": "x"}}\n', "line 1: no episode"),
    ],
)
def test_a_file_that_holds_no_episode_is_refused_with_file_and_line(tmp_path, text, said):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        read_episode(path, options={"size": 7})
    assert "bad.jsonl" in str(error.value)


def test_answers_after_the_end_are_refused(episode):
    more = Recorded("VisMaze-v0", episode.task, (*episode.answers, "<action>up</action>"), SMALL)
    with pytest.raises(ValueError, match="is over after"):
        play_back(more)


def test_show_writes_what_the_ending_says(tmp_path, capsys):
    where = ["-o", "size=5", "-o", "cell_px=8", "--seed", "3"]
    for name in ("level.png", "way.png", "way.gif", "level.svg", "way.svg"):
        arguments = ["show", str(tmp_path / name), *where, *(["--solution"] if "way" in name else [])]
        assert cli.main(arguments) == 0
        assert capsys.readouterr().out.strip() == str(tmp_path / name)
    task = draw_task(offer_of("VisMaze-v0", SMALL), 3)
    _, shown = play_back(solved("VisMaze-v0", SMALL, task))
    assert np.array_equal(np.asarray(Image.open(tmp_path / "level.png")), shown[0].picture)
    with Image.open(tmp_path / "way.gif") as animation:
        assert animation.n_frames == len(shown)
        for number, moment in enumerate(shown):
            animation.seek(number)
            assert np.array_equal(np.asarray(animation.convert("RGB")), moment.picture)
    drawing = ElementTree.parse(tmp_path / "way.svg").getroot()
    (walls,) = drawing.findall("{*}path")
    area = sum(int(width) for width in re.findall(r"h(\d+)v1", walls.get("d")))
    assert area == shown[0].state.maze.walls.count(1), "every wall is drawn, once"
    (way,) = drawing.findall("{*}polyline")
    assert len(way.get("points").split()) == len(shown)
    assert not ElementTree.parse(tmp_path / "level.svg").getroot().findall("{*}polyline")


def test_the_replay_is_one_page_that_asks_nobody_and_holds_every_turn(episode):
    page = replay_page(episode)
    assert not re.search(r'\s(src|href)="|https?://|@import|url\(|fetch\(|XMLHttp', page), "nothing is fetched"
    assert "default-src 'none'" in page and "<b>what?" not in page, "answers are text, never markup"
    turns = json.loads(html.unescape(re.search(r'id="turns">(.*?)</script>', page, re.S)[1]))
    _, shown = play_back(episode)
    assert [turn["answer"] for turn in turns] == [*episode.answers, None]
    assert [turn["feedback"] for turn in turns[:-1]] == [moment.feedback for moment in shown[1:]]
    assert [turn["reward"] for turn in turns[:-1]] == [moment.reward for moment in shown[1:]]
    for turn, moment in zip(turns, shown, strict=True):
        picture = Image.open(io.BytesIO(base64.b64decode(turn["picture"].partition(",")[2])))
        assert np.array_equal(np.asarray(picture), moment.picture)
    prompt, _ = play_back(episode)
    assert html.escape(prompt) in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "x.png", "-e", "VisMase-v0"], "Did you mean 'VisMaze-v0'"),
        (["show", "x.png", "-o", "siz=5"], "Did you mean 'size'"),
        (["show", "x.png", "-o", "size"], "expected NAME=VALUE"),
        (["show", "x.bmp"], "must be .png, .gif or .svg"),
        (["show", "x.png", "-o", "size=7", "--task", "vismaze-64-7x7/99"], "the tasks 0 to 63"),
        (["replay", "x.html", "--episode", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_playing_through_a_pipe_takes_words_and_suggests_the_nearest(tmp_path):
    way = [answer[8:-9] for answer in solved("VisMaze-v0", SMALL, draw_task(offer_of("VisMaze-v0", SMALL), 3)).answers]
    file = tmp_path / "played.jsonl"
    command = [*COMMAND, "play", "-o", "size=5", "-o", "cell_px=8", "--seed", "3", "--save", str(file)]
    done = subprocess.run(command, input="\n".join(["lft", *way]) + "\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Did you mean 'left'" in done.stdout and "Goal reached." in done.stdout and "A" in done.stdout
    assert len(read_episode(file).answers) == len(way)
    given_up = subprocess.run(command[:-2], input="", capture_output=True, text=True, check=False)
    assert given_up.returncode == 1 and "Given up." in given_up.stdout


def test_playing_at_a_terminal_takes_arrow_keys():
    way = [answer[8:-9] for answer in solved("VisMaze-v0", SMALL, draw_task(offer_of("VisMaze-v0", SMALL), 3)).answers]
    ours, theirs = pty.openpty()
    command = [*COMMAND, "play", "-o", "size=5", "-o", "cell_px=8", "--seed", "3"]
    playing = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    seen = b""
    for key in [{"up": b"A", "down": b"B", "right": b"C", "left": b"D"}[word] for word in way]:
        while b"Arrow keys" not in seen:
            seen += os.read(ours, 65_536)
        seen = b""
        os.write(ours, b"\x1b[" + key)
    try:
        while chunk := os.read(ours, 65_536):
            seen += chunk
    except OSError:  # how Linux says that the other end was closed
        pass
    assert playing.wait() == 0 and "▀".encode() in seen and b"Goal reached." in seen


def test_half_blocks_hold_two_pixels_a_character():
    picture = np.zeros((4, 3, 3), dtype=np.uint8)
    picture[0, 0] = (1, 2, 3)
    lines = half_blocks(picture, 80, 24).split("\n")
    assert len(lines) == 2 and lines[0].startswith("\x1b[38;2;1;2;3;48;2;0;0;0m▀") and lines[0].count("▀") == 3
    assert len(half_blocks(np.zeros((300, 300, 3), dtype=np.uint8), 40, 10).split("\n")) == 10


def test_help_names_the_commands():
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True)
    assert all(command in done.stdout for command in ("play", "show", "replay"))
