"""The noise: its values are pinned, because every draw ever made with a seed depends on them."""

import math

import pytest
import torch

from stentor.kernels.sampling.noise import GOLDEN, NOISE_MAX, NOISE_MIN, gumbel, ln, noise_words, row_keys

MASK64, MASK32 = (1 << 64) - 1, (1 << 32) - 1


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _mix64(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def _mix32(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK32
    return x ^ (x >> 16)


def _word(seed: int, index: int, token: int) -> int:
    """The documented formula in unbounded integers."""
    key = _mix64((_mix64((seed + GOLDEN) & MASK64) + index * GOLDEN) & MASK64)
    return _mix32((_mix32(token ^ (key >> 32)) + (key & MASK32)) & MASK32)


def _words(seeds: list[int], indices: list[int], tokens: torch.Tensor) -> torch.Tensor:
    keys = row_keys(torch.tensor([_signed(seed) for seed in seeds]), torch.tensor(indices))
    return noise_words(keys[:, None], tokens)


GOLDEN_WORDS = {
    (0, 0, 0): 1180372931,
    (0, 0, 1): 2847979018,
    (0, 1, 0): 210217936,
    (1, 0, 0): 3173512954,
    (42, 7, 49151): 604089539,
    (2**64 - 1, 131071, 262143): 137776020,
}


@pytest.mark.parametrize("key", GOLDEN_WORDS)
def test_the_hash_keeps_its_golden_values(key: tuple[int, int, int]) -> None:
    seed, index, token = key
    assert _words([seed], [index], torch.tensor([token])).item() == GOLDEN_WORDS[key]


def test_the_hash_follows_its_formula() -> None:
    generator = torch.Generator().manual_seed(5)
    numbers = torch.randint(-(2**63), 2**63 - 1, (50,), generator=generator).tolist()
    for at, number in enumerate(numbers):
        seed, index, token = number & MASK64, at * at * 40, (number >> 20) & 0x3FFFF
        assert _words([seed], [index], torch.tensor([token])).item() == _word(seed, index, token)


def test_the_noise_keeps_its_golden_values() -> None:
    words = torch.tensor([0, 1, 2**31, 2**32 - 1, 123456789])
    expected = [22.873856958419985, 21.775244669635462, 0.3665129202457608, -3.129994640884816, 3.534760581307755]
    assert gumbel(words).tolist() == expected


def test_the_noise_is_minus_log_of_minus_log_and_bounded() -> None:
    words = torch.cat([torch.tensor([0, 1, 2, 2**32 - 2, 2**32 - 1]), torch.arange(0, 2**32, 2**20 + 7)])
    noise = gumbel(words)
    exact = [-math.log(-math.log1p(-(word + 0.5) / 2**32)) for word in words.tolist()]
    torch.testing.assert_close(noise, torch.tensor(exact, dtype=torch.float64), rtol=1e-13, atol=1e-13)
    assert noise.min() >= NOISE_MIN
    assert noise.max() <= NOISE_MAX


def test_the_logarithm_is_accurate_to_a_few_units_in_the_last_place() -> None:
    x = torch.logspace(-40, 40, 20001, dtype=torch.float64)
    x = torch.cat([x, 1 + torch.linspace(-0.3, 0.5, 9999, dtype=torch.float64)])
    torch.testing.assert_close(ln(x), x.log(), rtol=1e-14, atol=1e-15)


def test_words_are_uniform() -> None:
    words = _words([3, 4], [0, 1000], torch.arange(1 << 17))
    for row in words:
        counts = torch.bincount(row >> 24, minlength=256).to(torch.float64)
        expected = row.numel() / 256
        chi_square = ((counts - expected) ** 2 / expected).sum().item()
        assert 255 - 5 * math.sqrt(510) < chi_square < 255 + 5 * math.sqrt(510)


@pytest.mark.parametrize("part", ["seed", "index", "token"])
def test_flipping_any_bit_of_the_key_flips_half_of_the_word(part: str) -> None:
    tokens = torch.arange(20000)
    base = _words([99], [5], tokens)
    for bit in range({"seed": 64, "index": 20, "token": 18}[part]):
        seed = 99 ^ (1 << bit) if part == "seed" else 99
        index = 5 ^ (1 << bit) if part == "index" else 5
        other = _words([seed], [index], tokens ^ (1 << bit) if part == "token" else tokens)
        flipped = ((base ^ other)[:, :, None] >> torch.arange(32)) & 1
        share = flipped.to(torch.float64).mean(dim=(0, 1))
        assert (share - 0.5).abs().max() < 0.03, f"{part} bit {bit}: {share}"


def test_neighbouring_positions_and_seeds_are_uncorrelated() -> None:
    rows = [(seed, index) for seed in (1, 2, 2**40) for index in (0, 1, 2, 3)]
    words = _words([seed for seed, _ in rows], [index for _, index in rows], torch.arange(20000))
    correlation = torch.corrcoef(words.to(torch.float64))
    off_diagonal = correlation - torch.eye(len(rows), dtype=torch.float64)
    assert off_diagonal.abs().max() < 5 / math.sqrt(20000)
    lagged = torch.corrcoef(torch.cat([words[:, 1:], words[:, :-1]]).to(torch.float64))
    assert (lagged - torch.eye(2 * len(rows), dtype=torch.float64)).abs().max() < 5 / math.sqrt(20000)
