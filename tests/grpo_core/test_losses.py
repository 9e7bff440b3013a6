"""Policy losses and KL: gradients against numbers, masks that select, metrics that add up, and what is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core import (
    aggregate,
    aggregation_weights,
    kl_estimate,
    kl_loss,
    merge_metrics,
    metric_means,
    policy_loss,
    rollout_correction,
    step_denominator,
)
from grpo_core.losses import LOSS_KINDS

AGGREGATIONS = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"]


def batch(seed=0, rows=4, width=7, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, width, generator=draw, dtype=dtype) * 3 - 0.1
    new = old + 0.3 * torch.randn(rows, width, generator=draw, dtype=dtype)
    advantages = torch.randn(rows, 1, generator=draw, dtype=dtype)
    mask = torch.rand(rows, width, generator=draw) < 0.7
    mask[-1] = False
    return new, old, advantages, mask


def numeric_gradient(function, x, step=1e-6):
    gradient = torch.zeros_like(x)
    for place in range(x.numel()):
        moved = torch.zeros_like(x).reshape(-1)
        moved[place] = step
        moved = moved.reshape(x.shape)
        gradient.view(-1)[place] = (function(x + moved) - function(x - moved)) / (2 * step)
    return gradient


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kind", ["ppo", "sapo", "gmpo", "dppo_tv"])
def test_the_gradient_is_that_of_the_value(kind, aggregation):
    new, old, advantages, mask = batch()
    options = {"kind": kind, "aggregation": aggregation, "denominator": 5.0}
    loss, _ = policy_loss(new.requires_grad_(), old, advantages, mask, **options)
    expected = numeric_gradient(lambda x: policy_loss(x, old, advantages, mask, **options)[0], new.detach())
    torch.testing.assert_close(torch.autograd.grad(loss, new)[0], expected, atol=1e-7, rtol=1e-6)


def test_gspo_equals_the_sequence_ratio_written_out():
    new, old, advantages, mask = batch()
    loss, _ = policy_loss(
        new.requires_grad_(), old, advantages, mask, denominator=3.0, kind="gspo", clip_low=0.05, clip_high=0.05,
        aggregation="seq_mean_token_mean",
    )  # fmt: skip
    lengths = mask.sum(1).clamp(min=1)
    ratio = (((new - old) * mask).sum(1) / lengths).exp()
    advantage = advantages.squeeze(1)
    terms = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.95, 1.05))[mask.any(1)]
    torch.testing.assert_close(loss, terms.sum() / 3)
    torch.testing.assert_close(torch.autograd.grad(loss, new)[0], torch.autograd.grad(terms.sum() / 3, new)[0])


def test_cispo_weighs_the_policy_gradient_and_drops_no_token():
    new, old, advantages, mask = batch()
    loss, metrics = policy_loss(new.requires_grad_(), old, advantages, mask, denominator=1.0, kind="cispo", ratio_max=1.1)
    weight = (new - old).exp().clamp(0.8, 1.1).detach()
    torch.testing.assert_close(torch.autograd.grad(loss, new)[0], torch.where(mask, -weight * advantages, 0.0))
    assert metrics["policy/clip_high_sum"] > 0


@pytest.mark.parametrize("kind", LOSS_KINDS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_nothing_outside_the_mask_leaks(kind, aggregation):
    new, old, advantages, mask = batch(dtype=torch.float32)
    options = {"kind": kind, "aggregation": aggregation, "denominator": 3.0}
    clean = new.clone().requires_grad_()
    loss, metrics = policy_loss(clean, old, advantages.expand_as(old), mask, **options)
    loss.backward()
    for bad in (math.nan, math.inf, -math.inf):
        dirty = torch.where(mask, new, bad).requires_grad_()
        spoiled, same = policy_loss(
            dirty, torch.where(mask, old, -bad), torch.where(mask, advantages, bad), mask,
            correction=torch.where(mask, 1.0, bad), entropy=torch.full_like(new, 1.0).where(mask, bad), **options,
        )  # fmt: skip
        spoiled.backward()
        assert torch.equal(loss, spoiled) and torch.equal(clean.grad, dirty.grad)
        assert all(torch.equal(metrics[name], same[name]) for name in metrics)
        assert (dirty.grad[~mask] == 0).all()


@pytest.mark.parametrize("kind", LOSS_KINDS)
@pytest.mark.parametrize("packed", [False, True])
def test_an_all_masked_batch_is_zero_with_a_graph(kind, packed):
    shape = (6,) if packed else (2, 3)
    new = torch.full(shape, math.nan, requires_grad=True)
    ids = torch.tensor([0, 0, 0, 1, 1, 1]) if packed else None
    mask = torch.zeros(shape, dtype=torch.bool)
    loss, metrics = policy_loss(new, new.detach(), new.detach(), mask, denominator=0.0, kind=kind, sequence_ids=ids)
    loss.backward()
    assert loss == 0 and (new.grad == 0).all()
    assert all(math.isfinite(value) for value in metric_means(metrics).values())
    kl, _ = kl_loss(new, new.detach(), mask, denominator=0.0)
    assert kl == 0 and kl.requires_grad


@pytest.mark.parametrize("kind", ["ppo", "gspo", "sapo", "gmpo", "dppo_tv", "cispo"])
@given(seed=st.integers(0, 1000))
@settings(max_examples=10)
def test_the_first_inner_step_has_ratio_one_and_clips_nothing(kind, seed):
    _, old, advantages, mask = batch(seed, dtype=torch.float32)
    _, metrics = policy_loss(old, old, advantages, mask, denominator=3.0, kind=kind)
    means = metric_means(metrics)
    assert means["policy/ratio_max"] == means["policy/ratio_min"] == means["policy/ratio"] == 1.0
    assert means["policy/clip_low"] == means["policy/clip_high"] == means["policy/approx_kl"] == 0.0


def test_metrics_of_micro_batches_join_to_those_of_the_whole():
    new, old, advantages, mask = batch()
    whole = metric_means(policy_loss(new, old, advantages, mask, denominator=9.0, entropy=-new)[1])
    halves = [
        policy_loss(new[p], old[p], advantages[p], mask[p], denominator=9.0, entropy=-new[p])[1]
        for p in (slice(0, 1), slice(1, 4))
    ]
    joined = metric_means(merge_metrics(halves))
    assert joined == pytest.approx(whole)
    assert whole["policy/entropy"] == pytest.approx(float((-new[mask]).mean()))
    ratio = (new - old).exp()[mask]
    assert whole["policy/clip_high"] == pytest.approx(
        float(((ratio > 1.28) & (advantages.expand_as(new)[mask] > 0)).float().mean())
    )
    assert whole["policy/ratio_max"] == pytest.approx(float(ratio.max()))


def test_metrics_carry_no_graph_and_inputs_stay_what_they_were():
    new, old, advantages, mask = batch()
    before = [tensor.clone() for tensor in (new, old, advantages)]
    _, metrics = policy_loss(new.requires_grad_(), old, advantages, mask, denominator=1.0)
    _, more = kl_loss(new, old, mask, denominator=1.0)
    assert all(value.dim() == 0 and not value.requires_grad for value in (metrics | more).values())
    assert all(torch.equal(a, b) for a, b in zip(before, (new, old, advantages), strict=True))


def test_half_precision_logprobs_are_widened_before_the_ratio():
    loss, _ = policy_loss(
        torch.tensor([[-1.0]]).bfloat16(), torch.tensor([[-1.0]]).bfloat16(), torch.ones(1, 1), torch.ones(1, 1).bool(),
        denominator=3.0,
    )  # fmt: skip
    assert loss.dtype == torch.float32 and loss == torch.tensor(-1.0) / 3


def test_an_outlier_ratio_stays_finite():
    new = torch.tensor([[0.0]], requires_grad=True)
    loss, _ = policy_loss(new, torch.tensor([[-500.0]]), torch.tensor([[-1.0]]), torch.ones(1, 1).bool(), denominator=1.0)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(new.grad).all()


BAD = {
    "mask not boolean": ({"mask": torch.ones(4, 7)}, "mask: expected dtype torch.bool, got torch.float32"),
    "mask shape": ({"mask": torch.ones(4, 6).bool()}, r"logprobs: expected shape \(4, 6\).*got \(4, 7\)"),
    "old shape": ({"old_logprobs": torch.zeros(4, 6)}, r"old_logprobs: expected shape \(4, 7\).*got \(4, 6\)"),
    "old dtype": ({"old_logprobs": torch.zeros(4, 7).long()}, "old_logprobs: expected a floating-point dtype"),
    "advantages per row": ({"advantages": torch.zeros(4)}, r"advantages: expected shape \(4, 7\).*got \(4,\)"),
    "advantages dtype": ({"advantages": torch.zeros(4, 7).long()}, "advantages: expected a floating-point dtype"),
    "device": ({"old_logprobs": torch.zeros(4, 7, device="meta")}, "old_logprobs: expected device cpu.*got meta"),
    "advantages device": ({"advantages": torch.zeros(4, 7, device="meta")}, "advantages: expected device cpu.*got meta"),
    "kind": ({"kind": "pqo"}, "kind: expected one of ppo"),
    "aggregation": ({"aggregation": "mean"}, "aggregation: expected one of token_mean"),
    "negative bound": ({"clip_low": -0.1}, "clip_low: expected a finite number of at least 0, got -0.1"),
    "dual clip": ({"dual_clip": 0.5}, "dual_clip: expected a ratio above 1"),
    "cispo bound as a distance": ({"kind": "cispo", "ratio_max": 0.2}, "ratio_min ≤ 1 ≤ ratio_max.*got 0.8, 0.2"),
    "ratio bound elsewhere": ({"ratio_max": 5.0}, "read by kind 'cispo' only"),
    "denominator zero": ({"denominator": 0.0}, "denominator: expected a number above 0 because the mask selects"),
    "denominator negative": ({"denominator": -1.0}, "denominator: expected a finite number of at least 0"),
    "denominator shape": ({"denominator": torch.ones(2)}, r"denominator: expected shape \(\), got \(2,\)"),
    "padded with ids": ({"sequence_ids": torch.zeros(4, 7).long()}, "sequence_ids: expected None with a padded mask"),
    "correction shape": ({"correction": torch.ones(4)}, r"correction: expected shape \(4, 7\)"),
    "temperature of sapo": ({"kind": "sapo", "tau_positive": 0.0}, "tau_positive: expected a finite number above 0"),
    "token weights": ({"token_weights": torch.ones(3)}, "token_weights: expected shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    change, message = BAD[name]
    given_ = {
        "logprobs": torch.zeros(4, 7), "old_logprobs": torch.zeros(4, 7), "advantages": torch.zeros(4, 7),
        "mask": torch.ones(4, 7).bool(), "denominator": 28.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        policy_loss(**(given_ | change))


@pytest.mark.parametrize("kind", ["gspo", "gmpo"])
def test_packed_sequence_losses_ask_for_sequence_ids(kind):
    flat = torch.zeros(3)
    with pytest.raises(ValueError, match="sequence_ids: needed with packed"):
        policy_loss(flat, flat, flat, torch.ones(3).bool(), denominator=3.0, kind=kind)
    with pytest.raises(ValueError, match=r"sequence_ids: expected shape \(3,\).*got \(2,\)"):
        policy_loss(flat, flat, flat, torch.ones(3).bool(), denominator=3.0, kind=kind, sequence_ids=torch.zeros(2).long())


# --- KL -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_gradient_is_that_of_its_value(kind, old):
    new, ref, _, mask = batch()
    options = {"denominator": 7.0, "kind": kind, "old_logprobs": ref + 0.1 if old else None}
    loss, _ = kl_loss(new.requires_grad_(), ref, mask, **options)
    expected = numeric_gradient(lambda x: kl_loss(x, ref, mask, **options)[0], new.detach())
    torch.testing.assert_close(torch.autograd.grad(loss, new)[0], expected, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("kind", ["k1+", "k3+"])
def test_straight_through_has_the_value_of_one_and_the_numeric_gradient_of_k2(kind):
    new, ref, _, mask = batch()
    loss, _ = kl_loss(new.requires_grad_(), ref, mask, denominator=7.0, kind=kind)
    torch.testing.assert_close(loss, kl_loss(new, ref, mask, denominator=7.0, kind=kind[:-1])[0])
    k2 = numeric_gradient(lambda x: kl_loss(x, ref, mask, denominator=7.0, kind="k2")[0], new.detach())
    torch.testing.assert_close(torch.autograd.grad(loss, new)[0], k2, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "k3+"])
def test_which_estimators_have_the_gradient_of_the_kl_in_expectation(kind, old):
    right = kind in (("k1", "k3") if old else ("k2", "k3+"))
    # Exact expectation: every action of a small distribution, weighted by its probability.
    logits = torch.tensor([0.3, -0.7, 1.1, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64).log()
    policy = logits.log_softmax(0)
    true = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)[0]
    loss, _ = kl_loss(
        policy, reference, torch.ones(4).bool(), denominator=1.0, kind=kind, old_logprobs=policy.detach() if old else None,
        token_weights=policy.exp().detach(),
    )  # fmt: skip
    gradient = torch.autograd.grad(loss, logits)[0]
    assert torch.allclose(gradient, true, atol=1e-9) == right


def test_kl_is_added_so_a_step_against_it_brings_the_policy_back():
    new = torch.tensor([[-1.0]], requires_grad=True)
    loss, _ = kl_loss(new, torch.tensor([[-2.0]]), torch.ones(1, 1).bool(), denominator=1.0)
    loss.backward()
    assert loss > 0 and new.grad > 0


def test_kl_of_far_apart_policies_is_finite_and_bad_kinds_are_named():
    assert torch.isfinite(kl_estimate(torch.tensor([-900.0, -0.0]), torch.tensor([-0.0, -900.0]))).all()
    with pytest.raises(ValueError, match="kind: expected one of k1, k2, k3"):
        kl_estimate(torch.zeros(1), torch.zeros(1), kind="k4")
    with pytest.raises(ValueError, match="ref_logprobs: expected shape"):
        kl_loss(torch.zeros(2), torch.zeros(3), torch.ones(2).bool(), denominator=1.0)


# --- aggregation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(seed=st.integers(0, 10_000), parts=st.integers(1, 4))
@settings(max_examples=20)
def test_losses_of_micro_batches_add_up(aggregation, seed, parts):
    new, _, _, mask = batch(seed, rows=8)
    constant = 5.0 if aggregation == "constant" else None
    total = step_denominator(list(mask.chunk(parts)), aggregation=aggregation, constant=constant)
    pieces = zip(new.chunk(parts), mask.chunk(parts), strict=True)
    split = sum(aggregate(v, m, denominator=total, aggregation=aggregation) for v, m in pieces)
    whole = aggregate(new, mask, denominator=total, aggregation=aggregation)
    torch.testing.assert_close(split, whole, atol=1e-12, rtol=1e-12)


def test_a_sequence_split_over_micro_batches_needs_its_whole_length():
    mask, ids = torch.ones(4).bool(), torch.zeros(4).long()
    values = torch.tensor([1.0, 2.0, 3.0, 6.0])
    parts = []
    for part in (slice(0, 1), slice(1, 4)):
        weights = aggregation_weights(
            mask[part], aggregation="seq_mean_token_mean", sequence_ids=ids[part], unit_tokens=torch.full((4,), 4)[part]
        )
        parts.append(aggregate(values[part], mask[part], denominator=1.0, token_weights=weights))
    assert float(sum(parts)) == 3.0


def test_denominators_count_what_the_table_says():
    masks = [torch.tensor([[1, 0, 1], [0, 0, 0]]).bool(), torch.tensor([[1, 1, 1]]).bool()]
    assert step_denominator(masks) == 5
    assert step_denominator(masks, aggregation="seq_mean_token_mean") == 2
    assert step_denominator(masks, aggregation="constant", constant=10.0) == 20
    assert step_denominator(17) == 17
    ids = [torch.tensor([[7, 7, 7], [8, 8, 8]]), torch.tensor([[7, 7, 7]])]
    assert step_denominator(masks, aggregation="prompt_mean", sequence_ids=ids) == 1
    assert step_denominator([]) == 0 and step_denominator(torch.zeros(2, 2).bool()) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step_denominator(torch.ones(2, 2)), "mask: expected dtype torch.bool"),
        (lambda: step_denominator(3, aggregation="constant"), "constant: expected a number"),
        (lambda: step_denominator(3, constant=2.0), "constant: expected a number with aggregation 'constant' and only"),
        (lambda: step_denominator(torch.ones(2).bool(), aggregation="seq_mean_token_sum"), "sequence_ids: needed"),
        (lambda: step_denominator(torch.ones(1, 2).bool(), aggregation="prompt_mean"), "sequence_ids: needed"),
        (lambda: aggregation_weights(torch.ones(1, 2).bool(), aggregation="prompt_mean"), "unit_tokens: needed"),
        (lambda: aggregate(torch.ones(1, 2), torch.ones(1, 3).bool(), denominator=1.0), "values: expected shape"),
    ],
)
def test_bad_aggregation_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- rollout correction -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tis", "icepop", "mis"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_correction_is_one_for_equal_policies_and_selects_by_the_mask(kind, level):
    _, old, _, mask = batch(dtype=torch.float32)
    factors, metrics = rollout_correction(old, torch.where(mask, old, math.nan), mask, kind=kind, level=level)
    assert torch.equal(factors, mask.float()) and metrics["correction/dropped_sum"] == 0


def test_packed_and_padded_corrections_agree():
    new, old, _, mask = batch(dtype=torch.float32)
    ids = torch.arange(4).repeat_interleave(7)
    for kind in ("tis", "icepop", "mis"):
        padded, _ = rollout_correction(new, old, mask, kind=kind, level="geometric", low=0.9, high=1.1)
        packed, _ = rollout_correction(
            new.reshape(-1), old.reshape(-1), mask.reshape(-1), kind=kind, level="geometric", low=0.9, high=1.1,
            sequence_ids=ids,
        )  # fmt: skip
        torch.testing.assert_close(packed.reshape(4, 7), padded)


def test_opsm_drops_only_drifted_sequences_with_negative_advantage():
    logprobs, sampler = torch.tensor([[-2.0, -2.0]] * 3), torch.tensor([[-1.0, -1.0], [-1.0, -1.0], [-2.0, -2.0]])
    advantages = torch.tensor([[-1.0], [1.0], [-1.0]])
    factors, metrics = rollout_correction(logprobs, sampler, torch.ones(3, 2).bool(), kind="opsm", advantages=advantages)
    assert factors.tolist() == [[0, 0], [1, 1], [1, 1]] and metrics["correction/dropped_sum"] == 2


def test_a_dropped_token_keeps_its_place_in_the_denominator():
    new = torch.zeros(1, 2, requires_grad=True)
    loss, _ = policy_loss(
        new, torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2).bool(), denominator=2.0,
        correction=torch.tensor([[1.0, 0.0]]),
    )  # fmt: skip
    assert loss == -0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "none"}, "kind: expected one of tis"),
        ({"low": 3.0, "high": 2.0}, "low, high: expected 0 ≤ low ≤ high"),
        ({"kind": "opsm"}, "advantages: needed for kind 'opsm'"),
        ({"kind": "opsm", "level": "token"}, "level: expected 'geometric'"),
        ({"level": "word"}, "level: expected one of token"),
    ],
)
def test_bad_correction_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        rollout_correction(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2).bool(), **options)


def test_tis_bounds_from_below_too_and_mis_decides_without_weighing():
    old, sampler, mask = torch.tensor([[-3.0, -1.0]]), torch.tensor([[-1.0, -1.2]]), torch.ones(1, 2).bool()
    bounded, metrics = rollout_correction(old, sampler, mask, kind="tis", low=0.5, high=2.0)
    torch.testing.assert_close(bounded, torch.tensor([[0.5, math.exp(0.2)]]))
    assert metrics["correction/truncated_sum"] == 1 and metrics["correction/dropped_sum"] == 0
    decided, metrics = rollout_correction(old, sampler, mask, kind="mis", level="token", low=0.5, high=2.0)
    assert decided.tolist() == [[0.0, 1.0]] and metrics["correction/dropped_sum"] == 1
