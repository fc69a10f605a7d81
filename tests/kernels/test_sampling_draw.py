"""Draws: the definition against plain arithmetic, its distributions, and the native version against the definition."""

import math
from ctypes import c_int64, c_void_p
from functools import cache
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.kernels import sampling
from stentor.kernels.native import NativeFunction, unavailable_reason
from stentor.kernels.sampling import native, reference
from stentor.kernels.sampling.noise import gumbel, noise_words, row_keys
from stentor.tests.examples import examples
from stentor.tests.kernels.sampling_cases import KINDS, assert_distributed, make_logits, make_slot_params

needs_native = pytest.mark.skipif(
    not native.usable(torch.zeros(1, 1)), reason=unavailable_reason() or "the native library is loaded"
)
VERSIONS = [pytest.param(reference, id="reference"), pytest.param(native, id="native", marks=needs_native)]


def draw_many(version: ModuleType, logits: list[float], count: int, **row_params: float) -> torch.Tensor:
    """Tokens [count] of one row at output indices 0, 1, …"""
    batch = torch.tensor([logits]).repeat(count, 1)
    tokens: torch.Tensor = version.draw(
        batch, torch.zeros(count, dtype=torch.int64), torch.arange(count), make_slot_params(row_params)
    )
    return tokens


def softmax(logits: list[float], temperature: float = 1.0) -> torch.Tensor:
    return torch.softmax(torch.tensor(logits, dtype=torch.float64) / temperature, -1)


LOGITS = [1.0, 0.0, -1.0, 2.0, 0.5, -3.0, 1.5, -0.5]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_tokens_follow_the_softmax_at_the_temperature(version: ModuleType, temperature: float) -> None:
    tokens = draw_many(version, LOGITS, 40000, temperature=temperature)
    assert_distributed(torch.bincount(tokens, minlength=8), softmax(LOGITS, temperature))


@pytest.mark.parametrize("version", VERSIONS)
def test_successive_tokens_are_independent(version: ModuleType) -> None:
    tokens = draw_many(version, LOGITS, 40001)
    joint = torch.bincount(tokens[:-1] * 8 + tokens[1:], minlength=64)
    p = softmax(LOGITS)
    assert_distributed(joint, torch.outer(p, p).flatten())


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_of_neighbouring_seeds_are_independent(version: ModuleType) -> None:
    pairs = draw_many(version, LOGITS, 20000, seed=8) * 8 + draw_many(version, LOGITS, 20000, seed=9)
    p = softmax(LOGITS)
    assert_distributed(torch.bincount(pairs, minlength=64), torch.outer(p, p).flatten())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("row_params", "kept"),
    [
        ({"top_k": 3}, {3, 6, 0}),
        ({"top_p": 0.5}, {3, 6}),
        ({"min_p": 0.3}, {3, 6, 0}),
        ({"top_k": 4, "top_p": 0.8}, {3, 6, 0}),
        ({"top_k": 5, "min_p": 0.2, "top_p": 0.95}, {3, 6, 0, 4}),
    ],
)
def test_filters_keep_the_likely_and_renormalise(
    version: ModuleType, row_params: dict[str, float], kept: set[int]
) -> None:
    tokens = draw_many(version, LOGITS, 20000, **row_params)
    p = softmax(LOGITS)
    inside = torch.tensor([token in kept for token in range(8)])
    p = torch.where(inside, p, 0.0)
    assert_distributed(torch.bincount(tokens, minlength=8), p / p.sum())


@pytest.mark.parametrize("version", VERSIONS)
def test_top_p_looks_at_what_top_k_left(version: ModuleType) -> None:
    equal = [0.0] * 10
    # Two of four tokens have half of the mass that top-k left; of all ten it would take five.
    logits = [1.0] * 4 + equal
    kept = set(draw_many(version, logits, 500, top_k=4, top_p=0.5).tolist())
    assert kept == {0, 1}


