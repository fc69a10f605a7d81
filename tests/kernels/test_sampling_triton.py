"""Triton's draws, edits and log-probabilities against the definition."""

import math

import pytest
import torch

from stentor.kernels import sampling
from stentor.kernels.sampling import SlotParams, reference
from stentor.kernels.tuning import Config
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.sampling_cases import KINDS, make_logits, make_slot_params, small_tiles

pytestmark = [
    pytest.mark.triton,
    # numpy, which interprets, remarks on arithmetic with infinities
    pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero) encountered:RuntimeWarning"),
]

FILTERS: list[dict[str, float]] = [
    {},
    {"temperature": 0.0},
    {"top_k": 5},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"top_k": 60, "top_p": 0.8, "min_p": 1e-3, "temperature": 1.7},
    {"top_p": 0.4, "temperature": 0.3},
    {"top_p": 0.999, "min_p": 1e-6, "temperature": 50.0},
    {"temperature": 1e-40},
]
ROOMS = {"lists": 150, "whole rows": 10**6, "lists that overflow": 8}


def on_device(slot_params: SlotParams) -> SlotParams:
    return SlotParams(**{name: table.to(DEVICE) for name, table in vars(slot_params).items()})


def assert_draws_agree(logits: torch.Tensor, slot_params: SlotParams, indices: torch.Tensor) -> None:
    slots = torch.arange(logits.shape[0])
    device_logits = logits.to(DEVICE)
    assert sampling.choose(device_logits, "triton") == "triton"
    sampled_token_ids = sampling.draw(
        device_logits, slots.to(DEVICE), indices.to(DEVICE), on_device(slot_params), variant="triton"
    )
    assert sampled_token_ids.tolist() == reference.draw(logits, slots, indices, slot_params).tolist()
    assert torch.equal(device_logits.cpu().view(torch.int32), logits.view(torch.int32))


@pytest.mark.proof(each="kind")
@pytest.mark.parametrize(
    ("kind", "room"),
    [*((kind, "lists") for kind in KINDS), ("ties", "whole rows"), ("normal", "lists that overflow")],
)
def test_draws_equal_the_definition_bit_for_bit(kind: str, room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch, ROOMS[room], chunk=256 if room == "lists" else 64)
    logits = make_logits(kind, len(FILTERS), 155, KINDS.index(kind))
    assert_draws_agree(logits, make_slot_params(*FILTERS), torch.arange(len(FILTERS)) * 1000)


@pytest.mark.parametrize("vocabulary", [1, 2, 64, 129])
def test_vocabularies_of_odd_sizes(vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch, 40)
    slot_params: list[dict[str, float]] = [{"seed": 2.0**40}, {"top_k": 3}, {"top_p": 0.7}, {"temperature": 0.0}]
    assert_draws_agree(
        make_logits("normal", 4, vocabulary, vocabulary), make_slot_params(*slot_params), torch.arange(4)
    )


@pytest.mark.parametrize("top_k", [1, 20, 63, 199])
def test_any_k_whether_or_not_there_are_as_many_blocks(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch, 128)
    slot_params: list[dict[str, float]] = [
        {"top_k": top_k},
        {"top_k": top_k, "top_p": 0.5},
        {"top_k": top_k, "min_p": 0.01},
    ]
    assert_draws_agree(make_logits("ties", 3, 200, top_k), make_slot_params(*slot_params), torch.arange(3))


@pytest.mark.parametrize("room", [90, 8])
def test_ties_at_the_top_p_limit_go_to_the_lowest_ids(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch, room)
    logits = torch.full((6, 100), -4.0)
    logits[:, 1::16] = 4.0  # 7 tokens
    logits[:, 2::3] = 3.5  # 33 or so, of which top-p takes some
    logits[4:, [3, 50, 70, 90]] = 40.0  # of which it takes exactly two
    slot_params: list[dict[str, float]] = [
        {"top_p": 0.4 + 0.1 * row if row < 4 else 0.5, "seed": row} for row in range(6)
    ]
    slot_params[3]["top_k"] = 35
    assert_draws_agree(logits, make_slot_params(*slot_params), torch.arange(6))


