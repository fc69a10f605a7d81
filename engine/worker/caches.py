"""The KV cache: its dtype, size and tensors."""

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from stentor.kernels import kv_cache_shape, kv_scale_shape, latent_cache_shape
from stentor.kernels.kv_cache import make_kv_cache
from stentor.kernels.native.memory import empty_huge
from stentor.protocols.ipc.cache_groups import CacheGroup, CacheKind
from stentor.protocols.ipc.config import CacheDType

from ..layers.forward_batch import LayerCache
from ..model_config.spec.cache import CacheSpec
from .errors import SetupError
from .memory import format_bytes

FP8 = torch.float8_e4m3fn
_FP8_CAPABILITY = 89
_SCALES = torch.float32
"""Scales of int8 keys and values."""
_MOST_GROUPS = 8
"""Limit of groups with their own block tables; each costs a step a little."""
_WINDOWS_LONG = 8


def choose_cache_dtype(
    wanted: CacheDType, dtype: torch.dtype, device: torch.device, groups: Sequence[CacheSpec] = ()
) -> torch.dtype:
    """The dtype of the activations, or one of 8 bits if it was requested and is supported.

    Raises :class:`.errors.SetupError` if the device or ``groups`` do not support it.
    """
    if wanted in ("fp8", "int8") and any(group.kind == "latent" or group.index_dim for group in groups):
        what = "latents" if any(group.kind == "latent" for group in groups) else "keys of an index"
        raise SetupError(
            f"--kv-cache-dtype {wanted}: the model keeps {what}, which have no scales for it; leave it out"
        )
    if wanted == "int8":
        if device.type != "cpu":
            raise SetupError("--kv-cache-dtype int8 is for CPUs: use --kv-cache-dtype fp8, which takes as many bytes")
        return torch.int8
    if wanted == "fp8":
        from stentor.kernels.quantize.fp8 import capability  # late: importing Triton takes half a second

        if device.type == "cuda" and (found := capability()) < _FP8_CAPABILITY:
            raise SetupError(
                "--kv-cache-dtype fp8 needs a GPU of compute capability 8.9 (Ada, Hopper) or later, this one has "
                f"{found // 10}.{found % 10}: use --kv-cache-dtype auto"
            )
        return FP8
    own = str(dtype).removeprefix("torch.")
    if wanted not in ("auto", own):
        raise SetupError(f"--kv-cache-dtype {wanted}: the model computes in {own}; use auto, {own}, int8 or fp8")
    return dtype


def check_index_blocks(block_size: int, groups: Sequence[CacheSpec]) -> None:
    """Raise :class:`.errors.SetupError` unless blocks of the cache divide those that an index chooses. Regions with one
    key each (``index_every``) divide every block."""
    for chosen in sorted({group.index_block for group in groups if not group.index_every} - {0}):
        if chosen % block_size:
            raise SetupError(
                f"--block-size {block_size}: the model attends to blocks of {chosen} tokens, expected a size that "
                "divides them"
            )


class BlockGroup(msgspec.Struct, frozen=True):
    """Layers that share block tables."""

    layers: tuple[int, ...]
    window: int
    """Tokens that are seen; 0: all."""