@pytest.mark.parametrize("version", VERSIONS)
def test_ties_at_the_top_k_limit_are_all_kept(version: ModuleType) -> None:
    kept = set(draw_many(version, [0.0, 2.0, 1.0, 1.0, 1.0, -1.0], 2000, top_k=2).tolist())
    assert kept == {1, 2, 3, 4}


@pytest.mark.parametrize("version", VERSIONS)
def test_ties_at_the_top_p_limit_go_to_the_lowest_ids(version: ModuleType) -> None:
    assert set(draw_many(version, [0.0] * 10, 2000, top_p=0.35).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "row_params",
    [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}, {"top_p": 0.0}, {"min_p": 1.0}, {"temperature": 1e-40}],
)
def test_every_rule_that_leaves_one_token_is_greedy(version: ModuleType, row_params: dict[str, float]) -> None:
    assert set(draw_many(version, LOGITS, 300, **row_params).tolist()) == {3}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_top_k_beyond_the_vocabulary_keeps_all(version: ModuleType) -> None:
    assert torch.equal(draw_many(version, LOGITS, 500, top_k=9), draw_many(version, LOGITS, 500))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_endless_temperature_is_uniform(version: ModuleType) -> None:
    tokens = draw_many(version, LOGITS, 20000, temperature=1e38)
    assert_distributed(torch.bincount(tokens, minlength=8), torch.full((8,), 1 / 8, dtype=torch.float64))


@pytest.mark.parametrize("version", VERSIONS)
def test_greedy_takes_the_lowest_id_among_equals(version: ModuleType) -> None:
    logits = torch.zeros(3, 1000)
    logits[0, [700, 300, 999]] = 5.0
    logits[1, 64] = torch.finfo(torch.float32).max
    logits[2, [20, 10]] = math.inf
    assert version.argmax(logits).tolist() == [300, 64, 10]
    greedy = make_slot_params({"temperature": 0.0})
    slots = torch.zeros(3, dtype=torch.int64)
    assert version.draw(logits, slots, slots, greedy).tolist() == [300, 64, 10]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("row_params", [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_broken_logits_never_win_and_never_crash(version: ModuleType, row_params: dict[str, float]) -> None:
    nan, inf = math.nan, math.inf
    for logits, possible in [
        ([nan] * 5, {-1}),
        ([-inf] * 5, {-1}),
        ([nan, -inf, nan, -7.0, nan], {3}),
        ([-inf, -inf, -inf, -inf, -3e38], {4}),
        ([nan, inf, 3.0, -inf, 1e38], {1}),
    ]:
        assert set(draw_many(version, logits, 50, **row_params).tolist()) == possible


@pytest.mark.parametrize("version", VERSIONS)
def test_infinite_logits_share_the_mass_among_themselves(version: ModuleType) -> None:
    logits = [math.inf, 0.0, math.inf, math.inf, math.nan]
    assert set(draw_many(version, logits, 300).tolist()) == {0, 2, 3}
    assert set(draw_many(version, logits, 300, top_p=0.6).tolist()) == {0, 2}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_draw_is_the_argmax_of_logits_and_noise(version: ModuleType) -> None:
    generator = torch.Generator().manual_seed(11)
    logits = torch.randn(20, 3000, generator=generator)
    indices = torch.arange(20) * 13
    slots = torch.zeros(20, dtype=torch.int64)
    noise = gumbel(noise_words(row_keys(torch.full((20,), 77), indices)[:, None], torch.arange(3000)))
    expected = (logits.double() / 0.8 + noise).argmax(-1)
    sampled_token_ids = version.draw(logits, slots, indices, make_slot_params({"temperature": 0.8, "seed": 77}))
    assert torch.equal(sampled_token_ids, expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_draws_keep_their_golden_values(version: ModuleType) -> None:
    logits = [token * 37 % 100 / 16 for token in range(100)]
    assert draw_many(version, logits, 10, seed=2**64 - 1).tolist() == [54, 81, 43, 97, 24, 27, 80, 97, 27, 35]
    cut = draw_many(version, logits, 10, seed=1234, temperature=0.7, top_k=40, top_p=0.9)
    assert cut.tolist() == [48, 27, 16, 35, 16, 81, 5, 27, 94, 32]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_row_draws_the_same_in_any_batch(version: ModuleType) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(24, 5000, generator=generator) * 3
    slot_params = make_slot_params(
        *({"top_k": 7.0 * (slot % 3), "top_p": 1.0 - 0.1 * (slot % 2), "seed": slot * 31} for slot in range(24))
    )
    slots, indices = torch.arange(24), torch.arange(24) * 5
    together = version.draw(logits, slots, indices, slot_params)
    alone = [
        version.draw(logits[r : r + 1], slots[r : r + 1], indices[r : r + 1], slot_params).item() for r in range(24)
    ]
    order = torch.randperm(24, generator=generator)
    shuffled = version.draw(logits[order], slots[order], indices[order], slot_params)
    assert together.tolist() == alone
    assert torch.equal(together[order], shuffled)


rule_rows = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-3, 0.3, 0.7, 1.0, 1.7, 50.0]),
        "top_k": st.sampled_from([0, 0, 1, 2, 5, 20, 63, 64, 65, 500, 5000]),
        "top_p": st.sampled_from([1.0, 1.0, 0.0, 1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 1e-9]),
        "min_p": st.sampled_from([0.0, 0.0, 1e-6, 0.05, 0.3, 1.0]),
        "seed": st.integers(0, 2**64 - 1),
    }
)


