"""The report of a run: what it says, what it survives, and that it stays one file."""

import base64
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from grpo_runner.report import animation, axis, read_run, still, trail, write_report
from vismaze_hooks import load_plugins
from vismaze_hooks.text import make_text_environment

METRIC = {"reward/mean": 0.5, "reward/solved": 0.5, "groups/zero_variance": 0.4, "optim/lr": 1e-4, "something/new": 3.0}


@pytest.fixture(scope="module")
def offer():
    return load_plugins().create("environment", "VisMaze-v0", {"size": 7, "cell_px": 8})


@pytest.fixture(scope="module")
def tasks(offer):
    return {task.uid: task for task in offer.fixed_sets["vismaze-64-7x7"]()}


@pytest.fixture(scope="module")
def replay(offer, tasks):
    env = make_text_environment(offer)
    return lambda uid, answers: [env.start(tasks[uid])[0], *(env.step(answer)[0] for answer in answers)]


def episode(task, success, mode="greedy", sample=0, answers=("<action>up</action>", "<action>left</action>")):
    ending = "success" if success else "limit"
    return {
        "uid": task.uid,
        "mode": mode,
        "sample": sample,
        "success": success,
        "ending": ending,
        "moves": len(answers),
        "invalid": 0,
        "answers": list(answers),
        "move_limit": task.move_limit,
        "labels": dict(task.labels),
    }


def lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


def evaluate(folder, step, tasks, solves, **header):
    rows = [episode(task, solves(n), mode) for mode in ("greedy", "sampled") for n, task in enumerate(tasks)]
    lines(
        folder / "eval" / f"step_{step:08d}.jsonl",
        [{"step": step, "set": "vismaze-64-7x7", "weights": f"{step:064x}", "episodes": len(rows), **header}, *rows],
    )


@pytest.fixture
def folder(tmp_path, tasks):
    """A finished run: 24 of 64 solved at the start, 60 at the end, of which task 0 was lost."""
    lines(tmp_path / "metrics.jsonl", [{"step": n, "seconds": {"rollout": 1.0, "update": 2.0}, **METRIC} for n in range(1, 41)])
    events = [
        {"time": "2026-10-06T09:00:00Z", "attempt": 1, "event": "run_started"},
        {"time": "2026-10-06T09:01:00Z", "attempt": 1, "event": "engine_failed", "step": 7, "error": "no answer"},
        {"time": "2026-10-06T09:02:00Z", "attempt": 2, "event": "resumed", "step": 5},
    ]
    lines(tmp_path / "events.jsonl", events)
    evaluate(tmp_path, 0, tasks.values(), lambda n: n < 24)
    evaluate(tmp_path, 40, tasks.values(), lambda n: 0 < n < 61)
    summary = {
        "eval_start": {"solved": 24, "total": 64},
        "eval_final": {"solved": 60, "total": 64},
        "seeds": {"run": 7},
        "hashes": {"base_model": "c0ffee"},
        "wall_seconds": {"rollout": 40.0, "update": 80.0, "total": 150.0},
        "versions": {"torch": "2.13.0"},
        "config": {"optim": {"lr": 1e-4}, "plugins": []},
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def text(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)))


class Outline(HTMLParser):
    """Collects what a checker of documents looks at."""

    VOID = frozenset({"meta", "link", "img", "source", "input", "br"})

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.levels, self.pictures, self.links, self.srcs = [], [], [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if tag == "img":
            self.pictures.append(attrs.get("alt"))
        if "id" in attrs:
            self.ids.append(attrs["id"])
        self.links += [attrs["href"]] if "href" in attrs else []
        self.srcs += [attrs[name] for name in ("src", "srcset") if name in attrs]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing of its kind"


def test_the_headline_says_before_after_and_how_sure(folder, replay):
    path = write_report(folder, title="Maze run", replay=replay)
    assert path == folder / "report.html"
    page = path.read_text("utf-8")
    words = text(page)
    assert "24 → 60 of 64 solved" in words
    assert "37 newly solved, 1 lost, 23 solved both times, 3 never" in words
    assert "p = 2.8×10−10" in words  # 2 · (1 + 38) / 2³⁸
    assert "[27–50 %]" in words and "[85–98 %]" in words
    assert "lies above the rate before, 37.5 %" in words
    for shown in ("c0ffee", "2.13.0", "optim.lr", "something/new", "everything else", "engine failed", "↻ resumed"):
        assert shown in words


def test_the_page_is_one_sound_file(folder, replay, tasks):
    page = write_report(folder, title="Maze run", replay=replay).read_text("utf-8")
    assert len(page) < 3_000_000
    outline = Outline(page)
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.levels[0] == 1 and outline.levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(outline.levels, outline.levels[1:], strict=False))
    assert all(outline.pictures) and len(outline.pictures) > 2 * len(tasks)
    assert all(src.startswith("data:image/") for src in outline.srcs)
    assert all(link.startswith("data:") or link[1:] in outline.ids for link in outline.links)
    assert "http" not in page.replace("http-equiv", "")
    assert all(page.count(task) for task in tasks)


def test_everything_from_outside_is_escaped(folder, offer, tasks):
    evil = '"><script>alert(1)</script>'
    task = next(iter(tasks.values()))
    for step in (0, 40):
        row = episode(task, step > 0, answers=(evil, "<b>")) | {"uid": evil, "ending": evil, "labels": {evil: evil}}
        lines(folder / "eval" / f"step_{step:08d}.jsonl", [{"step": step, "set": evil, "weights": evil}, row])
    lines(folder / "events.jsonl", [{"event": evil, "error": {evil: evil}, "time": evil, evil: evil}])
    lines(folder / "metrics.jsonl", [{"step": 1, evil: 2.0, "seconds": {evil: 1.0}}])
    (folder / "summary.json").write_text(json.dumps({"hashes": {evil: evil}, "config": {evil: {evil: [evil]}}}))
    frame = np.zeros((56, 56, 3), np.uint8)
    page = write_report(folder, title=evil, replay=lambda uid, answers: [frame] * (len(answers) + 1)).read_text("utf-8")
    assert page.count("<script>") == 1 and "alert(1)</script>" not in page
    assert Outline(page).open == []


