"""Log-probs without the logits: equal to the plain way, in every dtype and layout, and never a [N, V] tensor."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grpo_core import ImpossibleTokenError, logits_logprobs, pack_batch, pad_batch, token_logprobs
from grpo_core.samples import Sample


def inputs(tokens=9, size=5, vocabulary=23, dtype=torch.float64, seed=0, head=True):
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, size, generator=draw, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, size, generator=draw, dtype=dtype).requires_grad_(head)
    bias = torch.randn(vocabulary, generator=draw, dtype=dtype).requires_grad_(head)
    targets = torch.randint(2, vocabulary, (tokens,), generator=draw)
    return hidden, weight, bias, targets


@pytest.mark.parametrize("head", [True, False])
@given(
    tokens=st.integers(0, 12), vocabulary=st.integers(3, 40), chunk_size=st.integers(1, 50), chunk_tokens=st.integers(1, 13),
    temperature=st.floats(0.3, 3.0), with_entropy=st.booleans(), banned=st.booleans(),
    kept=st.sampled_from([0.0, 0.001, 128.0]), seed=st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=40)
def test_values_and_gradients_equal_plain_autograd(
    head, tokens, vocabulary, chunk_size, chunk_tokens, temperature, with_entropy, banned, kept, seed
):
    hidden, weight, bias, targets = inputs(tokens, 5, vocabulary, seed=seed, head=head)
    options = {"temperature": temperature, "with_entropy": with_entropy, "banned_ids": torch.tensor([0, 1]) if banned else None}
    chunks = {"chunk_size": chunk_size, "chunk_tokens": chunk_tokens, "keep_megabytes": kept}
    ours = token_logprobs(hidden, weight, targets, bias=bias, **chunks, **options)
    plain = logits_logprobs(hidden @ weight.T + bias, targets, **options)
    leaves = [hidden, weight, bias] if head else [hidden]
    gradients = []
    for logprobs, entropy in (ours, plain):
        score = (logprobs * torch.linspace(-1, 2, tokens).double()).sum()
        if with_entropy:
            score = score + (entropy * torch.linspace(1, -1, tokens).double()).sum()
        gradients.append(torch.autograd.grad(score, leaves))
    torch.testing.assert_close(ours, plain, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kept", [0.0, 128.0])
@pytest.mark.parametrize("entropy", [False, True])
def test_gradcheck(entropy, kept):
    hidden, weight, bias, targets = inputs(4, 3, 7)

    def function(hidden, weight, bias):
        logprobs, own = token_logprobs(
            hidden, weight, targets, bias=bias, temperature=0.7, banned_ids=torch.tensor([1]), chunk_size=3,
            keep_megabytes=kept, with_entropy=entropy,
        )  # fmt: skip
        return (logprobs, own) if entropy else logprobs

    assert torch.autograd.gradcheck(function, (hidden, weight, bias))


def test_entropy_alone_can_be_trained():
    hidden, weight, _, targets = inputs()
    _, entropy = token_logprobs(hidden, weight, targets, with_entropy=True)
    plain = torch.distributions.Categorical(logits=hidden @ weight.T).entropy()
    torch.testing.assert_close(
        torch.autograd.grad(entropy.sum(), (hidden, weight)), torch.autograd.grad(plain.sum(), (hidden, weight))
    )


class Largest(TorchDispatchMode):
    """Numbers of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))])
        return result


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_of_tokens_times_vocabulary_is_ever_made(head, entropy, dtype):
    tokens, size, vocabulary = 64, 4, 1000
    hidden, weight, _, targets = inputs(tokens, size, vocabulary, dtype=dtype, head=head)
    with Largest() as largest:
        logprobs, own = token_logprobs(hidden, weight, targets, chunk_size=50, chunk_tokens=32, with_entropy=entropy)
        (logprobs.sum() + (own.sum() if entropy else 0)).backward()
    assert largest.numbers <= max(weight.numel(), 32 * 50)
    assert (weight.grad is not None) == head and hidden.grad.dtype == dtype


