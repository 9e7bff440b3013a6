"""Conversations as token ids. Segments are tokenised once; what was sampled is never tokenised again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
PLACEHOLDERS = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")


@dataclass(frozen=True)
class Vocabulary:
    """The ids that the runner itself must know."""

    end_of_turn: int
    image_pad: int
    pad: int
    banned: tuple[int, ...]  # vision placeholders: never sampled, so that no answer can claim a picture


def vocabulary(tokenizer: object) -> Vocabulary:
    """Read the special ids from a tokenizer.

    Raises:
        ValueError: the tokenizer lacks one of Qwen's chat or vision tokens.
    """
    known = tokenizer.get_vocab()  # type: ignore[attr-defined]
    lacking = [t for t in (IM_START, IM_END, "<|image_pad|>", "<|vision_start|>", "<|vision_end|>") if t not in known]
    if lacking:
        raise ValueError(f"the tokenizer has no {', '.join(lacking)}; a Qwen-VL tokenizer is needed")
    banned = tuple(known[t] for t in PLACEHOLDERS if t in known)
    pad = tokenizer.pad_token_id  # type: ignore[attr-defined]
    return Vocabulary(known[IM_END], known["<|image_pad|>"], pad if pad is not None else known[IM_END], banned)


class Chat:
    """Builds the ids of ChatML turns from text, pictures and sampled ids."""

    def __init__(self, tokenizer: object) -> None:
        self._tokenizer = tokenizer
        self._cache: dict[str, tuple[int, ...]] = {}
        self._texts: dict[tuple[int, ...], str] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a piece of text that may hold special tokens; every piece is tokenised once."""
        ids = self._cache.get(text)
        if ids is None:
            ids = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])  # type: ignore[operator]
            if len(self._cache) < 65_536:
                self._cache[text] = ids
        return ids

    def observation(self, text: str, pictures: int, *, first: bool, closed: bool = True) -> tuple[int, ...]:
        """Return the ids of a user turn up to where the assistant begins.

        Args:
            pictures: how many follow the text.
            first: nothing stands before it.
            closed: the assistant turn before it ended with its end-of-turn token (else that token is added here).
        """
        lead = "" if first else ("\n" if closed else f"{IM_END}\n")
        return self.encode(f"{lead}{IM_START}user\n{text}{IMAGE * pictures}{IM_END}\n{IM_START}assistant\n")

    def decode(self, ids: Sequence[int], vocabulary: Vocabulary) -> str:
        """Return the text of an answer without its end-of-turn token. A rollout decodes thousands, few of them differ."""
        kept = tuple(ids[:-1] if ids and ids[-1] == vocabulary.end_of_turn else ids)
        text = self._texts.get(kept)
        if text is None:
            text = self._tokenizer.decode(list(kept), skip_special_tokens=False)  # type: ignore[attr-defined]
            if len(self._texts) < 65_536:
                self._texts[kept] = text
        return text


def expand(ids: Sequence[int], counts: Sequence[int], image_pad: int) -> np.ndarray:
    """Repeat each image placeholder as often as its picture has visual tokens.

    Raises:
        ValueError: placeholders and pictures do not match in number.
    """
    array = np.asarray(ids, dtype=np.int64)
    repeats = np.ones(len(array), dtype=np.int64)
    places = np.flatnonzero(array == image_pad)
    if len(places) != len(counts):
        raise ValueError(f"{len(places)} image placeholders for {len(counts)} pictures")
    repeats[places] = counts
    return np.repeat(array, repeats)


def rope_positions(ids: np.ndarray, grids: Sequence[tuple[int, int]], image_pad: int) -> np.ndarray:
    """Return the three-dimensional rotary positions (time, row, column) of expanded ids: int64 [3, length].

    Text advances all three together; a picture of r x c visual tokens starts at p and takes rows p…p+r-1 and columns
    p…p+c-1; the text after it starts at p + max(r, c) (Qwen3-VL, `get_rope_index`).

    Args:
        grids: rows and columns of visual tokens of each picture.
    """
    return _positions((ids == image_pad).tobytes(), tuple(grids))


@lru_cache(maxsize=1024)
def _positions(of_picture: bytes, grids: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Return the positions of ids of which it is known whether they are a picture's: most prompts of a run are alike."""
    is_image = np.frombuffer(of_picture, dtype=np.bool_)
    length = len(is_image)
    out = np.empty((3, length), dtype=np.int64)
    edges = np.flatnonzero(np.diff(is_image)) + 1
    bounds = [0, *edges.tolist(), length]
    position, picture = 0, 0
    for start, end in pairwise(bounds):
        if start == end:
            continue
        if not is_image[start]:
            out[:, start:end] = np.arange(position, position + end - start)
            position += end - start
            continue
        at = start
        while at < end:  # pictures that touch each other are still several pictures
            rows, columns = grids[picture]
            n = rows * columns
            out[0, at : at + n] = position
            out[1, at : at + n] = position + np.repeat(np.arange(rows), columns)
            out[2, at : at + n] = position + np.tile(np.arange(columns), rows)
            position += max(rows, columns)
            picture += 1
            at += n
    out.flags.writeable = False  # shared
    return out
