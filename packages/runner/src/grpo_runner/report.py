"""The report of a run: one HTML file without outside parts, to be looked at, mailed or printed.

It reads the files of a run folder and nothing else; the pictures are made again by replaying the stored answers. What is
shown where, and every word of it, is in `templates/report.html.j2`; here are the facts, the scales and the pictures.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from PIL import Image

from grpo_runner import statistics
from grpo_runner.files import write_atomic
from grpo_runner.statistics import Fate

Row = dict[str, Any]
Replay = Callable[[str, Sequence[str]], list[np.ndarray]]

THUMBNAIL_PX = 96  # longest side kept of a still picture
ANIMATION_PX = 168  # what animations are enlarged to
ANIMATION_FRAMES = 64
STRIP_FRAMES = 24
CURVE_POINTS = 400


@dataclass(frozen=True)
class Evaluation:
    """One file of `eval/`."""

    step: int
    header: Row
    greedy: list[Row]  # one episode a task
    sampled: list[Row]  # any number a task


@dataclass(frozen=True)
class Run:
    """The files of a run folder, read."""

    metrics: list[dict[str, float]]  # by step, flat keys (`seconds/rollout`), finite numbers only
    events: list[Row]
    evaluations: list[Evaluation]  # by step, all of one fixed set
    summary: Row  # empty while there is no summary.json
    notices: list[str]  # what a reader has to know about what is missing or damaged


def write_report(run_folder: Path, *, title: str, replay: Replay) -> Path:
    """Write `report.html` into a run folder and return its path.

    Args:
        run_folder: holds `metrics.jsonl` and `events.jsonl`, and as far as the run has come `eval/` and `summary.json`.
        replay: `(task uid, answers)` → the RGB uint8 frames of the episode: the first picture, and one after each answer.

    Raises:
        FileNotFoundError: the folder, `metrics.jsonl` or `events.jsonl` is not there.
        ValueError: `summary.json` or an evaluation cannot be read, or a replay has not one frame for each answer.
    """
    run = read_run(run_folder)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("grpo_runner"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.globals.update(axis=axis, curve=partial(statistics.thin, run.metrics, parts=CURVE_POINTS), stats=statistics)
    page = environment.get_template("report.html.j2").render(title=title, run=run, **outcome(run, replay))
    write_atomic(run_folder / "report.html", page)
    return run_folder / "report.html"


def read_run(folder: Path) -> Run:
    """Read a run folder; what is damaged or missing and can be left out becomes a notice."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such run folder")
    notices: list[str] = []
    metrics = _read_metrics(folder / "metrics.jsonl", notices)
    events = _read_lines(folder / "events.jsonl", notices)
    found = [_read_evaluation(path, notices) for path in (folder / "eval").glob("step_*.jsonl")]
    found.sort(key=lambda evaluation: evaluation.step)
    evaluations = [e for e in found if e.greedy and e.header.get("set") == found[-1].header.get("set")]
    others = [str(e.step) for e in found if e not in evaluations]
    if others:
        notices.append(f"Evaluations of another set, or without greedy episodes, are left out: at step {', '.join(others)}.")
    path, summary = folder / "summary.json", {}
    try:
        summary = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        notices.append("There is no summary.json: the run is still going on, or was stopped. Shown is what is there so far.")
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    for name, ends in (("eval_start", evaluations[:1]), ("eval_final", evaluations[-1:])):
        said, solved = (summary.get(name) or {}).get("solved"), sum(row["success"] for e in ends for row in e.greedy)
        if ends and said not in (None, solved):
            notices.append(f"summary.json says {said} solved ({name}), the episodes in eval/ say {solved}: shown are they.")
    if evaluations and {row["uid"] for row in evaluations[0].greedy} != {row["uid"] for row in evaluations[-1].greedy}:
        notices.append("The first and the last evaluation are not of the same tasks: pairs are of the tasks in both.")
    return Run(metrics, events, evaluations, summary, notices)


def _read_lines(path: Path, notices: list[str]) -> list[Row]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; is {path.parent} the folder of a run?")
    lines = path.read_text("utf-8", errors="replace").split("\n")
    records = []
    for count, line in enumerate(lines, 1):
        try:
            record = json.loads(line) if line.strip() else None
        except ValueError:
            record = line
        if isinstance(record, dict):
            records.append(record)
        elif record is not None and count == len(lines):
            notices.append(f"The last line of {path.name} is incomplete, as a killed writer leaves it: left out.")
        elif record is not None:
            notices.append(f"Line {count} of {path.name} cannot be read: left out.")
    return records


