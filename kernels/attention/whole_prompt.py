"""Attention of a prompt that begins with its step, by torch's SDPA: cuDNN's kernel on a GPU.

All its keys are of this step, so they can be laid out contiguously; our kernels follow a block table. cuDNN makes a
plan for each length, so lengths are rounded up.
"""

from typing import Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from ..forced import forced
from ..launching.launch import cdiv
from ..providers import Case, Chosen, Provider, choose_provider
from ..tuning import Config, pick
from .arguments import AttentionArgs
from .prefill_config import attention_key

OPERATION: Final = "whole_prompt"
OURS, LIBRARY = Config.of(PROVIDER=1), Config.of(PROVIDER=2)
"""The kernels that may attend: ours, unless a tuning table says that cuDNN's is faster."""
LEAST_TOKENS: Final = 512
"""The shortest prompt for it: below, laying out keys and starting other kernels takes longer than they save."""
LENGTHS: Final = 256
"""Prompts are padded to a multiple of this, with keys that no query of theirs sees."""
HELD_BACK: Final = "stentor tune has not found it faster on this GPU"
CUDNN: Final = Provider(
    name="torch",
    title="cuDNN's attention",
    capabilities=(90, 100),
    dtypes=(torch.bfloat16, torch.float16),
    multiple=8,  # dims of a head
    features=frozenset(),
    graph_safe=True,  # it never waits; a captured graph does not know lengths and never uses it
)


def choose_whole_prompt(
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    dim: int,
    group: int,
    size: int,
    *,
    window: int = 0,
    softcap: float = 0.0,
    sinks: bool = False,
    slopes: bool = False,
    causal: bool = True,
    invariant: bool = False,
) -> Chosen:
    """Returns the provider that attends prompts that begin with their step and have at least :data:`LEAST_TOKENS`
    tokens.

    Args:
        device: where the tensors are.
        dtype, kv_dtype: of queries and of the cache.
        dim: of a head.
        group: query heads of a kv head.
        size: tokens of a block of the cache.
        window, softcap, sinks, slopes, causal, invariant: as for :func:`stentor.kernels.paged_attention`; a chunk is a
            window.
    """
    asked = {
        "windows": window != 0,
        "soft caps": softcap > 0,
        "sinks": sinks,
        "biases by distance": slopes,
        "keys after a query": not causal,
        "caches of 8 bits": kv_dtype != dtype,
        "batch invariance": invariant,
    }
    case = Case(device, dtype, (dim,), frozenset(name for name, wants in asked.items() if wants))
    chosen = choose_provider(case, (CUDNN,))
    if chosen.provider is None:
        return chosen
    key = attention_key(dim, group, dtype, kv_dtype, size, few=False, windowed=False)
    return chosen if pick(OPERATION, key, OURS) == LIBRARY else Chosen(None, ((CUDNN, HELD_BACK),))


def runs_on_library(args: AttentionArgs, tokens: int) -> bool:
    """Whether cuDNN attends a prompt of this many tokens. Never in a dry run: torch asks the GPU whether cuDNN can."""
    q, k_cache = args.q, args.k_cache
    if tokens < LEAST_TOKENS or forced.get().launch is not None:
        return False
    chosen = choose_whole_prompt(
        q.device,
        q.dtype,
        k_cache.dtype,
        q.shape[2],
        q.shape[1] // k_cache.shape[1],
        k_cache.shape[3],
        window=args.window,
        softcap=args.softcap,
        sinks=args.sinks is not None,
        slopes=args.slopes is not None or args.distances is not None,
        causal=args.causal,
    )
    return chosen.provider is not None


def attend_whole_prompt(args: AttentionArgs, *, skipped: int, tokens: int) -> None:
    """Attends the one sequence after the first ``skipped``, all of whose tokens are the last ``tokens`` rows of ``q``;
    writes ``out``."""
    first = len(args.q) - tokens
    size = args.k_cache.shape[3]
    blocks = args.block_tables[skipped, : cdiv(tokens, size)]
    keys = args.k_cache.index_select(0, blocks).permute(1, 0, 3, 2)  # [kv heads, blocks, size, dim]
    values = args.v_cache.index_select(0, blocks).permute(1, 0, 2, 3)
    behind = (0, 0, 0, -tokens % LENGTHS)
    q = pad(args.q[first:].transpose(0, 1), behind)
    # the end of the last block is uninitialised
    k, v = (pad(each.flatten(1, 2)[:, :tokens], behind) for each in (keys, values))
    backend = SDPBackend.CUDNN_ATTENTION if q.is_cuda else SDPBackend.MATH
    with sdpa_kernel(backend):
        found = scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, scale=args.scale, enable_gqa=True
        )
    args.out[first:] = found[0, :, :tokens].transpose(0, 1)
