"""Logits and parameters that the sampler's tests share."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
import torch

from stentor.kernels.sampling import SamplerTables, SlotParams, pack_mask
from stentor.kernels.sampling.tables import IN_PROMPT
from stentor.kernels.tuning import Config


def make_slot_params(*rows: dict[str, float]) -> SlotParams:
    """One slot per row; a key left out is neutral, and the seed is the slot."""
    slot_params = SlotParams.empty(len(rows), torch.device("cpu"))
    for slot, row in enumerate(rows):
        slot_params.set(
            slot,
            temperature=row.get("temperature", 1.0),
            top_k=int(row.get("top_k", 0)),
            top_p=row.get("top_p", 1.0),
            min_p=row.get("min_p", 0.0),
            seed=int(row.get("seed", slot)),
        )
    return slot_params


def set_seen(tables: SamplerTables, slot: int, prompt: Iterable[int], outputs: Iterable[int]) -> None:
    """Fills one slot's ``seen``. Ids outside the vocabulary are ignored."""
    counts = Counter(dict.fromkeys(prompt, IN_PROMPT))
    counts.update(outputs)
    row = torch.zeros(tables.vocab_size, dtype=torch.int32)
    for token, count in counts.items():
        if 0 <= token < tables.vocab_size:
            row[token] = count
    tables.seen[slot] = row.to(tables.seen.device)


def set_bias(tables: SamplerTables, slot: int, bias: Mapping[int, float]) -> int:
    """Fills one slot's bias and returns how many entries it has. Ids outside the vocabulary are ignored."""
    bias = {token: value for token, value in bias.items() if 0 <= token < tables.vocab_size}
    tables.bias_ids[slot, : len(bias)] = torch.tensor(list(bias), dtype=torch.int32).to(tables.bias_ids.device)
    tables.bias_values[slot, : len(bias)] = torch.tensor(list(bias.values())).to(tables.bias_values)
    return len(bias)


def set_mask(
    tables: SamplerTables, slot: int, allowed: Iterable[int] | None, banned: Iterable[int] = (), *, early: bool = False
) -> None:
    """Fills one slot's ``mask``, or its ``early_mask``: ``allowed`` (None: all) without ``banned``."""
    words = pack_mask(tables.vocab_size, allowed, banned)
    (tables.early_mask if early else tables.mask)[slot] = words.to(tables.mask.device)


KINDS = ("normal", "peaked", "ties", "constant", "masked", "one", "broken", "wide")


def make_logits(kind: str, rows: int, vocabulary: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, vocabulary, generator=generator) * 3
    chance = torch.rand(rows, vocabulary, generator=generator)
    match kind:
        case "peaked":
            return x - 20 * (chance > 0.02)
        case "ties":
            return (x / 2).round()
        case "constant":
            return torch.full_like(x, x[0, 0].item())
        case "masked":
            return torch.where(chance < 0.8, -math.inf, x)
        case "one":
            return torch.full_like(x, -math.inf).scatter_(1, torch.full((rows, 1), seed % vocabulary), 1.0)
        case "broken":
            x = torch.where(chance < 0.1, math.nan, x)
            return torch.where(chance > 0.97, math.inf, x)
        case "wide":
            return x * 10.0 ** (chance * 70 - 35)
    return x


def small_tiles(monkeypatch: pytest.MonkeyPatch, room: int, chunk: int = 256) -> None:
    """Block sizes at which a few hundred tokens take every way that a vocabulary takes on a GPU."""
    from stentor.kernels.sampling import triton_step

    sizes = {
        "scan_config": Config.of(BLOCK=128, GROUP=16, fuse_multiply_add=False),
        "bracket_config": Config.of(SAMPLES=128, ROOM=room, fuse_multiply_add=False),
        "finish_config": Config.of(CHUNK=chunk, PART=64, fuse_multiply_add=False),
    }
    for name, config in sizes.items():
        monkeypatch.setattr(triton_step, name, lambda rows, config=config: config)


def assert_distributed(counts: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Pearson's chi-square within five standard deviations of its mean."""
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = probabilities[possible] * counts.sum()
    chi_square = ((counts[possible] - expected) ** 2 / expected).sum().item()
    freedom = max(int(possible.sum()) - 1, 1)
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom), f"{chi_square} with {freedom} degrees of freedom"
