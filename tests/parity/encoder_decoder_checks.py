"""What every encoder-decoder is held to: its encodings, its logits and its greedy tokens are transformers'."""

from collections.abc import Callable, Sequence
from typing import Final

import torch

from stentor.tests.parity.whispers import PagedEncoderDecoder

Logits = Callable[[int, Sequence[int]], torch.Tensor]
"""transformers' logits of a window, float32 [tokens, vocabulary]: behind each of these tokens of the decoder."""

_LATER: Final[Sequence[Sequence[int]]] = ([5], [], [6, 8, 77])
"""Tokens of a second step, in which a row has none."""


def outputs_from(start: int, count: int = 31) -> list[list[int]]:
    """Three rows of a decoder that begins with ``start``; the last has ``count`` tokens."""
    return [[start, 7, 9, 11, 33], [start], [start, *range(20, 19 + count)]]


def check_encoder(ours: PagedEncoderDecoder, windows: Sequence[bytes], expected: Sequence[torch.Tensor]) -> None:
    """``expected``: [positions, hidden] of each window."""
    with torch.inference_mode():
        found = ours.model.encoder(windows)
    assert found.lengths == [len(each) for each in expected]
    torch.testing.assert_close(found.rows, torch.cat(list(expected)), atol=1e-4, rtol=1e-4)


def check_decoder(
    ours: PagedEncoderDecoder,
    windows: Sequence[bytes],
    logits: Logits,
    prompts: Sequence[Sequence[int]],
    *,
    last: Sequence[Sequence[int]] = ((), (), ()),
    atol: float = 3e-4,
) -> None:
    """Of three windows, in two steps, or three with ``last``."""
    ours.listen(windows)
    steps = [each for each in (prompts, _LATER, last) if any(each)]
    made = [ours.step(step) for step in steps]
    for row in range(len(windows)):
        found = torch.cat([part[row] for part in made if len(part[row])])
        tokens = [token for step in steps for token in step[row]]
        torch.testing.assert_close(found, logits(row, tokens), atol=atol, rtol=1e-4)


def check_greedy(
    ours: PagedEncoderDecoder, windows: Sequence[bytes], logits: Logits, start: Sequence[int], count: int
) -> None:
    """``count`` tokens behind ``start``."""
    ours.listen(windows)
    tokens = [list(start) for _ in windows]
    made = ours.step(tokens)
    for _ in range(count):
        following = [int(part[-1].argmax()) for part in made]
        for row, token in zip(tokens, following, strict=True):
            row.append(token)
        made = ours.step([[token] for token in following])
    for number, row in enumerate(tokens):
        assert logits(number, row)[len(start) - 1 : -1].argmax(1).tolist() == row[len(start) :]


def check_bfloat16(
    ours: PagedEncoderDecoder, windows: Sequence[bytes], logits: Logits, round_theirs: Callable[[], object]
) -> None:
    """Our error against float32 is hardly larger than that of transformers in bfloat16.

    ``round_theirs``: makes the model of ``logits`` one in bfloat16.
    """
    outputs = outputs_from(2)
    expected = torch.cat([logits(row, each) for row, each in enumerate(outputs)])
    round_theirs()
    theirs = torch.cat([logits(row, each) for row, each in enumerate(outputs)])
    ours.listen(windows)
    assert (torch.cat(ours.step(outputs)) - expected).norm() < 1.2 * (theirs - expected).norm()
