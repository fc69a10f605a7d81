"""Attention over odd shapes, for a memory checker to watch: lengths and heads that fill no tile."""

import torch

from stentor.kernels import AttentionBatch, make_kv_cache, paged_attention


def main() -> None:
    torch.manual_seed(0)
    for dim, group, size in ((128, 4, 16), (96, 7, 32), (64, 1, 128)):
        for lengths, queries in (([1, 33, 129], [1, 1, 1]), ([70, 5, 200], [1, 5, 67]), ([0, 17], [1, 17])):
            _attend(dim, group, size, lengths, queries)
    torch.cuda.synchronize()
    print("attended")


def _attend(dim: int, group: int, size: int, lengths: list[int], queries: list[int]) -> None:
    columns = -(-max(lengths) // size)
    blocks = len(lengths) * columns
    k, v = make_kv_cache(blocks, 2, dim, size, torch.bfloat16, torch.device("cuda"))
    for cache in (k, v):
        cache.normal_()
    starts = [0]
    for count in queries:
        starts.append(starts[-1] + count)
    batch = AttentionBatch(
        query_start=torch.tensor(starts, dtype=torch.int32, device="cuda"),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device="cuda"),
        block_tables=torch.randperm(blocks, device="cuda").to(torch.int32).view(len(lengths), columns),
        slots=torch.zeros(starts[-1], dtype=torch.int64, device="cuda"),
        max_query_len=max(queries),
        max_seq_len=max(lengths),
        decode_rows=next((row for row, count in enumerate(queries) if count != 1), len(queries)),
    )
    q = torch.randn(starts[-1], 2 * group, dim, device="cuda").bfloat16()
    out = paged_attention(q, k, v, batch, scale=dim**-0.5)
    assert bool(torch.isfinite(out).all())


if __name__ == "__main__":
    main()
