"""The tiny models are genuine, and the local engine samples from exactly what transformers computes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer, Qwen3VLForConditionalGeneration

from grpo_runner.base_model import ensure_base
from grpo_runner.chat import expand, rope_positions
from grpo_runner.config import ConfigError, parse
from grpo_runner.engine_local import LocalEngine
from grpo_runner.imitation import Imitation
from grpo_runner.pictures import encode, identify
from grpo_runner.policy import Policy, RowBuilder, collate, load_processors, save_weights
from vismaze_hooks import EnvironmentOffer, Request


def picture(seed: int, side: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def conversation(folder: Path, seeds: list[int]) -> tuple[tuple[int, ...], tuple]:
    """Ids and pictures of a conversation whose last turn waits for an answer."""
    processors = load_processors(folder)
    ids: list[int] = []
    for turn, _ in enumerate(seeds):
        ids.extend(processors.chat.observation("Go." if turn == 0 else "A wall is in the way.", 1, first=turn == 0))
        if turn < len(seeds) - 1:
            ids.extend(processors.chat.encode("<action>left</action><|im_end|>"))
    return tuple(ids), tuple(identify(picture(s)) for s in seeds)


def reference_logits(folder: Path, ids: tuple[int, ...], images: tuple) -> torch.Tensor:
    """Logits as plain transformers computes them, with its own positions: float [length, vocabulary]."""
    processors = load_processors(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    patches = processors.patches.get(images)
    counts = [p.grid[1] * p.grid[2] // processors.merge**2 for p in patches]
    expanded = torch.from_numpy(expand(ids, counts, processors.vocabulary.image_pad))[None]
    with torch.no_grad():
        return model(
            input_ids=expanded,
            mm_token_type_ids=(expanded == processors.vocabulary.image_pad).int(),
            pixel_values=torch.cat([p.values for p in patches]),
            image_grid_thw=torch.tensor([p.grid for p in patches]),
        ).logits[0]


def test_the_folder_loads_as_a_published_checkpoint_does(tiny: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(tiny)
    assert type(model) is Qwen3VLForConditionalGeneration
    assert 4e5 < sum(p.numel() for p in model.parameters()) < 1.5e6
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    ids = tokenizer("<action>left</action><|im_end|>").input_ids
    assert [tokenizer.decode([i]) for i in ids] == ["<action>", "left", "</action>", "<|im_end|>"]


def test_turns_are_what_the_chat_template_renders(tiny: Path) -> None:
    processors = load_processors(tiny)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Go."}, {"type": "image"}]},
        {"role": "assistant", "content": "<action>left</action>"},
        {"role": "user", "content": [{"type": "text", "text": "A wall is in the way."}, {"type": "image"}]},
    ]
    rendered = processors.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tuple(processors.tokenizer(rendered)["input_ids"]) == conversation(tiny, [1, 2])[0]


def test_rotary_positions_are_those_of_the_library(tiny: Path) -> None:
    processors = load_processors(tiny)
    model = AutoModelForImageTextToText.from_pretrained(tiny)
    pad, merge = processors.vocabulary.image_pad, processors.merge
    sizes = [(48, 96), (64, 64), (32, 32)] if merge == 1 else [(64, 128), (64, 64), (32, 32)]
    images = [identify(np.zeros((h, w, 3), dtype=np.uint8) + n) for n, (h, w) in enumerate(sizes)]
    grids = [p.grid for p in processors.patches.get(images)]
    counts = [g[1] * g[2] // merge**2 for g in grids]
    ids = expand([5, pad, 6, 7, pad, 8, pad], counts, pad)
    theirs, _ = model.model.get_rope_index(
        torch.from_numpy(ids)[None], torch.from_numpy(ids == pad).int()[None], torch.tensor(grids), attention_mask=None
    )
    mine = rope_positions(ids, [(g[1] // merge, g[2] // merge) for g in grids], pad)
    assert np.array_equal(mine, theirs[:, 0].numpy())


def test_rotary_positions_of_the_published_vector() -> None:
    ids = np.array([1, 2, 9, 9, 9, 9, 9, 9, 3])
    time, row, column = rope_positions(ids, [(2, 3)], 9)
    assert time.tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 5]
    assert row.tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 5]
    assert column.tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5]
    touching = rope_positions(np.array([1, 9, 9, 9, 9, 2]), [(1, 2), (1, 2)], 9)
    assert touching[2].tolist() == [0, 1, 2, 3, 4, 5]


def test_one_batch_of_pictures_equals_picture_by_picture(tiny: Path) -> None:
    processors = load_processors(tiny)
    library = AutoModelForImageTextToText.from_pretrained(tiny, dtype=torch.float32).model.visual
    ours = Policy(tiny, lora=None, seed=0).core.model.visual
    patches = processors.patches.get([identify(picture(s, side)) for s, side in ((1, 64), (2, 96), (3, 64))])
    batch = torch.cat(encode(ours, patches))
    with torch.no_grad():
        parts = torch.split(batch, [p.grid[1] * p.grid[2] // processors.merge**2 for p in patches])
        for patch, part in zip(patches, parts, strict=True):
            out = library(patch.values, grid_thw=torch.tensor([patch.grid]))
            torch.testing.assert_close(part[:, 0], out.pooler_output, atol=2e-5, rtol=1e-5)
            torch.testing.assert_close(part[:, -1], out.deepstack_features[-1], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("turns", [1, 3])
def test_rows_of_any_company_give_the_logits_of_transformers(tiny: Path, turns: int) -> None:
    policy, processors = Policy(tiny, lora=None, seed=0), load_processors(tiny)
    talks = [conversation(tiny, list(range(n, n + turns - n % 2))) for n in (0, 2)] + [conversation(tiny, [7, 8, 9, 10])]
    talks = [t for t in talks if t[1]]
    builder = RowBuilder(processors)
    rows = [builder.build(*talk) for talk in talks]
    images = [i for _, pictures in talks for i in pictures]
    features = torch.cat(encode(policy.core.model.visual, processors.patches.get(images)))
    hidden = policy.hidden(collate(rows, processors.vocabulary.pad), features)
    logits = torch.nn.functional.linear(hidden, policy.head)
    for number, talk in enumerate(talks):
        expected = reference_logits(tiny, *talk)
        torch.testing.assert_close(logits[number, -len(expected) :], expected, atol=1e-4, rtol=1e-4)


def ask(folder: Path, seeds: list[int], seed: int, *, temperature: float = 1.0, session: str = "s", limit: int = 6) -> Request:
    ids, images = conversation(folder, seeds)
    return Request(ids, images, seed, limit, temperature, session)


def test_sampled_logprobs_are_those_of_transformers(tiny: Path) -> None:
    engine, processors = LocalEngine(model=str(tiny)), load_processors(tiny)
    requests = [ask(tiny, [1], 11), ask(tiny, [1], 12), ask(tiny, [2, 3], 13, temperature=0.7), ask(tiny, [4], 14)]
    for request, completion in zip(requests, engine.generate(requests), strict=True):
        logits = reference_logits(tiny, request.prompt_ids + completion.token_ids, request.images)
        logits[:, list(processors.vocabulary.banned)] = -torch.inf
        logprobs = torch.log_softmax(logits / request.temperature, -1)[-len(completion.token_ids) - 1 : -1]
        taken = logprobs.gather(1, torch.tensor(completion.token_ids)[:, None]).squeeze(1)
        assert np.allclose(taken.numpy(), completion.logprobs, atol=1e-4)


def test_an_answer_depends_on_its_own_request_only(tiny: Path) -> None:
    requests = [ask(tiny, [n % 5], 100 + n) for n in range(40)] + [ask(tiny, [1, 2], 7)]
    together = LocalEngine(model=str(tiny)).generate(requests)
    alone = [LocalEngine(model=str(tiny)).generate([r])[0] for r in requests[:6]]
    assert [c.token_ids for c in together[:6]] == [c.token_ids for c in alone]
    backwards = LocalEngine(model=str(tiny)).generate(requests[::-1])[::-1]
    assert [c.token_ids for c in backwards] == [c.token_ids for c in together]
    assert len({c.token_ids for c in together}) > 20, "seeds must matter"


@pytest.mark.parametrize("keep", [False, True])
def test_threads_change_no_answer(tiny: Path, monkeypatch: pytest.MonkeyPatch, keep: bool) -> None:
    monkeypatch.setattr("grpo_runner.engine_local.ROWS", 5)

    def played() -> list:
        engine = LocalEngine(model=str(tiny), keep_history=keep)
        found = []
        for turns in (1, 2):
            requests = [ask(tiny, [n % 9, 9 + n][:turns], 100 * turns + n, session=str(n)) for n in range(33)]
            found.append(engine.generate(requests))
        return found

    alone = played()
    with ThreadPoolExecutor(3) as threads:
        monkeypatch.setattr("grpo_runner.lanes._pool", threads)
        assert all(played() == alone for _ in range(3)), "tokens and log-probs, to the last digit"


def test_sampling_follows_the_distribution(tiny_plain: Path) -> None:
    engine = LocalEngine(model=str(tiny_plain))
    requests = [ask(tiny_plain, [1], n, limit=1) for n in range(4000)]
    completions = engine.generate(requests)
    counts: dict[int, int] = {}
    chance: dict[int, float] = {}
    for completion in completions:
        counts[completion.token_ids[0]] = counts.get(completion.token_ids[0], 0) + 1
        chance[completion.token_ids[0]] = float(np.exp(completion.logprobs[0]))
    top = max(counts, key=counts.__getitem__)
    spread = (chance[top] * (1 - chance[top]) / 4000) ** 0.5
    assert abs(counts[top] / 4000 - chance[top]) < 5 * spread


def test_kept_keys_and_values_change_no_answer(tiny: Path) -> None:
    kept, plain = LocalEngine(model=str(tiny), keep_history=True), LocalEngine(model=str(tiny))
    for turns in (1, 2, 3):
        requests = [ask(tiny, [n, 5 + n, 9 + n][:turns], 10 * turns + n, session=str(n)) for n in range(4)]
        for a, b in zip(kept.generate(requests), plain.generate(requests), strict=True):
            assert a.token_ids == b.token_ids
            assert np.allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_a_session_that_begins_anew_is_answered_from_its_own_prompt(tiny: Path) -> None:
    kept, plain = LocalEngine(model=str(tiny), keep_history=True), LocalEngine(model=str(tiny))
    talks = [[1], [1, 2], [1], [3], [3, 4, 5], [3, 4]]  # grows, begins again, another one, skips a turn, goes back
    for number, talk in enumerate(talks):
        requests = [ask(tiny, talk, number, session="a"), ask(tiny, [7, 8, 9, 10, 11, 12][: number + 1], number, session="b")]
        for a, b in zip(kept.generate(requests), plain.generate(requests), strict=True):
            assert a.token_ids == b.token_ids
            assert np.allclose(a.logprobs, b.logprobs, atol=1e-4)


def passes_of(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the rows of each forward pass of an engine."""
    rows: list[int] = []
    hidden = engine.policy.hidden
    monkeypatch.setattr(engine.policy, "hidden", lambda batch, *rest: rows.append(len(batch.ids)) or hidden(batch, *rest))
    return rows