def _read_metrics(path: Path, notices: list[str]) -> list[dict[str, float]]:
    by_step: dict[int, dict[str, float]] = {}
    again, odd = 0, Counter[str]()
    for record in _read_lines(path, notices):
        nested = ((key, value if isinstance(value, dict) else {"": value}) for key, value in record.items())
        flat = {f"{key}/{inner}".rstrip("/"): value for key, values in nested for inner, value in values.items()}
        numbers = {key: value for key, value in flat.items() if isinstance(value, int | float) and not isinstance(value, bool)}
        finite = {key: value for key, value in numbers.items() if math.isfinite(value)}
        odd.update(numbers.keys() - finite.keys())
        if "step" in finite:
            again += finite["step"] in by_step
            by_step[int(finite["step"])] = finite
    if again:
        notices.append(f"Steps done again after a resume: {again}. Shown is the last time.")
    notices += [f"{key} is not a finite number at {count} step(s): a gap in its curve." for key, count in sorted(odd.items())]
    return [by_step[step] for step in sorted(by_step)]


def _read_evaluation(path: Path, notices: list[str]) -> Evaluation:
    header, *rows = _read_lines(path, notices) or [{}]
    if "step" not in header:
        raise ValueError(f"{path}: the first line must be a header with `step` and `set`")
    rows = [{"labels": {}, "invalid": 0, "answers": [], "moves": len(row.get("answers", [])), **row} for row in rows]
    if any(not {"uid", "mode", "success"} <= row.keys() for row in rows):
        raise ValueError(f"{path}: every episode needs `uid`, `mode` and `success`")
    greedy, sampled = ([row for row in rows if row["mode"] == mode] for mode in ("greedy", "sampled"))
    return Evaluation(int(header["step"]), header, greedy, sampled)


def outcome(run: Run, replay: Replay) -> dict[str, Any]:
    """Return what the page says of the first and the last evaluation: rates, the paired test, strata, tiles and films."""
    ends = run.evaluations[:1] + run.evaluations[1:][-1:]
    rows = [{row["uid"]: row for row in end.greedy} for end in ends]
    solved = [{uid: bool(row["success"]) for uid, row in side.items()} for side in rows] or [{}]
    fates = statistics.compare(solved[0], solved[-1])
    frames = [{uid: _replayed(side[uid], replay) for uid in fates} for side in rows]
    tiles = {}
    for uid in sorted(fates, key=lambda uid: rows[-1][uid]["labels"].get("shortest", 0)):
        sides = [
            {
                "row": side[uid],
                "picture": still(trail(shown[uid])),
                "sampled": [row["success"] for row in end.sampled if row["uid"] == uid],
            }
            for side, shown, end in zip(rows, frames, ends, strict=True)
        ]
        tiles[uid] = {"uid": uid, "fate": fates[uid], "labels": rows[-1][uid]["labels"], "sides": sides}
    counts = Counter(fates.values())
    labels = sorted(
        {key for tile in tiles.values() for key in tile["labels"]}, key=lambda k: (k != "shortest", k != "class", k)
    )
    chosen = statistics.choose({uid: fates[uid] for uid in tiles})
    return {
        "ends": [{"evaluation": end, **statistics.summarize(end.greedy)} for end in ends],
        "counts": counts,
        "p": statistics.mcnemar_exact(counts[Fate.LOST], counts[Fate.WON]),
        "strata": {k: [{s.stratum: s for s in statistics.by_stratum(side.values(), k)} for side in rows] for k in labels},
        "tiles": list(tiles.values()),
        "films": [_film(tiles[uid], [side[uid] for side in frames]) for uid in chosen],
    }


def _replayed(row: Row, replay: Replay) -> list[np.ndarray]:
    frames = replay(row["uid"], row["answers"])
    if len(frames) != len(row["answers"]) + 1:
        raise ValueError(f"replay of {row['uid']}: {len(row['answers'])} answers must give one frame more, got {len(frames)}")
    return frames