@needs_native
@settings(max_examples=examples(60, 1000), deadline=None)
@given(
    rows=st.lists(rule_rows, min_size=1, max_size=5),
    kind=st.sampled_from(KINDS),
    vocabulary=st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 200, 1000, 4099]),
    seed=st.integers(0, 2**31),
)
def test_the_native_version_chooses_what_the_definition_chooses(
    rows: list[dict[str, float]], kind: str, vocabulary: int, seed: int
) -> None:
    logits = make_logits(kind, len(rows), vocabulary, seed)
    before = logits.clone()
    slot_params = make_slot_params(*rows)
    slots = torch.arange(len(rows))
    for start in (0, seed):
        indices = slots + start
        assert torch.equal(
            native.draw(logits, slots, indices, slot_params), reference.draw(logits, slots, indices, slot_params)
        )
    assert torch.equal(native.argmax(logits), reference.argmax(logits))
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32))


@needs_native
def test_native_noise_and_masses_equal_the_definition_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(2)
    words = torch.randint(0, 2**32, (20000,), generator=generator)
    words[:4] = torch.tensor([0, 1, 2**32 - 2, 2**32 - 1])
    noise = torch.empty(20000, dtype=torch.float64)
    call = NativeFunction("stentor_sampling_gumbel", c_void_p, c_int64, c_void_p).bind()
    assert call is not None
    narrow = words.to(torch.uint32)
    call(narrow.data_ptr(), 20000, noise.data_ptr())
    assert torch.equal(noise, gumbel(words))

    z = torch.cat([-torch.rand(20001, generator=generator) * 45, torch.tensor([0.0, -1e-30, -math.inf, -3e38])])
    masses = torch.empty(z.shape, dtype=torch.int64)
    call = NativeFunction("stentor_sampling_mass", c_void_p, c_int64, c_void_p).bind()
    assert call is not None
    call(z.data_ptr(), z.shape[0], masses.data_ptr())
    assert torch.equal(masses, reference.mass(z))


def test_masses_are_the_exponential_in_fixed_point() -> None:
    z = -torch.rand(20000, generator=torch.Generator().manual_seed(6)) * 45
    exact = z.double().exp() * 2.0**40
    assert ((reference.mass(z) - exact).abs() <= 1 + 3e-7 * exact).all()
    assert reference.mass(torch.tensor([0.0, -math.inf])).tolist() == [2**40, 0]