@pytest.mark.parametrize("kind", ["normal", "peaked", "masked"])
def test_the_bracket_holds_the_end_of_the_filter_and_few_tokens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every draw with a filter would read its whole row again: right, and slow."""
    from stentor.kernels.sampling import triton_step
    from stentor.kernels.sampling.tables import params_of

    small_tiles(monkeypatch, 256)
    slot_params = make_slot_params({"top_k": 20}, {"top_p": 0.9}, {"top_p": 0.8, "temperature": 0.5})
    logits, slots = make_logits(kind, 3, 1000, 3), torch.arange(3)
    params = params_of(slot_params, slots, slots).to(DEVICE)
    out = torch.empty(3, dtype=torch.int64, device=DEVICE)
    sampled_token_ids = triton_step.draw_rows(logits.to(DEVICE), slots.to(DEVICE), params, None, out)
    kept, z = reference.kept(logits, slots, slot_params)
    end = torch.where(kept, z, 0.0).amin(1)
    low, high = sampled_token_ids.brackets.cpu().unbind(1)
    assert (low <= end).all()
    assert (end < high).all()
    assert (sampled_token_ids.counts.cpu() <= 256).all()


def test_the_greedy_token_is_the_lowest_id_among_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch, 40)
    logits = torch.zeros(4, 300)
    logits[0, [250, 140, 299]] = 5.0
    logits[1, [200, 20]] = math.inf
    logits[2] = math.nan
    logits[3, :299] = -math.inf
    logits = logits.to(DEVICE)
    assert sampling.argmax(logits, variant="triton").tolist() == [140, 20, -1, 299]


@pytest.mark.parametrize("seed", [1, 2])
def test_edits_equal_the_definition_bit_for_bit(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 700, generator=generator) * 5
    lengths = [300, 1, 0]
    rows, offsets = torch.tensor([3, 0, 2]), torch.tensor([0, *lengths]).cumsum(0)
    ids = torch.cat([torch.randperm(700, generator=generator)[:length] for length in lengths])
    counts = torch.randint(0, 5, ids.shape, generator=generator)
    values = torch.randn(ids.shape, generator=generator)
    strengths = torch.tensor([[1.3, 0.7, -0.4], [0.6, -1.0, 0.2], [1.0, 1.0, 1.0]])
    expected, actual = logits.clone(), logits.to(DEVICE)
    reference.penalise_(expected, strengths, rows, offsets, ids, counts)
    reference.add_bias_(expected, rows, offsets, ids, values)
    reference.restrict_(expected, rows[:2], offsets[:3], ids[:301])
    on = [tensor.to(DEVICE) for tensor in (strengths, rows, offsets, ids, counts, values)]
    sampling.penalise_(actual, on[0], on[1], on[2], on[3], on[4], variant="triton")
    sampling.add_bias_(actual, on[1], on[2], on[3], on[5], variant="triton")
    sampling.restrict_(actual, on[1][:2], on[2][:3], on[3][:301], variant="triton")
    assert torch.equal(actual.cpu().view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize(
    ("kind", "vocabulary", "top"),
    [("normal", 5, 20), ("normal", 300, 0), ("ties", 300, 20), ("broken", 300, 20), ("masked", 300, 20)],
)
def test_log_probabilities_equal_the_definition(
    kind: str, vocabulary: int, top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stentor.kernels.sampling import triton_logprobs

    monkeypatch.setattr(triton_logprobs, "logprobs_config", lambda: Config.of(BLOCK=128))
    logits = make_logits(kind, 4, vocabulary, 5)
    logits[3] = -math.inf
    rows, tokens = torch.tensor([3, 0, 2]), torch.tensor([1, vocabulary - 1, 2])
    ids = torch.tensor([[0, vocabulary - 1, 2], [4, 4, 1], [3, 0, 1]])[:, : top % 7]  # none, or three of them
    expected = sampling.logprobs(logits, rows, tokens, top, ids, variant="reference")
    on_rows, on_tokens, on_ids = rows.to(DEVICE), tokens.to(DEVICE), ids.to(DEVICE)
    actual = sampling.logprobs(logits.to(DEVICE), on_rows, on_tokens, top, on_ids, variant="triton")
    for found, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=2e-6, atol=2e-6)


def test_a_row_reads_the_same_log_probabilities_in_any_batch() -> None:
    logits = make_logits("normal", 3, 700, 8).to(DEVICE)
    rows, tokens = torch.arange(3, device=DEVICE), torch.arange(3, device=DEVICE) * 70
    together = sampling.logprobs(logits, rows, tokens, 3, variant="triton")
    alone = sampling.logprobs(logits, rows[1:2], tokens[1:2], 3, variant="triton")
    for a, b in zip(together, alone, strict=True):
        assert torch.equal(a[1], b[0])


def test_no_rows_give_no_tokens() -> None:
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    logits = torch.zeros(0, 5, device=DEVICE)
    assert sampling.draw(logits, none, none, on_device(make_slot_params({})), variant="triton").shape == (0,)
    assert sampling.logprobs(logits, none, none, 2, variant="triton")[2].shape == (0, 2)


def test_the_noise_and_the_masses_of_the_kernels_are_those_of_the_definition() -> None:
    from stentor.kernels.sampling.noise import gumbel
    from stentor.tests.kernels.sampling_kernels import noise_and_masses

    generator = torch.Generator().manual_seed(2)
    words = torch.randint(0, 2**32, (4096,), generator=generator)
    words[:4] = torch.tensor([0, 1, 2**32 - 2, 2**32 - 1])
    z = torch.cat([-torch.rand(4092, generator=generator) * 45, torch.tensor([0.0, -1e-30, -math.inf, -3e38])])
    noise, bounds, masses = noise_and_masses(words.to(torch.uint32).view(torch.int32).to(DEVICE), z.to(DEVICE))
    assert torch.equal(noise.cpu(), gumbel(words))
    assert (bounds.cpu().double() >= gumbel(words)).all()
    assert torch.equal(masses.cpu(), reference.mass(z))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", [128256, 151936])
def test_a_real_vocabulary_draws_what_the_definition_draws(kind: str, vocabulary: int) -> None:
    logits = make_logits(kind, len(FILTERS), vocabulary, 1)
    assert_draws_agree(logits, make_slot_params(*FILTERS), torch.arange(len(FILTERS)))