@pytest.mark.parametrize(("megabytes", "tiles"), [(0.0, 0), (0.02, 2), (1.0, 20)])
def test_no_more_tiles_are_kept_than_allowed_and_backward_may_run_twice(megabytes, tiles):
    hidden, weight, _, targets = inputs(50, 4, 1000, dtype=torch.float32)
    logprobs, _ = token_logprobs(hidden, weight, targets, chunk_size=50, keep_megabytes=megabytes)
    assert len(logprobs.grad_fn.kept) == tiles
    once = torch.autograd.grad(logprobs.sum(), (hidden, weight), retain_graph=True)
    again = torch.autograd.grad(logprobs.sum(), (hidden, weight))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_half_precision_states_give_float32_results():
    hidden, weight, _, targets = inputs(dtype=torch.bfloat16)
    logprobs, entropy = token_logprobs(hidden, weight, targets, with_entropy=True)
    expected, _ = logits_logprobs(hidden.float() @ weight.float().T, targets)
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)


def test_autocast_does_not_reach_inside():
    hidden, weight, _, targets = inputs(dtype=torch.float32)
    plain, _ = token_logprobs(hidden, weight, targets)
    expected = torch.autograd.grad(plain.sum(), (hidden, weight))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = token_logprobs(hidden, weight, targets)
        got = torch.autograd.grad(inside.sum(), (hidden, weight))
    assert torch.equal(inside, plain) and all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_temperature_divides_the_logits_and_its_absence_shows_as_a_ratio():
    logits, target = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    scaled, _ = token_logprobs(logits, torch.eye(2), target, temperature=0.5)
    plain, _ = token_logprobs(logits, torch.eye(2), target)
    torch.testing.assert_close((scaled - plain).exp(), torch.tensor([1.11491]), atol=1e-5, rtol=0)


def test_minus_infinity_leaves_the_entropy_and_its_gradient_finite():
    hidden = torch.zeros(1, 3, requires_grad=True)
    bias = torch.tensor([0.0, 0.0, -math.inf])
    for entropy in (
        token_logprobs(hidden, torch.eye(3), torch.tensor([0]), bias=bias, with_entropy=True)[1],
        logits_logprobs(hidden + bias, torch.tensor([0]), with_entropy=True)[1],
    ):
        assert entropy.item() == pytest.approx(math.log(2))
        assert torch.isfinite(torch.autograd.grad(entropy.sum(), hidden)[0]).all()


@pytest.mark.parametrize("way", ["bias", "banned"])
def test_a_token_that_cannot_be_sampled_is_a_named_error(way):
    options = {"bias": torch.tensor([0.0, -math.inf])} if way == "bias" else {"banned_ids": torch.tensor([1])}
    with pytest.raises(ImpossibleTokenError, match=r"1 of 2 tokens cannot be sampled.*first at \[1\] with ids \[1\]"):
        token_logprobs(torch.zeros(2, 2), torch.eye(2), torch.tensor([0, 1]), **options)
    logits = torch.zeros(2, 2) + options.get("bias", 0)
    with pytest.raises(ImpossibleTokenError):
        logits_logprobs(logits, torch.tensor([0, 1]), banned_ids=options.get("banned_ids"))


def test_no_trained_tokens_still_give_a_graph():
    hidden, weight, _, _ = inputs(tokens=0)
    logprobs, entropy = token_logprobs(hidden, weight, torch.zeros(0, dtype=torch.int64), with_entropy=True)
    (logprobs.sum() + entropy.sum()).backward()
    assert logprobs.shape == (0,) and (weight.grad == 0).all()


def test_without_grad_nothing_is_kept():
    hidden, weight, _, targets = inputs()
    with torch.no_grad():
        logprobs, _ = token_logprobs(hidden, weight, targets)
    assert not logprobs.requires_grad
    torch.testing.assert_close(logprobs, token_logprobs(hidden, weight, targets)[0].detach())


