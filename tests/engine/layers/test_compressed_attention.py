"""Attention to a window and to compressed entries: what its states and its blocks hold, and both ways to compute it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stentor import kernels
from stentor.engine.layers.attention.compressed_attention import CompressedAttention
from stentor.engine.layers.attention.entries import CompletedEntries, EntryBlocks
from stentor.engine.layers.attention.entry_index import EntryIndex
from stentor.engine.layers.attention.token_history import CachedTokens, TokenHistory
from stentor.engine.layers.experts.moe import _experts_of_tokens
from stentor.engine.layers.linear.weights import WeightError
from stentor.tests.kernels.helpers import assert_same_bits, normal
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import LENGTH, assert_close, prompt_of
from stentor.tests.parity.paged import PagedDecoder


@pytest.fixture(scope="module", params=["deepseek-v4", "deepseek-v4.1"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    tiny.make(request.param, folder)
    return folder


def histories(lengths: list[int], reads: list[int], writes: list[int]) -> TokenHistory:
    """Of tokens with the numbers 100, 101, ..., and slots of 3 numbers 10 · slot, ..."""
    x = torch.arange(100.0, 100 + sum(lengths))[:, None]
    state = (torch.arange(4.0)[:, None] * 10 + torch.arange(3.0))[:, :, None].clone()
    return TokenHistory(x, state, kernels.StateRows.of(lengths, reads, writes))


def test_a_token_sees_its_row_s_tokens_and_what_the_state_has_of_those_before() -> None:
    found = histories([2, 1], [1, -1], [0, 2]).until(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]), 3)
    assert found[:, :, 0].tolist() == [[11, 12, 100], [12, 100, 101], [0, 0, 102]]


def test_a_token_sees_what_its_row_s_blocks_have_and_the_first_in_place_of_those_before() -> None:
    """Of rows with 20 and 3 tokens, of which the last 2 and 3 are in the pass."""
    cache = torch.arange(64.0).view(4, 16, 1)
    batch = kernels.AttentionBatch(
        query_start=torch.tensor([0, 2, 5], dtype=torch.int32),
        seq_lens=torch.tensor([20, 3], dtype=torch.int32),
        block_tables=torch.tensor([[2, 1], [3, 0]], dtype=torch.int32),
        slots=torch.tensor([18, 19, 48, 49, 50]),
        max_query_len=3,
        max_seq_len=20,
    )
    found = CachedTokens(cache, batch).until(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 4)
    assert found[:, :, 0].tolist() == [[47, 16, 17, 18], [16, 17, 18, 19], [48, 48, 48, 49]]


def test_rows_keep_their_last_tokens_and_padding_keeps_what_was_there() -> None:
    history = histories([2, 0, 5, 0], [1, 3, -1, 0], [0, 2, 3, -1])
    history.keep_()
    assert history.state[:, :, 0].tolist() == [[12, 100, 101], [10, 11, 12], [30, 31, 32], [104, 105, 106]]


def test_rows_of_padding_alone_change_nothing() -> None:
    history = histories([1, 0], [-1, -1], [-1, -1])
    before = history.state.clone()
    history.keep_()
    assert_same_bits(history.state, before)


@pytest.mark.parametrize(("block", "ratio"), [(16, 4), (16, 128), (16, 24), (16, 5), (64, 16)])
def test_every_entry_has_a_place_of_its_own_in_the_block_of_its_last_token(block: int, ratio: int) -> None:
    tables = torch.randperm(40, generator=torch.Generator().manual_seed(1))[None].int()
    blocks = EntryBlocks(tables, block, ratio)
    entries = torch.arange(40 * block // ratio)
    places = blocks.slots(torch.zeros(1, dtype=torch.int64), entries[None])[0]
    assert len(set(places.tolist())) == len(entries)
    last = entries * ratio + ratio - 1
    assert (places // blocks.per_block).tolist() == tables[0, last // block].tolist()


def test_entries_that_are_none_are_not_written() -> None:
    blocks = EntryBlocks(torch.tensor([[1], [0]], dtype=torch.int32), 16, 4)
    cache = normal(2, 4, 3, seed=1)
    before, entries = cache.clone(), normal(3, 3, seed=2)

    def write(*numbers: int) -> None:
        rows, first = torch.tensor([0, 1, 0]), torch.zeros(3, dtype=torch.int64)
        CompletedEntries(rows, torch.tensor(numbers), first, entries).write_(entries, cache, blocks)

    write(-1, 2, -1)
    before[0, 2] = entries[1]
    assert_same_bits(cache, before)
    write(-1, -1, -1)
    assert_same_bits(cache, before)


def test_a_device_s_way_gives_the_logits_of_a_cpu_s(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what a device is given: every row padded to as many keys as the longest may see."""
    prompt, other = prompt_of(1), prompt_of(2, 30)

    def logits() -> list[torch.Tensor]:
        ours = PagedDecoder(folder, packed=False)
        ours.add(0, prompt)
        ours.add(1, other)
        first = ours.run((0, 0, 50))
        return [*first, *ours.run((1, 0, 30), (0, 50, 1)), *ours.run((0, 51, LENGTH - 51))]

    expected = logits()
    for kind in (CompressedAttention, EntryIndex):
        made: Any = kind.__init__

        def of_device(self: Any, *args: Any, made: Any = made, **options: Any) -> None:
            made(self, *args, **options)
            self._by_token = False

        monkeypatch.setattr(kind, "__init__", of_device)
    for ours, theirs in zip(logits(), expected, strict=True):
        assert_close(ours, theirs)


def test_a_token_has_the_same_bits_however_its_prompt_is_cut(folder: Path) -> None:
    prompt, other = prompt_of(3), prompt_of(4, 30)
    ours = PagedDecoder(folder, packed=False, invariant=True)
    for row in (0, 1):
        ours.add(row, prompt)
    ours.add(2, other)
    (whole,) = ours.run((0, 0, LENGTH))
    parts = [ours.run((1, 0, 37))[0], ours.run((2, 0, 30), (1, 37, 5))[1], ours.run((1, 42, LENGTH - 42))[0]]
    assert_same_bits(torch.cat(parts), whole)


def test_a_table_with_a_number_that_is_no_expert_s_is_refused() -> None:
    with pytest.raises(WeightError, match="outside the 4 that there are"):
        _experts_of_tokens(4, torch.tensor([[0, 4]]))