def test_a_run_going_on_says_so(folder, replay):
    (folder / "summary.json").unlink()
    (folder / "eval" / "step_00000040.jsonl").unlink()
    with (folder / "metrics.jsonl").open("a") as out:
        out.write('{"step": 39, "reward/mean": NaN}\n{"step": 41, "rew')
    words = text(write_report(folder, title="Maze run", replay=replay).read_text("utf-8"))
    assert "There is no summary.json: the run is still going on" in words
    assert "The last line of metrics.jsonl is incomplete" in words
    assert "Steps done again after a resume: 1." in words
    assert "reward/mean is not a finite number at 1 step(s)" in words
    assert "One evaluation so far" in words and "24 of 64 solved" in words
    assert "1 min 57 s in all, of the steps finished so far" in words  # 39 steps of 3 s; step 39 was redone without times


def test_a_run_that_has_only_begun_has_a_page(tmp_path, replay):
    for name in ("metrics.jsonl", "events.jsonl"):
        (tmp_path / name).write_text("")
    page = write_report(tmp_path, title="Maze run", replay=replay).read_text("utf-8")
    assert "No step has been finished yet" in page
    assert Outline(page).open == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_a_missing_file_is_named(folder, replay, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(name)):
        write_report(folder, title="Maze run", replay=replay)
    assert not (folder / "report.html").exists()


def test_a_missing_folder_is_named(tmp_path, replay):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_report(tmp_path / "nowhere", title="Maze run", replay=replay)


def test_damage_is_named(folder, replay):
    (folder / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary\.json: not JSON"):
        read_run(folder)
    (folder / "summary.json").write_text('{"eval_final": {"solved": 61}}')
    text_ = (folder / "metrics.jsonl").read_text().replace('{"step": 3,', '{"st{"step": 3,')
    (folder / "metrics.jsonl").write_text(text_)
    run = read_run(folder)
    assert "Line 3 of metrics.jsonl cannot be read: left out." in run.notices
    assert any("says 61 solved" in notice and "say 60" in notice for notice in run.notices)
    (folder / "eval" / "step_00000040.jsonl").write_text('{"uid": "a"}\n')
    with pytest.raises(ValueError, match=r"step_00000040\.jsonl: the first line must be a header"):
        read_run(folder)


def test_evaluations_of_another_set_are_left_out_and_said(folder, tasks):
    evaluate(folder, 20, tasks.values(), lambda n: True, set="other")
    run = read_run(folder)
    assert [evaluation.step for evaluation in run.evaluations] == [0, 40]
    assert any("at step 20" in notice for notice in run.notices)


def test_a_replay_of_the_wrong_length_is_an_error(folder):
    with pytest.raises(ValueError, match="replay of vismaze-64-7x7/0: 2 answers must give one frame more, got 1"):
        write_report(folder, title="Maze run", replay=lambda uid, answers: [np.zeros((8, 8, 3), np.uint8)])


def decoded(uri):
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_stills_are_exact_and_thinned_out_when_large(replay, tasks):
    frame = replay(next(iter(tasks)), [])[0]
    assert np.array_equal(np.asarray(decoded(still(frame)).convert("RGB")), frame)
    assert decoded(still(frame.repeat(4, 0).repeat(4, 1))).size == (75, 75)


def test_animations_show_every_frame_and_end_together(replay, tasks):
    uid = next(uid for uid, task in tasks.items() if task.labels["shortest"] == 4)
    short, long = (
        replay(uid, [f"<action>{word}</action>" for word in words]) for words in (["down"], ["down", "right", "left"])
    )
    times = []
    for frames in (short, long):
        picture, total = decoded(animation(frames, 4)), 0
        assert picture.size == (168, 168)
        for index in range(picture.n_frames):
            picture.seek(index)
            total += picture.info["duration"]
        assert np.array_equal(np.asarray(picture.convert("RGB"))[::3, ::3], frames[-1])
        times.append(total)
    assert times[0] == times[1]


def test_a_trail_shows_where_it_went(replay, tasks):
    frames = replay("vismaze-64-7x7/0", [f"<action>{word}</action>" for word in ("up", "up", "down")])
    picture = trail(frames)
    assert (picture != frames[-1]).any(-1).sum() > 0
    now = (frames[-1] != frames[1]).any(-1) & (frames[-1] != frames[0]).any(-1)
    assert np.array_equal(trail(frames[:1]), frames[0])
    assert np.array_equal(picture[now], frames[-1][now])
    noise = list(np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3)).astype(np.uint8))
    assert np.array_equal(trail(noise), noise[-1])


def test_axes_have_round_ticks_and_hold_everything():
    assert axis([0.03, 0.97]).ticks == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert axis([0, 120], tight=True).at(60) == 50
    assert axis([5.0, 5.0]).low <= 5 < axis([5.0]).high
    decades = axis([3e-6, 2e-5, 0.0], log=True)
    assert (decades.low, decades.high) == pytest.approx((1e-6, 1e-4))
    assert decades.at(1e-5) == 50 and decades.at(0.0) == 0
    assert axis([]).ticks and axis([1e-3], log=True).at(1e-3) == 0
