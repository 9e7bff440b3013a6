"""The guarded step, accumulation over ranks, and learning rates that need only the step's number."""

import copy
import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st

from grpo_core import (
    LRSchedule,
    accumulate_gradients,
    aggregate,
    gradient_scale,
    guarded_step,
    metric_means,
    set_lr,
    step_denominator,
)


def trained_model():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    guarded_step(optimizer, model.parameters(), max_norm=None)
    return model, optimizer


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_that_is_not_finite_is_skipped_and_keeps_all_state(bad):
    model, optimizer = trained_model()
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    (model(torch.ones(1, 3)).sum() * bad).backward()
    outcome = guarded_step(optimizer, model.parameters(), max_norm=1.0)
    assert outcome.skipped and not outcome.clipped and not math.isfinite(outcome.grad_norm)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    for number, entry in state["state"].items():
        assert all(torch.equal(value, optimizer.state_dict()["state"][number][name]) for name, value in entry.items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_clipping_scales_to_the_norm_and_reports_the_norm_before():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.tensor([3.0, 4.0])
    outcome = guarded_step(optimizer, [parameter], max_norm=1.0)
    assert (outcome.grad_norm, outcome.clipped, outcome.skipped) == (5.0, True, False)
    torch.testing.assert_close(parameter.detach(), torch.tensor([-0.6, -0.8]))


def test_a_small_gradient_is_left_as_it_is():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.tensor([0.3, 0.4])
    assert not guarded_step(optimizer, [parameter], max_norm=1.0).clipped
    assert parameter.tolist() == pytest.approx([-0.3, -0.4])
    assert guarded_step(optimizer, [parameter], max_norm=1.0).grad_norm == 0.0
    with pytest.raises(ValueError, match="max_norm: expected a number above 0 or None, got 0"):
        guarded_step(optimizer, [parameter], max_norm=0)


def data():
    draw = torch.Generator().manual_seed(4)
    return torch.randn(10, 6, 3, generator=draw, dtype=torch.float64), torch.rand(10, 6, generator=draw) < 0.5


def new_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


def loss_of(model, total):
    def of(batch):
        inputs, mask = batch
        loss = aggregate(model(inputs).squeeze(-1), mask, denominator=total)
        return loss, {"x/loss": loss.detach(), "x/tokens": mask.sum(), "x/count": torch.tensor(1)}

    return of


def in_batches(inputs, mask, parts):
    return list(zip(inputs.chunk(parts), mask.chunk(parts), strict=True))


def test_accumulated_micro_batches_equal_one_batch():
    inputs, mask = data()
    gradients = []
    for parts in (1, 2, 5):
        model = new_model()
        metrics = accumulate_gradients(in_batches(inputs, mask, parts), loss_of(model, step_denominator(mask)))
        gradients.append(torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]))
        assert metrics["x/count"] == parts and metrics["x/tokens"] == mask.sum()
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-12, rtol=1e-12)


def test_micro_batches_side_by_side_give_the_same_sum_in_the_same_order():
    inputs, mask = data()
    model = new_model()
    accumulate_gradients(in_batches(inputs, mask, 5), loss_of(model, step_denominator(mask)))
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    found = []
    for threads in (1, 2, 4):
        model = new_model()
        leaves = list(model.parameters())
        with ThreadPoolExecutor(threads) as pool:
            metrics = accumulate_gradients(
                in_batches(inputs, mask, 5), loss_of(model, step_denominator(mask)), inputs=leaves, pool=pool
            )
        assert metrics["x/count"] == 5
        found.append(torch.cat([parameter.grad.reshape(-1) for parameter in leaves]))
    torch.testing.assert_close(found[0], expected, atol=1e-12, rtol=1e-12)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_a_failure_in_a_thread_is_raised_and_a_pool_needs_inputs():
    inputs, mask = data()
    model = new_model()
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(ZeroDivisionError):
            accumulate_gradients([0], lambda n: (1 / n, {}), inputs=list(model.parameters()), pool=pool)
        with pytest.raises(ValueError, match="pool"):
            accumulate_gradients(in_batches(inputs, mask, 2), loss_of(model, step_denominator(mask)), pool=pool)