def toy_hidden(ids, positions, attends):
    """A causal model of one attention layer; ``attends`` [T, T] says who may look at whom."""
    draw = torch.Generator().manual_seed(5)
    table, places = (torch.randn(40, 6, generator=draw, dtype=torch.float64) for _ in range(2))
    x = table[ids] + places[positions]
    scores = (x @ x.T).masked_fill(~attends, -math.inf)
    return torch.nan_to_num(scores.softmax(-1)) @ x


def test_each_row_alone_equals_left_padded_right_padded_and_packed():
    draw = torch.Generator().manual_seed(3)
    samples = []
    for length in (4, 9, 30):
        ids = tuple(torch.randint(0, 40, (length,), generator=draw).tolist())
        trained = (False, *(bool(v) for v in torch.rand(length - 1, generator=draw) < 0.6))
        samples.append(Sample("t", ids, trained, (0.0,) * length, ()))
    head = torch.randn(40, 6, generator=draw, dtype=torch.float64)

    def logprobs_of(batch):
        flat_ids, real = batch.input_ids.reshape(-1), batch.real.reshape(-1)
        owner = torch.full((flat_ids.numel(),), -1)
        owner[real] = torch.arange(len(batch.samples)).repeat_interleave(batch.boundaries.diff())
        order = torch.arange(flat_ids.numel())
        attends = (owner[:, None] == owner[None]) & (order[:, None] >= order[None]) & real[None]
        hidden = toy_hidden(flat_ids, batch.positions.reshape(-1), attends)
        return token_logprobs(hidden[batch.predictor], head, batch.targets)[0]

    everything = (0, 1, 2)
    alone = torch.cat([logprobs_of(pack_batch(samples, [place])) for place in everything])
    for batch in (
        pad_batch(samples, everything, pad_id=0, side="left"),
        pad_batch(samples, everything, pad_id=0, side="right", width=41),
        pad_batch(samples, everything, pad_id=7, side="left", width=35),
        pack_batch(samples, everything),
    ):
        torch.testing.assert_close(logprobs_of(batch), alone, atol=1e-12, rtol=1e-12)


BAD = {
    "hidden rank": ({"hidden": torch.zeros(1, 2, 3)}, r"hidden: expected shape \[N, D\], got \(1, 2, 3\)"),
    "hidden dtype": ({"hidden": torch.zeros(2, 3).long()}, "hidden: expected a floating-point dtype, got torch.int64"),
    "weight shape": ({"weight": torch.zeros(5, 4)}, r"weight: expected shape \[V, 3\], got \(5, 4\)"),
    "weight device": ({"weight": torch.zeros(5, 3, device="meta")}, "weight: expected device cpu.*got meta"),
    "targets shape": ({"targets": torch.zeros(3).long()}, r"targets: expected shape \(2,\).*got \(3,\)"),
    "targets dtype": ({"targets": torch.zeros(2)}, "targets: expected an integer dtype, got torch.float32"),
    "targets range": ({"targets": torch.tensor([0, 5])}, r"targets: expected ids in 0..4, got 0..5"),
    "bias shape": ({"bias": torch.zeros(4)}, r"bias: expected shape \(5,\).*got \(4,\)"),
    "temperature zero": ({"temperature": 0.0}, "temperature: expected a finite number above 0, got 0.0"),
    "temperature negative": ({"temperature": -1.0}, "temperature: expected a finite number above 0, got -1.0"),
    "banned rank": ({"banned_ids": torch.tensor(1)}, r"banned_ids: expected shape \[K\]"),
    "banned range": ({"banned_ids": torch.tensor([9])}, r"banned_ids: expected ids in 0..4"),
    "chunk": ({"chunk_size": 0}, "chunk_size: expected a finite number above 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    change, message = BAD[name]
    given_ = {"hidden": torch.zeros(2, 3), "weight": torch.zeros(5, 3), "targets": torch.zeros(2).long()}
    with pytest.raises(ValueError, match=message):
        token_logprobs(**(given_ | change))