def still(frame: np.ndarray) -> str:
    """Return a picture, thinned out to `THUMBNAIL_PX`, as a PNG data URI."""
    stride = -(-max(frame.shape[:2]) // THUMBNAIL_PX)
    return _data_uri(_paletted([frame[::stride, ::stride]]), "png", optimize=True)


def animation(frames: Sequence[np.ndarray], shown: int) -> str:
    """Return frames as an animated GIF data URI; the last one stays until `shown` frames have passed, and a second more."""
    every = -(-len(frames) // ANIMATION_FRAMES)
    kept = [*frames[:-1:every], frames[-1]]
    side = max(frames[0].shape[:2])
    stride, scale = -(-side // (2 * ANIMATION_PX)), max(1, ANIMATION_PX // side)
    images = _paletted([frame[::stride, ::stride].repeat(scale, 0).repeat(scale, 1) for frame in kept])
    waits = [400 * every] * (len(kept) - 1) + [400 * max(1, shown - every * (len(kept) - 1)) + 1200]
    return _data_uri(images, "gif", duration=waits, loop=0)


def trail(frames: Sequence[np.ndarray]) -> np.ndarray:
    """Return the last frame with faint copies of whatever moved, where it was before.

    What stays is, at each pixel, the colour of most distinct frames. Where too few frames or too much change make that
    meaningless (a first-person view), it is the last frame alone.
    """
    distinct = np.stack(list({frame.tobytes(): frame for frame in frames}.values())).astype(np.int64)
    codes = np.sort(distinct @ [1 << 16, 1 << 8, 1], axis=0)[len(distinct) // 2]
    ground = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=-1)
    if len(distinct) < 3 or (distinct != ground).any(-1).mean() > 0.25:
        return frames[-1]
    picture = ground.astype(np.float64)
    for frame, share in [*((frame, 0.45) for frame in distinct), (frames[-1], 1.0)]:
        where = (frame != ground).any(-1)
        picture[where] = (1 - share) * ground[where] + share * frame[where]
    return picture.round().astype(np.uint8)


def _film(tile: Row, frames: Sequence[Sequence[np.ndarray]]) -> Row:
    """Return a tile with an animation and a strip of frames for each side; of a long strip the middle is left out."""
    sides = []
    for side, pictures in zip(tile["sides"], frames, strict=True):
        strip = [
            {"picture": still(after), "answer": answer, "same": np.array_equal(before, after)}
            for answer, before, after in zip(side["row"]["answers"], pictures[:-1], pictures[1:], strict=True)
        ]
        left_out = max(0, len(strip) - STRIP_FRAMES)
        shown = {"strip": strip[: len(strip) - left_out - 1] + strip[-1:], "left_out": left_out}
        ends = {"first": still(pictures[0]), "last": still(pictures[-1]), "gif": animation(pictures, max(map(len, frames)))}
        sides.append({**side, **shown, **ends})
    return {**tile, "sides": sides}


def _paletted(frames: Sequence[np.ndarray]) -> list[Image.Image]:
    """Return frames of one size as images that share one palette: exact up to 256 colours."""
    height = len(frames[0])
    whole = Image.fromarray(np.concatenate(frames)).quantize(256, dither=Image.Dither.NONE)
    return [whole.crop((0, top, whole.width, top + height)) for top in range(0, whole.height, height)]


def _data_uri(images: Sequence[Image.Image], kind: str, **options: Any) -> str:
    out = io.BytesIO()
    more = {"save_all": True, "append_images": images[1:]} if len(images) > 1 else {}
    images[0].save(out, kind, **more, **options)
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}"


@dataclass(frozen=True)
class Axis:
    """A scale from values to 0…100, the sides of the square that the page draws in and stretches."""

    low: float
    high: float
    log: bool
    ticks: list[float]

    def at(self, value: float) -> float:
        """Return where a value lies; what a log axis cannot show lies at its low end."""
        low, high, value = (math.log10(max(v, self.low)) if self.log else v for v in (self.low, self.high, value))
        return round(100 * (value - low) / (high - low), 2)


def axis(
    values: Iterable[float | None],
    *,
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    tight: bool = False,
) -> Axis:
    """Return an axis that holds all values (and `low`, `high`), with about four round ticks (powers of ten).

    It begins and ends at a tick, or, `tight`, at the least and the greatest value.
    """
    known = [v for v in (*values, low, high) if v is not None and (v > 0 or not log)] or [1.0]
    if log:
        powers = range(math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)) + 1e-9) + 1)
        powers = powers if len(powers) > 1 else range(powers[0], powers[0] + 2)
        return Axis(10.0 ** powers[0], 10.0 ** powers[-1], True, [10.0**n for n in powers[:: -(-len(powers) // 5)]])
    bottom, top = min(known), max(known)
    top += (bottom == top) * (abs(top) or 1.0)
    power = 10.0 ** math.floor(math.log10((top - bottom) / 4))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= (top - bottom) / 4 * (1 - 1e-9))
    ticks = [n * step for n in range(math.floor(bottom / step + 1e-9), math.ceil(top / step - 1e-9) + 1)]
    return (
        Axis(bottom, top, False, [n for n in ticks if bottom <= n <= top]) if tight else Axis(ticks[0], ticks[-1], False, ticks)
    )