def rank_main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    group = dist.group.WORLD
    inputs, mask = data()
    own = (slice(0, 7), slice(7, 10))[rank]
    batches = in_batches(inputs[own], mask[own], (3, 2)[rank])
    model = torch.nn.parallel.DistributedDataParallel(new_model())
    total = step_denominator([part for _, part in batches], group=group)
    filler = (inputs[:1], torch.zeros(1, 6, dtype=torch.bool))
    # DDP reduces in every backward here: without the filler this rank would leave the other waiting.
    metrics = accumulate_gradients(batches, loss_of(model, total), filler=filler, group=group)
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    plain = new_model()
    accumulate_gradients(batches, loss_of(plain, total), filler=filler, group=group, reduction="sum")
    summed = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters()])
    dist.all_reduce(summed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if rank == 1:
        next(model.parameters()).grad[0, 0] = math.nan
    outcome = guarded_step(optimizer, model.parameters(), max_norm=1.0, group=group)
    torch.save((gradient, summed, float(total), metrics, outcome.skipped, gradient_scale(group)), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ddp_ranks_with_three_and_two_micro_batches_equal_one_batch(tmp_path):
    mp.spawn(rank_main, args=(str(tmp_path),), nprocs=2)
    inputs, mask = data()
    model = new_model()
    accumulate_gradients([(inputs, mask)], loss_of(model, step_denominator(mask)))
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    for rank in range(2):
        gradient, summed, total, metrics, skipped, scale = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(summed, expected, atol=1e-12, rtol=1e-12)
        assert total == int(mask.sum()) and scale == 2 and metrics["x/count"] == 3
        assert skipped, "one rank with a NaN makes both skip"


def test_means_over_nothing_are_zero():
    assert metric_means({"a/x_sum": torch.tensor(0.0), "a/tokens": torch.tensor(0)}) == {"a/x": 0.0, "a/tokens": 0.0}


@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(0, 20), st.integers(21, 60), st.floats(0, 1))
def test_learning_rates_rise_then_fall_and_end_where_they_should(kind, warmup, total, final):
    schedule = LRSchedule(peak=2.0, kind=kind, total_steps=total, warmup_steps=warmup, final_fraction=final)
    rates = [schedule.lr_at(step) for step in range(total + 5)]
    assert rates[0] > 0 and max(rates) == pytest.approx(2.0)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(rates[: warmup + 1]))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(rates[warmup:]))
    last = 2.0 if kind == "constant" else 2.0 * final
    if total - 1 - warmup > 0:
        assert rates[total - 1] == pytest.approx(last) and rates[total + 4] == pytest.approx(last)


def test_ten_steps_straight_equal_four_and_six_resumed():
    schedule = LRSchedule(peak=1e-3, kind="cosine", total_steps=10, warmup_steps=3)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    straight = [schedule.lr_at(step) for step in range(10)]
    resumed = [schedule.lr_at(step) for step in range(4)]
    again = LRSchedule(peak=1e-3, kind="cosine", total_steps=10, warmup_steps=3)
    for step in range(4, 10):
        set_lr(optimizer, again.lr_at(step))
        resumed.append(optimizer.param_groups[0]["lr"])
    assert straight == resumed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peak": 0.0}, "peak: expected"),
        ({"peak": 1.0, "kind": "step"}, "kind: expected one of constant"),
        ({"peak": 1.0, "kind": "linear"}, "total_steps: expected more than warmup_steps=0, got None"),
        ({"peak": 1.0, "warmup_steps": -1}, "warmup_steps: expected at least 0"),
        ({"peak": 1.0, "final_fraction": 2.0}, "final_fraction: expected 0 to 1"),
    ],
)
def test_bad_schedules_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        LRSchedule(**options)
    with pytest.raises(ValueError, match="step: expected at least 0"):
        LRSchedule(peak=1.0).lr_at(-1)


def test_several_optimizers_step_and_skip_together():
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizers = [torch.optim.SGD([first], lr=1.0), torch.optim.SGD([second], lr=0.5)]
    (3 * first.sum() + 4 * second.sum()).backward()
    outcome = guarded_step(optimizers, [first, second], max_norm=None)
    assert outcome.grad_norm == pytest.approx(50**0.5) and first.tolist() == [-2, -2] and second.tolist() == [-1, -1]
    (first.sum() + second.sum() * float("nan")).backward()
    assert guarded_step(optimizers, [first, second], max_norm=1.0).skipped
    assert first.tolist() == [-2, -2] and second.tolist() == [-1, -1] and first.grad is None and second.grad is None
