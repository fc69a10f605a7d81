"""Multi-head latent attention (arXiv:2405.04434) over a paged cache of latents, and writes to that cache."""

import ctypes
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..attention import AttentionBatch
from ..guards import FLOATS, check_float32, describe, native_unsupported_reason, triton_unsupported_reason
from ..kv_cache.layout import BLOCK_MULTIPLE
from ..launching.repeated import LaunchCache
from ..native import by_dtype, pointers, threads
from ..variants import Choice, Variant, select_variant
from . import reference
from .reference import latents_of

if TYPE_CHECKING:
    from .triton import LatentLaunch  # heavy

__all__ = ["choose", "latent_attention", "latent_cache_shape", "latents_of", "write_latents_"]

_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS = (_P, _P, _P, _P, _P, _P, _I, _I, _I, _I, _I, _I, _I, _I, _P, _I, _I, _P, _F, _I)
_NATIVE = by_dtype("stentor_latent_attention", *_ARGUMENTS, restype=_I)
_LAUNCHES: "LaunchCache[LatentLaunch]" = LaunchCache()


def latent_cache_shape(num_blocks: int, dim: int, block_size: int) -> tuple[int, int, int]:
    """Returns the shape of one layer's cache of ``dim`` numbers per token. It is contiguous on every device; a slot is
    ``block * block_size + offset``.

    Raises:
        ValueError: ``block_size`` is not a positive multiple of 16.
    """
    if block_size <= 0 or block_size % BLOCK_MULTIPLE:
        raise ValueError(
            f"latent_cache_shape: block_size must be a positive multiple of {BLOCK_MULTIPLE}, not {block_size}"
        )
    return num_blocks, block_size, dim


def write_latents_(latents: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Writes the latents of T tokens to their slots; changes the cache.

    Args:
        latents: [T, dim] of the cache's dtype.
        cache: of :func:`latent_cache_shape`, contiguous.
        slots: [T] int64, each in [0, blocks * block_size).

    Raises:
        ValueError: shapes or dtypes that do not fit.
        IndexError: on the CPU, a slot outside the cache.
    """
    fits = cache.dim() == 3 and cache.is_contiguous() and latents.dtype == cache.dtype
    if not fits or latents.dim() != 2 or latents.shape[1] != cache.shape[2]:
        raise ValueError(f"write_latents_: latents {describe(latents)} do not fit cache {describe(cache)}")
    if slots.shape != latents.shape[:1] or slots.dtype != torch.int64:
        raise ValueError(f"write_latents_: slots {describe(slots)} must be int64 [{len(latents)}]")
    cache.view(-1, cache.shape[2]).index_copy_(0, slots, latents)


def choose(q: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`latent_attention` runs. Raises ValueError if one is asked for that cannot run."""
    return select_variant(
        variant,
        triton=triton_unsupported_reason(q, variant),
        native=native_unsupported_reason(_NATIVE.get(q.dtype), q),
    )


def latent_attention(
    q: Tensor,
    cache: Tensor,
    batch: AttentionBatch,
    *,
    rank: int,
    scale: float,
    chosen: Tensor | None = None,
    pool: int = 1,
    sinks: Tensor | None = None,
    variant: Choice = "auto",
) -> Tensor:
    """Attends each new token to the latents of its sequence up to its own, or to the chosen ones of these.

    The latents are in the cache already.

    Args:
        q: [T, H, dim], contiguous: the first ``rank`` numbers of a query are projected into the space of latents, the
            others are rotated.
        cache: the layer's (:func:`latent_cache_shape`), of the dtype of ``q``, contiguous.
        batch: the sequences; T tokens in all.
        rank: numbers of a latent, which are the values; the cache's further numbers belong to keys only.
        scale: multiplies q·k; positive.
        chosen: [T, width] int32, contiguous: the positions that each token attends to, as many as it sees and
            ``width - pool + 1 + seen % pool`` at most (:func:`stentor.kernels.top_tokens`); None: all that it sees. The
            Triton variant does not check that it sees them.
        pool: tokens that are chosen together. Those of a last, incomplete pool are always chosen.
        sinks: [H] float32, a score per head that takes part in its softmax and has no value; None: none.
        variant: forces an implementation.

    Returns:
        [T, H, rank], a new contiguous tensor; sums are in float32. Padding gives zeros. In the native variant a row
        depends, bit for bit, only on its own position, query, choice and latents. Choosing all latents in order gives
        the same bits as None.

    Raises:
        ValueError: shapes, dtypes, strides or numbers that do not fit.
        IndexError: on the CPU, a block table that leads outside the cache or is shorter than its sequence, or a chosen
            position that a token does not see.
        MemoryError: on the CPU, no room to plan the batch.
    """
    given = tuple(each for each in (q, cache, batch.block_tables, chosen, sinks) if each is not None)
    numbers = (rank, scale, pool, batch.num_tokens, batch.max_seq_len, variant)
    key, launch = _LAUNCHES.find(given, *numbers)
    if launch is not None:
        return launch.run(q, cache, batch, chosen, sinks)
    fits = (
        cache.dim() == 3 and cache.is_contiguous() and cache.dtype == q.dtype and cache.shape[1] % BLOCK_MULTIPLE == 0
    )
    if q.dim() != 3 or q.dtype not in FLOATS or not q.is_contiguous() or not fits or q.shape[2] != cache.shape[2]:
        raise ValueError(f"latent_attention: q {describe(q)} does not fit cache {describe(cache)}")
    if len(q) != batch.num_tokens:
        raise ValueError(f"latent_attention: q has {len(q)} tokens, the batch has {batch.num_tokens}")
    if not 0 < rank <= q.shape[2] or not scale > 0:
        raise ValueError(f"latent_attention: rank {rank} must be 1 to {q.shape[2]}, and scale {scale} positive")
    if chosen is not None and (
        chosen.dim() != 2 or chosen.dtype != torch.int32 or len(chosen) != len(q) or not chosen.is_contiguous()
    ):
        raise ValueError(f"latent_attention: chosen {describe(chosen)} must be contiguous int32 [{len(q)}, width]")
    if pool < 1 or (pool > 1 and (chosen is None or chosen.shape[1] < pool)):
        raise ValueError(f"latent_attention: pools of {pool} tokens must be positive, and narrower than the choices")
    if sinks is not None:
        check_float32("latent_attention", "sinks", sinks, (q.shape[1],))
    selected = choose(q, variant)
    if selected == "reference":
        return reference.latent_attention(q, cache, batch, rank, scale, chosen, pool, sinks)
    if selected == "triton":
        from .triton import prepare_latents  # late: Triton takes long to import

        launch = prepare_latents(q, cache, batch, rank, scale, chosen, pool, sinks)
        return _LAUNCHES.keep(key, launch).run(q, cache, batch, chosen, sinks)
    tokens, heads, dim = q.shape
    blocks, size, _ = cache.shape
    out = q.new_empty((tokens, heads, rank))
    fault = _NATIVE[q.dtype](
        *pointers(q, cache, out),
        *batch.addresses,
        *(tokens, heads, dim, rank, size, blocks, batch.block_tables.shape[1]),
        *pointers(chosen),
        0 if chosen is None else chosen.shape[1],
        pool,
        *pointers(sinks),
        scale,
        threads(),
    )
    batch.check_fault(fault, "latent_attention", "the lengths, the block table or the choices")
    return out