@cache
def large_noise() -> tuple[int, int, float, float]:
    """One draw in a million: at which index, of which token, how large, and how large token 0's is there."""
    for first in range(0, 1000, 40):
        keys = row_keys(torch.zeros(40, dtype=torch.int64), torch.arange(first, first + 40))
        noise = gumbel(noise_words(keys[:, None], torch.arange(4096)))
        row, token = divmod(int(noise.argmax()), 4096)
        if noise[row, token] > 14:
            return first + row, token, noise[row, token].item(), noise[row, 0].item()
    raise AssertionError("there is none among four million")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_very_unlikely_token_wins_when_its_noise_is_large_enough(version: ModuleType) -> None:
    index, token, large, of_first = large_noise()
    for margin, winner in ((1e-3, token), (-1e-3, 0)):
        logits = torch.full((1, 4096), -200.0)
        logits[0, 0] = 0.0
        logits[0, token] = of_first - large + margin
        sampled_token_ids = version.draw(
            logits, torch.tensor([0]), torch.tensor([index]), make_slot_params({"seed": 0})
        )
        assert sampled_token_ids.tolist() == [winner]


@pytest.mark.parametrize("version", VERSIONS)
def test_top_p_orders_tokens_that_are_almost_equal(version: ModuleType) -> None:
    order = torch.randperm(40, generator=torch.Generator().manual_seed(9))
    logits = [*(order * 1e-4).tolist(), -20.0]
    # The tiny min-p changes nothing but keeps the unlikely token in sight of top-p.
    kept = set(draw_many(version, logits, 3000, top_p=0.5, min_p=1e-12).tolist())
    assert kept == {token for token in range(40) if order[token] >= 20}


@needs_native
@pytest.mark.parametrize("row_params", [{}, {"top_p": 0.95}, {"top_k": 50}, {"top_k": 900}, {"min_p": 0.02}])
def test_the_native_version_agrees_on_a_real_vocabulary(row_params: dict[str, float]) -> None:
    for kind in ("normal", "peaked", "ties"):
        logits = make_logits(kind, 4, 49152, 17)
        slot_params, slots = make_slot_params(*[row_params] * 4), torch.arange(4)
        assert torch.equal(
            native.draw(logits, slots, slots, slot_params), reference.draw(logits, slots, slots, slot_params)
        )


@needs_native
def test_threads_do_not_change_a_draw() -> None:
    logits = make_logits("normal", 16, 20000, 4)
    slot_params, slots = make_slot_params(*[{"top_p": 0.9}, {}] * 8), torch.arange(16)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = native.draw(logits, slots, slots, slot_params)
        torch.set_num_threads(4)
        assert torch.equal(native.draw(logits, slots, slots, slot_params), one)
    finally:
        torch.set_num_threads(threads)


@needs_native
def test_the_native_version_is_the_one_that_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "draw", None)
    slot_params, slots = make_slot_params({}), torch.zeros(1, dtype=torch.int64)
    assert sampling.draw(torch.zeros(1, 4), slots, slots, slot_params).shape == (1,)


def test_the_definition_runs_where_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "usable", lambda logits: False)
    monkeypatch.setattr(native, "draw", None)
    slot_params, slots = make_slot_params({}), torch.zeros(1, dtype=torch.int64)
    assert sampling.draw(torch.zeros(1, 4), slots, slots, slot_params).shape == (1,)


@pytest.mark.parametrize(
    "logits",
    [torch.zeros(4), torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(3, 4).t(), torch.zeros(2, 0)],
    ids=["one dimension", "bfloat16", "transposed", "no vocabulary"],
)
def test_logits_of_another_layout_are_refused(logits: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="contiguous float32"):
        sampling.argmax(logits)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_slot_outside_the_tables_is_an_error(version: ModuleType) -> None:
    with pytest.raises(IndexError):
        version.draw(torch.zeros(1, 4), torch.tensor([3]), torch.tensor([0]), make_slot_params({}))


def test_no_rows_give_no_tokens() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert sampling.draw(torch.zeros(0, 5), none, none, make_slot_params({})).shape == (0,)
    assert sampling.argmax(torch.zeros(0, 5)).shape == (0,)