def test_a_question_asked_again_in_a_rollout_costs_nothing(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, fresh = LocalEngine(model=str(tiny)), LocalEngine(model=str(tiny))
    first = [ask(tiny, [1], n, session=str(n)) for n in range(12)]
    engine.generate(first)
    rows = passes_of(engine, monkeypatch)
    assert engine.generate(first) == fresh.generate(first) and rows == []
    again = [ask(tiny, [1], 100 + n, session=str(n), limit=6) for n in range(12)]  # other draws leave the known paths
    for a, b in zip(engine.generate(again), fresh.generate(again), strict=True):
        assert a.token_ids == b.token_ids
        assert np.allclose(a.logprobs, b.logprobs, atol=1e-5)
    assert rows, "an answer that nobody gave before needs the model"


def test_what_was_said_is_forgotten_with_the_rollout_and_with_the_weights(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LocalEngine(model=str(tiny))
    rows = passes_of(engine, monkeypatch)
    engine.generate([ask(tiny, [1], 1, session="a")])
    once = len(rows)
    engine.generate([ask(tiny, [1], 1, session="b")])  # no session goes on: another rollout
    assert len(rows) == 2 * once
    policy = Policy(tiny, lora=None, seed=0)
    with torch.no_grad():
        policy.core.model.language_model.norm.weight.mul_(-1.0)
    save_weights(policy, tmp_path)
    engine.publish(tmp_path, 1)
    completion = engine.generate([ask(tiny, [1], 1, session="b")])[0]
    assert len(rows) > 2 * once and completion.weights_version == 1


def test_a_full_memo_changes_no_answer(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [ask(tiny, [n % 3], n, session=str(n)) for n in range(9)]
    expected = LocalEngine(model=str(tiny)).generate(requests)
    monkeypatch.setattr("grpo_runner.engine_local.MEMO_BYTES", 4000)
    engine = LocalEngine(model=str(tiny))
    for _ in range(2):
        assert [c.token_ids for c in engine.generate(requests)] == [c.token_ids for c in expected]


def test_a_distinct_picture_is_encoded_once(tiny_plain: Path) -> None:
    engine = LocalEngine(model=str(tiny_plain), lora={"rank": 4, "alpha": 8.0, "targets": "language"})
    engine.features.clear()
    before = engine.features.encoded
    for turns in (1, 2, 3):
        engine.generate([ask(tiny_plain, [1, 2, 3][:turns], n) for n in range(8)])
    assert engine.features.encoded - before == 3


def test_the_picture_matters_and_must_be_there(tiny: Path) -> None:
    engine = LocalEngine(model=str(tiny))
    seen, other = (engine.generate([ask(tiny, [s], 3, temperature=0.0)])[0] for s in (1, 2))
    assert abs(seen.logprobs[0] - other.logprobs[0]) > 1e-4
    ids, images = conversation(tiny, [1, 2])
    with pytest.raises(ValueError, match="2 image placeholders for 1 pictures"):
        engine.generate([Request(ids, images[:1], 0, 4, 1.0)])


def test_placeholders_are_never_sampled(tiny_plain: Path) -> None:
    engine, processors = LocalEngine(model=str(tiny_plain)), load_processors(tiny_plain)
    with torch.no_grad():  # a model that wants nothing but pictures
        engine.policy.core.lm_head.weight[processors.vocabulary.image_pad] *= 50
    completions = engine.generate([ask(tiny_plain, [1], n) for n in range(200)])
    assert not {t for c in completions for t in c.token_ids} & set(processors.vocabulary.banned)


def test_a_folder_without_processor_is_refused(tiny_plain: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((tiny_plain / name).read_bytes())
    with pytest.raises(ValueError, match=r"has no preprocessor_config\.json"):
        load_processors(tmp_path)


def test_a_session_that_asks_the_same_again_gets_the_same_answer(tiny_plain: Path) -> None:
    """As the canary does: equal questions, one of them shorter, with a kept history that they do not extend."""
    engine = LocalEngine(model=str(tiny_plain), keep_history=True)
    asked = [Request(*conversation(tiny_plain, seeds), 7, 4, 1.0, f"s{n}") for n, seeds in enumerate(([1], [2, 3], [4, 5, 6]))]
    first = engine.generate(asked[:1]) + engine.generate(asked[1:])
    assert [c.token_ids for c in engine.generate(asked)] == [c.token_ids for c in first]


def test_a_warm_start_without_a_target_takes_all_its_steps(
    tmp_path: Path, maze5: EnvironmentOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    step = Imitation.step
    monkeypatch.setattr(Imitation, "step", lambda self, samples, *, lr: (rates.append(lr), step(self, samples, lr=lr))[1])
    table = {
        "run": {"folder": str(tmp_path / "run"), "steps": 1},
        "model": {"path": str(tmp_path / "base"), "tiny": {"vision_depth": 2}},
        "environment": {"id": "VisMaze-v0", "options": {"size": 5, "cell_px": 8}},
        "tasks": {"evaluation": "vismaze-5x5", "tuning": "vismaze-5x5"},
        "warm_start": {"max_steps": 52, "batch": 1, "turns": 1, "check_every": 50, "habits": {"greedy": 0.5}},
        "rollout": {"tasks": 2, "samples": 2, "history": 0},
        "train": {"lr": 1e-3},
        "evaluation": {"every": 1},
    }
    said: list[str] = []
    config = parse(table, "test")
    record = ensure_base(config, maze5, said.append)
    assert (rates[0], rates[49], rates[50], rates[-1]) == (2e-5, 1e-3, 1e-3, 0.0) and len(rates) == 52
    assert [look["step"] for look in record["warm_start"]] == [50, 52]
    assert [look.get("chosen") for look in record["warm_start"]] == [None, True]
    assert record["recipe"]["warm_start"]["habits"] == {"greedy": 0.5}
    assert ensure_base(config, maze5, said.append) == record and "is there already" in said[-1]
    changed = parse({**table, "warm_start": {**table["warm_start"], "habits": {"greedy": 0.4}}}, "test")
    with pytest.raises(ConfigError, match="made by another recipe"):
        ensure_base(changed, maze5, said.append)
