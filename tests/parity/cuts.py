"""What a decoder's logits and tokens are held to, whatever computes them: transformers' in float32, however the work is
cut."""

import random
from typing import Any

import torch

from stentor.tests.engine.local import LocalEngine
from stentor.tests.parity.paged import BLOCK, PagedDecoder
from stentor.tests.parity.tiny import VOCAB

LENGTH = 75


def prompt_of(seed: int, length: int = LENGTH) -> list[int]:
    """Random tokens, none of them special."""
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(length)]


@torch.inference_mode()
def expected_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """transformers' own, [tokens, vocabulary]."""
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-4)


def check_whole(model: Any, ours: PagedDecoder) -> None:
    """A prompt in one pass."""
    prompt = prompt_of(1)
    ours.add(0, prompt)
    (logits,) = ours.run((0, 0, LENGTH))
    expected = expected_logits(model, prompt)
    assert expected.std() > 0.05, "logits this flat would hide a mistake"
    assert_close(logits, expected)


def check_cut(model: Any, ours: PagedDecoder) -> None:
    """Two rows in chunks and single tokens, in the same passes."""
    first, second = prompt_of(2), prompt_of(3, 40)
    ours.add(3, first)
    ours.add(5, second)
    pieces: dict[int, list[torch.Tensor]] = {3: [], 5: []}
    steps = [
        [(3, 0, 17)],
        [(5, 0, 1), (3, 17, 30)],
        [(3, 47, 20), (5, 1, 30)],
        *[[(5, 31 + i, 1), (3, 67 + i, 1)] for i in range(8)],
    ]
    for spans in steps:
        for span, logits in zip(spans, ours.run(*spans), strict=True):
            pieces[span[0]].append(logits)
    assert_close(torch.cat(pieces[3]), expected_logits(model, first))
    assert_close(torch.cat(pieces[5]), expected_logits(model, second)[:39])


def check_shared(model: Any, ours: PagedDecoder) -> None:
    """A row that begins behind two blocks of another."""
    first = prompt_of(4)
    second = first[: 2 * BLOCK] + prompt_of(5, 30)
    blocks = ours.add(0, first)
    ours.run((0, 0, 2 * BLOCK))
    left = ours.leave(0)
    ours.run((0, 2 * BLOCK, LENGTH - 2 * BLOCK))
    ours.add(1, second, shared_blocks=blocks[:2], left=left)
    (logits,) = ours.run((1, 2 * BLOCK, 30))
    assert_close(logits, expected_logits(model, second)[2 * BLOCK :])


def check_drawn(model: Any, engine: LocalEngine, prompt: list[int], rid: int, count: int) -> None:
    """The ``count`` tokens of a greedy request, each of which transformers would have drawn, but for near ties."""
    tokens = engine.outcomes[rid, 0].tokens
    assert len(tokens) == count
    logits = expected_logits(model, prompt + tokens[:-1])[len(prompt) - 1 :]
    behind = logits.max(dim=1).values - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert behind.max() <= 1e-3, "a token that transformers would not have drawn"
