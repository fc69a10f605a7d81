"""Decoders whose modules attend by their own code: runs one row at a time over a transformers cache.

That cache is filled from the row's part of the paged cache, to which new keys and values are copied after the pass.
This supports modules that take no attention function: with a bias by distance (ALiBi), own position counting, or keys
wider than values.
"""

from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import pad

from stentor import kernels
from stentor.kernels.attention.reference import gather

from ...layers.forward_batch import CacheScales, ForwardBatch, LayerCache
from ...layers.linear.weights import WeightError
from ...model_config.transformers_config import TransformersSpec
from .modules import TRIED_TOKENS, Modules


def hidden_by_row(modules: Modules, spec: TransformersSpec, batch: ForwardBatch) -> torch.Tensor:
    """Hidden states [tokens, hidden]; writes keys and values to the batch's caches."""
    tokens, of_rows = batch.tokens, batch.attention[0]
    assert isinstance(tokens, torch.Tensor)
    parts = []
    bounds = pairwise(of_rows.query_start.tolist())
    for row, ((start, end), length) in enumerate(zip(bounds, of_rows.seq_lens.tolist(), strict=True)):
        past = length - (end - start)
        cache = _filled(modules, spec, batch, row, past)
        parts.append(modules.hidden_of_row(tokens[start:end], batch.positions[start:end], cache))
        for kept, layer, store in zip(spec.rows, spec.layers, batch.caches, strict=True):
            held = cache.layers[kept.layer]
            k, v = (_as_wide(each[0, :, past:], layer.attention.head_dim) for each in (held.keys, held.values))
            k_scale, v_scale = _scales(store)
            slots = batch.attention[store.group].slots[start:end]
            kernels.write_kv_(k, v, store.k, store.v, slots, k_scale=k_scale, v_scale=v_scale)
    return torch.cat(parts)


def check_rows(modules: Modules, spec: TransformersSpec, device: torch.device) -> None:
    """Check that a text gives equal hidden states in one pass and in two. Raises :class:`WeightError`.

    They differ if tokens see later ones, or if modules need more than keys and values.
    """
    from transformers import DynamicCache

    tokens = torch.arange(TRIED_TOKENS, device=device) % spec.vocab_size
    positions = torch.arange(TRIED_TOKENS, device=device)
    half = TRIED_TOKENS // 2
    with torch.inference_mode():
        whole = modules.hidden_of_row(tokens, positions, DynamicCache())
        cache: Any = DynamicCache()
        parts = [modules.hidden_of_row(tokens[at], positions[at], cache) for at in (slice(half), slice(half, None))]
    if not modules.are_alike(torch.cat(parts), whole):
        raise WeightError(
            f"transformers' {spec.architecture} says other things of a text in two passes than in one: its tokens see "
            "others than those before them, or need more than keys and values"
        )


def _filled(modules: Modules, spec: TransformersSpec, batch: ForwardBatch, row: int, past: int) -> Any:
    """A transformers cache with the first ``past`` keys and values of a row."""
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    if past == 0:
        return cache
    for kept, store in zip(spec.rows, batch.caches, strict=True):
        table = batch.attention[store.group].block_tables[row]
        blocks = table[: -(-past // store.k.shape[3])].long()
        k, v = gather(store.k, store.v, blocks, past, *_scales(store))
        keys, values = k[None, ..., : kept.key_dim], v[None, ..., : kept.value_dim]
        cache.update(keys.to(modules.dtype), values.to(modules.dtype), kept.layer)
    return cache


def _as_wide(rows: torch.Tensor, width: int) -> torch.Tensor:
    """[heads, tokens, dim] → [tokens, heads, width], padded with zeros."""
    return pad(rows, (0, width - rows.shape[2])).transpose(0, 1).contiguous()


def _scales(store: LayerCache) -> CacheScales:
    ones = torch.ones(store.k.shape[1], dtype=torch.float32, device=store.k.device)
    return store.scales((ones, ones))
