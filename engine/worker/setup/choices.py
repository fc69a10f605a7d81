"""Checks a worker's options against the model, and chooses dtypes, device and ranks, before the model is made."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec
import torch
from msgspec.structs import replace

from stentor.kernels import native
from stentor.kernels.linear_packed import PLAIN
from stentor.protocols.ipc.config import WorkerConfig

from ...layers.linear.layer_context import LayerContext
from ...layers.linear.rank_group import RankGroup
from ...model_config.encoders.transformers_config import TransformersEncoder
from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.layer import LayerSpec
from ..adapters.setup import places_for
from ..caches import check_index_blocks, choose_cache_dtype
from ..device.device import Device
from ..errors import SetupError
from ..families.audio import Transcription
from ..families.encoder_decoder import TextToText
from ..families.family import Family, Text
from ..families.framewise import FramewiseTranscription
from ..families.host_tier import check_host_tier
from ..families.pooling import PoolingFamily
from ..families.setup_parts import (
    ProgressCallback,
    choose_dtype,
    layer_context,
    multiplied_from_codes,
    prepare_kernels,
    share_threads,
)
from ..families.transformers import TransformersText
from ..limits import with_limits
from .drafts import DraftSource, check_drafts, open_draft

_MEETING: Final = "waiting for the other workers"
_NOT_OURS: Final = "adapters are served of Whisper and of models of text that run in this server's own code"
_CPU: Final = torch.device("cpu")


class SetupChoices(msgspec.Struct, frozen=True):
    """Decisions about a worker that precede the making of its model."""

    config: WorkerConfig
    progress: ProgressCallback
    wanted: int
    """The longest sequence before the cache is sized."""
    context: LayerContext
    device: Device | None
    """None for the host's cores."""
    cache_dtype: torch.dtype
    draft: DraftSource | None
    shapes: Callable[[], Any]
    """The model without memory; made once."""
    has_own_cpus: bool
    notes: list[str]


def choose(
    family: Family, config: WorkerConfig, progress: ProgressCallback, device: Device | None, meeting_fd: int | None
) -> SetupChoices:
    """Check the options against the model, prepare kernels, choose dtypes, and meet the other ranks."""
    at = _CPU if device is None else device.torch_device
    checkpoint = family.checkpoint
    if config.enable_lora:
        _check_adaptable(family)
    if config.batch_invariant and device is not None:
        _check_invariant(config, family)
    config = with_limits(config, family.limits)
    check_drafts(config, family)
    check_host_tier(config, family)
    wanted = family.longest(config)
    draft = open_draft(config, family)
    if isinstance(family, PoolingFamily) and not family.groups:
        config = msgspec.structs.replace(config, max_num_batched_tokens=max(config.max_num_batched_tokens, wanted))
    notes: list[str] = []
    has_own_cpus = False
    if device is None:
        notes, has_own_cpus = prepare_kernels(config, progress, alone=not _threads_of_torch(family))
    else:
        share_threads(config)
    packs = device is None and family.packs and native.library() is not None
    from_codes = packs and (config.quantization == "int8" or multiplied_from_codes(checkpoint.quantized))
    dtype = choose_dtype(
        config.dtype, at, checkpoint.dtype, batch_invariant=config.batch_invariant, from_codes=from_codes
    )
    check_index_blocks(config.block_size, family.groups)
    cache_dtype = choose_cache_dtype(config.kv_cache_dtype, dtype, at, family.groups)
    ranks = None if meeting_fd is None else _joined(config, meeting_fd, at, progress)
    adapters = places_for(config, on_device=device is not None)
    context = layer_context(checkpoint, config, at, dtype, adapters)
    context = replace(context, packed=packs and dtype in PLAIN, ranks=ranks)

    @cache
    def shapes() -> Any:
        places = places_for(config, on_device=device is not None)
        return family.made(replace(context, shapes_only=True, adapters=places), 1)

    return SetupChoices(config, progress, wanted, context, device, cache_dtype, draft, shapes, has_own_cpus, notes)


def _check_adaptable(family: Family) -> None:
    """Raise :class:`SetupError` if the model cannot have adapters."""
    why = ""
    if isinstance(family, PoolingFamily):
        if isinstance(family.spec.backbone, TransformersEncoder):
            why = f"{_NOT_OURS}; leave it out"
        elif family.spec.adapters:
            why = f"the model has adapters of its own, for {', '.join(family.spec.adapters)}; leave it out"
    elif not isinstance(family, Text | Transcription) or isinstance(family, TransformersText):
        why = f"{_NOT_OURS}; leave it out"
    if why:
        raise SetupError(f"--enable-lora: {why}")


def _check_invariant(config: WorkerConfig, family: Family) -> None:
    """Raise :class:`SetupError` if the model cannot be batch-invariant on a device."""
    why = ""
    if config.tensor_parallel_size > 1:
        why = "sums over GPUs have no order of their own; leave --tensor-parallel-size out"
    elif config.enable_lora:
        why = "what adapters add on a GPU depends on the batch; leave --enable-lora out"
    elif type(family) is not Text or family.spec.states or not all(map(_attends, family.spec.layers)):
        why = "on a GPU it holds for models of text that attend to keys and values in every layer; use --device cpu"
    if why:
        raise SetupError(f"--batch-invariant: {why}")


def _attends(layer: LayerSpec) -> bool:
    return isinstance(layer.mixer, AttentionSpec)


def _threads_of_torch(family: Family) -> bool:
    """Whether large computations may run in torch beside our kernels."""
    if isinstance(family, FramewiseTranscription):
        return not family.packs
    return isinstance(family, Text | TextToText) or (isinstance(family, PoolingFamily) and family.has_encoder)


def _joined(config: WorkerConfig, meeting_fd: int, device: torch.device, progress: ProgressCallback) -> RankGroup:
    """Join the other ranks, once all have come."""
    progress(_MEETING, 0, 1)
    ranks = RankGroup(config.rank, config.group_size, meeting_fd, device)
    progress(_MEETING, 1, 1)
    return ranks