def block_groups_of(groups: Sequence[CacheSpec], longest: int) -> tuple[BlockGroup, ...]:
    """Divide a model's layers into groups whose blocks have one size.

    A block is one token range of as many layers as the largest group has; smaller groups leave a part unused. The
    number of layers a group is chosen for the least memory of sequences of a few windows' length. A window of
    ``longest`` or more tokens counts as none. If layers store different amounts a token, all are one group without a
    window. A model of recurrent layers only has no group.
    """
    if not groups:
        return ()
    layers = tuple(sorted(layer for group in groups for layer in group.layers))
    by_window: dict[int, list[int]] = {}
    for group in groups:
        by_window.setdefault(group.window if group.window < longest else 0, []).extend(group.layers)
    if len({(group.widths, group.kv_heads, group.every, group.index_every) for group in groups}) > 1:
        return (BlockGroup(layers, 0),)
    if len(by_window) == 1:
        return (BlockGroup(layers, next(iter(by_window))),)
    length = min(longest, _WINDOWS_LONG * max(by_window))

    def taken(share: int) -> int:
        return sum(-(-len(of) // share) * share * min(length, window or length) for window, of in by_window.items())

    shares = range(1, len(layers) + 1)
    allowed = [share for share in shares if sum(-(-len(of) // share) for of in by_window.values()) <= _MOST_GROUPS]
    share = min(allowed, key=lambda share: (taken(share), -share))
    return tuple(
        BlockGroup(tuple(of[first : first + share]), window)
        for window, of in by_window.items()
        for first in range(0, len(of), share)
    )


def cache_groups(specs: Sequence[CacheSpec], block_groups: Sequence[BlockGroup]) -> tuple[CacheGroup, ...]:
    """The engine's description of the groups. Without ``block_groups``, layers store nothing or are one group."""
    kind: CacheKind = "latent" if any(spec.kind == "latent" for spec in specs) else "full"
    by_prompt = any(spec.by_prompt for spec in specs)
    if specs and not block_groups:
        return (CacheGroup(kind, by_prompt=by_prompt),)
    return tuple(
        CacheGroup("window" if group.window else kind, group.window, by_prompt=by_prompt) for group in block_groups
    )


def of_groups(block_groups: Sequence[BlockGroup]) -> str:
    """The groups of blocks, described for the operator."""
    if len(block_groups) < 2:
        return f", in a window of {block_groups[0].window:,}" if block_groups and block_groups[0].window else ""
    full, sliding = (sum(bool(group.window) == windowed for group in block_groups) for windowed in (False, True))
    seen = " and ".join(f"{window:,}" for window in sorted({group.window for group in block_groups} - {0}))
    return f", for {len(block_groups)} groups of layers: {full} of all tokens, {sliding} of windows of {seen}"


def kv_block_bytes(
    groups: Sequence[CacheSpec], block_size: int, dtype: torch.dtype, block_groups: Sequence[BlockGroup] = ()
) -> int:
    """Bytes of one block: over all layers, or of one of several groups ``block_groups``."""
    if len(block_groups) > 1:
        share = max(len(group.layers) for group in block_groups)
        return _block_bytes(groups[0], block_size, dtype) // len(groups[0].layers) * share
    return sum(_block_bytes(group, block_size, dtype) for group in groups)


def _block_bytes(group: CacheSpec, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, with the scales of int8 keys and values."""
    scales = 2 * group.kv_heads * len(group.layers) * _SCALES.itemsize if dtype == torch.int8 else 0
    return group.block_bytes(block_size, dtype.itemsize) + scales * block_size


def allocate_caches(
    groups: Sequence[CacheSpec],
    num_blocks: int,
    block_size: int,
    device: torch.device,
    dtype: torch.dtype,
    block_groups: Sequence[BlockGroup] = (),
) -> list[LayerCache]:
    """The zeroed cache of every layer. Layers of different groups in ``block_groups`` share tensors."""
    of_layer = {layer: group for group in groups for layer in group.layers}
    block_groups = block_groups or (BlockGroup(tuple(sorted(of_layer)), 0),)
    first = max(block_groups, key=lambda group: len(group.layers))
    made = [_allocate(of_layer[layer], num_blocks, block_size, device, dtype) for layer in first.layers]
    found = {
        layer: LayerCache(tensors, index, block_size)
        for index, group in enumerate(block_groups)
        for layer, tensors in zip(group.layers, made, strict=False)
    }
    return [found[layer] for layer in sorted(found)]


def cache_tensors(caches: Sequence[LayerCache]) -> list[torch.Tensor]:
    """Each tensor once, in the order of layers."""
    return [*{id(tensor): tensor for cache in caches for tensor in cache.tensors}.values()]


def host_memory(places: int, each: int, device: torch.device) -> torch.Tensor | None:
    """Host memory for so many blocks of ``each`` bytes, uint8 [places, each]; None for none. Pages are taken as it
    fills; for a GPU all are page-locked, so that copies run beside the host. Raises :class:`.errors.SetupError` where
    it cannot be had."""
    if not places:
        return None
    try:
        memory = empty_huge(places * each)
        if device.type == "cuda":  # torch's own page-locked memory is rounded up to a power of two
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    except (MemoryError, RuntimeError) as error:
        raise SetupError(
            f"--kv-offloading-size: {format_bytes(places * each)} of host memory cannot be had: {error}"
        ) from error
    return memory.view(places, each)


class BlockCopier:
    """Copies blocks of a KV cache in all layers: within it, to a host tier and back."""

    def __init__(self, tensors: Sequence[torch.Tensor], host: torch.Tensor | None = None) -> None:
        """``tensors``: [blocks, ...] each; ``host``: see :func:`host_memory`."""
        tensors = [_as_bytes(tensor) for tensor in tensors]
        widths = [tensor.shape[1] for tensor in tensors]
        parts = [None] * len(tensors) if host is None else host.split(widths, dim=1)
        # numpy copies in a fifth of torch's time, which counts if a row has a single token to compute
        self._on_host = [
            (tensor.numpy(), None if part is None else part.numpy())
            for tensor, part in zip(tensors, parts, strict=True)
            if tensor.device.type == "cpu"
        ]
        self._elsewhere = [pair for pair in zip(tensors, parts, strict=True) if pair[0].device.type != "cpu"]

    def copy_(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy (source, target) blocks in order; numbers below 0 are places of the host tier, as in
        :attr:`stentor.protocols.ipc.steps.StepPlan.copies`. Mutates the caches; on a device the copies are queued."""
        for source, target in copies:
            for array, part in self._on_host:
                _row(array, part, target)[:] = _row(array, part, source)
            for tensor, place in self._elsewhere:
                _row(tensor, place, target).copy_(_row(tensor, place, source), non_blocking=True)


Rows = TypeVar("Rows", torch.Tensor, npt.NDArray[np.uint8])


def _row(blocks: Rows, host: Rows | None, number: int) -> Rows:
    """The bytes of a block, or of a place in host memory."""
    assert number >= 0 or host is not None, "there is no host tier"
    row: Rows = blocks[number] if host is None or number >= 0 else host[~number]
    return row


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the memory as [blocks, bytes]."""
    if not tensor.is_contiguous():
        tensor = tensor.transpose(2, 3)  # keys of a device
    return tensor.view(len(tensor), -1).view(torch.uint8)


def _allocate(
    group: CacheSpec, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    shapes = [latent_cache_shape(num_blocks, width, block_size) for width in group.widths]
    places = group.entries(block_size)
    shapes = [(blocks, held, width) for (blocks, _, width), held in zip(shapes, places, strict=True)]
    if group.kind != "latent":
        shapes = shapes[2:]  # behind keys and values
    if device.type == "cpu":
        flat = tuple(_untouched_zeros(latents, dtype) for latents in shapes)
    else:
        flat = tuple(torch.zeros(latents, dtype=dtype, device=device) for latents in shapes)
    if group.kind == "latent":
        return flat
    shape = (num_blocks, group.kv_heads, group.head_dim, block_size)
    if device.type != "cpu":
        return *make_kv_cache(*shape, dtype, device), *flat
    made = [_untouched_zeros(each, dtype) for each in kv_cache_shape(*shape)]
    if dtype == torch.int8:
        made += [_untouched_zeros(kv_scale_shape(num_blocks, group.kv_heads, block_size), _SCALES) for _ in made]
    return *made, *flat


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    # torch.zeros would write every page; fresh pages are zero and cost nothing until they are used
    return empty_huge(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
