"""Decoders over an int8 or a float8 cache: in one program as over others, near their logits, and bitwise alike however
prompts are cut."""

import random
from functools import partial
from pathlib import Path

import pytest
import torch

from stentor.protocols.ipc.config import ModelImpl
from stentor.tests.parity import tiny
from stentor.tests.parity.paged import PagedDecoder

LENGTH = 70
PROMPT = [random.Random(1).randrange(3, tiny.VOCAB) for _ in range(LENGTH)]


def logits_of(decoder: PagedDecoder) -> torch.Tensor:
    decoder.add(0, PROMPT)
    return decoder.run((0, 0, LENGTH))[0]


@pytest.mark.parametrize(("codes", "most"), [(torch.int8, 0.02), (torch.float8_e4m3fn, 0.15)])
@pytest.mark.parametrize(
    ("name", "impl", "packed"),
    [
        ("gemma2", "auto", True),
        ("gemma2", "auto", False),
        ("gpt-oss", "auto", True),
        ("gemma4-small", "auto", True),
        ("llama", "transformers", None),
    ],
)
def test_a_decoder_over_codes_is_near_the_one_over_floats(
    tmp_path: Path, name: str, impl: ModelImpl, packed: bool | None, codes: torch.dtype, most: float
) -> None:
    tiny.make(name, tmp_path)
    made = partial(PagedDecoder, tmp_path, model_impl=impl, packed=packed)
    exact, ours = made(), made(cache_dtype=codes)
    expected, found = logits_of(exact), logits_of(ours)
    error = (found - expected).abs() / expected.std()
    assert 0 < error.mean() < most
    if not packed:
        return
    assert ours.calls == exact.calls, "no call stands for its attention"
    if ours.calls:  # of torch's products, whose bits depend on the rows beside
        return
    ours.add(1, PROMPT[:20])
    ours.add(2, PROMPT)
    start = 0
    for count in (1, 30, 3, 36):
        _, piece = ours.run((1, start % 16, 4), (2, start, count))
        assert torch.equal(piece, found[start : start + count])
        start += count
