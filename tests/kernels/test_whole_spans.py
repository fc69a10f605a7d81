"""Spans whose tokens see each other, beside attention over plain tensors."""

import pytest
import torch

from stentor import kernels

HEADS, KV_HEADS, DIM, SIZE = 4, 2, 8, 16


@pytest.mark.parametrize("members", [None, [True, False, False, True, True, False]])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("window", [0, 5, 24])
@pytest.mark.parametrize("start", [0, 13, 39])
def test_a_span_sees_itself_whole_and_what_its_window_reaches_before_it(
    window: int, start: int, windowed: bool, members: list[bool] | None
) -> None:
    torch.manual_seed(start)
    count, behind = 6, 2
    length = start + count + behind
    k, v = torch.randn(2, length, KV_HEADS, DIM)
    q = torch.randn(count + behind, HEADS, DIM)
    blocks = torch.tensor([5, 0, 3, 6, 1], dtype=torch.int32)
    k_cache, v_cache = kernels.make_kv_cache(8, KV_HEADS, DIM, SIZE, torch.float32, torch.device("cpu"))
    at = torch.arange(length)
    slots = blocks[at // SIZE].long() * SIZE + at % SIZE
    kernels.write_kv_(k, v, k_cache, v_cache, slots)
    batch = kernels.AttentionBatch(
        query_start=torch.tensor([0, count + behind], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
        block_tables=blocks[None],
        slots=torch.zeros(count + behind, dtype=torch.int64),
        max_query_len=count + behind,
        max_seq_len=length,
    )
    out = kernels.paged_attention(q, k_cache, v_cache, batch, scale=0.3, window=window)
    causal = out.clone()
    chosen = None if members is None else torch.tensor(members)
    spans = [kernels.WholeSpan(0, count, 0, start, chosen)]
    kernels.attend_whole_spans_(out, q, k_cache, v_cache, batch, spans, scale=0.3, window=window, windowed=windowed)
    assert torch.equal(out[count:], causal[count:]), "other rows stay as they are"
    position, key = torch.arange(start, start + count)[:, None], torch.arange(start + count)[None]
    seen = torch.ones(count, start + count, dtype=torch.bool)
    if window:
        seen = (key > position - window) | ((key >= start) & (not windowed) & (members is None))
    if chosen is not None:  # others see none behind them, and members see members
        mutual = torch.zeros(count, start + count, dtype=torch.bool)
        mutual[:, start:] = chosen[:, None] & chosen
        seen &= (key <= position) | mutual
    keys, values = (each[: start + count].repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for each in (k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q[:count].transpose(0, 1), keys, values, attn_mask=seen, scale=0.3
    )
    torch.testing.assert_close(out[:count], expected.transpose(0, 1))
    blank = slots[start:]
    kernels.write_kv_(torch.full_like(k[start:], torch.nan), v[start:], k_cache, v_cache, blank)
    apart = torch.empty_like(q)
    kernels.attend_whole_spans_(
        *(apart, q, k_cache, v_cache, batch, spans),
        scale=0.3,
        window=window,
        windowed=windowed,
        own=(k[start:], v[start:]),
    )
    assert torch.equal(apart[:count], out[:count]), "keys and values that are in no cache"
