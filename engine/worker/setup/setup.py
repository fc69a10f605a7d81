"""The worker's set-up: its device, and the family of its model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch

from stentor.protocols.ipc.config import WorkerConfig

from ...loading.checkpoint import Checkpoint, open_checkpoint
from ...loading.pooling_checkpoint import open_pooling
from ...model_config.encoders.pooling import PoolingConfig
from ...model_config.seq2seq.text import TextToTextConfig
from ...model_config.spec.model import ModelSpec
from ...model_config.speech.fast_conformer import FastConformerConfig
from ...model_config.speech.framewise import FramewiseConfig
from ...model_config.speech.kyutai import KyutaiConfig
from ...model_config.speech.moonshine import MoonshineConfig
from ...model_config.speech.moonshine_streaming import MoonshineStreamingConfig
from ...model_config.speech.seamless import SeamlessConfig
from ...model_config.speech.speech_to_text import Speech2TextConfig
from ...model_config.speech.voxtral_realtime import VoxtralRealtimeConfig
from ...model_config.speech.whisper import WhisperConfig
from ...model_config.transformers_config import TransformersSpec
from ...sharing.lease import Member
from ..device.cuda import CudaDevice
from ..device.device import Device
from ..errors import SetupError
from ..families.audio import StreamedTranscription, Transcription
from ..families.encoder_decoder import TextToText
from ..families.family import Family, Text
from ..families.framewise import FramewiseTranscription
from ..families.media import TextWithMedia, sees, with_prompts
from ..families.pooling import PoolingFamily
from ..families.setup_parts import ProgressCallback, Setup
from ..families.transformers import TransformersText
from .decoder import set_up_family
from .split_checkpoint import split_checkpoint

_WAITING: Final = "waiting for the device"
_FAMILIES: Final[Mapping[type, Callable[[Checkpoint, str], Family]]] = {
    ModelSpec: Text,
    TransformersSpec: TransformersText,
    TextToTextConfig: TextToText,
    WhisperConfig: Transcription,
    MoonshineConfig: Transcription,
    MoonshineStreamingConfig: Transcription,
    FastConformerConfig: Transcription,
    SeamlessConfig: Transcription,
    Speech2TextConfig: Transcription,
    FramewiseConfig: FramewiseTranscription,
    VoxtralRealtimeConfig: StreamedTranscription,
    KyutaiConfig: StreamedTranscription,
    PoolingConfig: PoolingFamily,
}
"""By the type of a model's description."""


def set_up(
    config: WorkerConfig,
    progress: ProgressCallback,
    weights_fd: int | None = None,
    member: Member | None = None,
    meeting_fd: int | None = None,
) -> Setup:
    """Load the model, size the KV cache and complete a real step.

    Raises :class:`SetupError` and the loader's errors, each with one clear line.

    Args:
        weights_fd: memory file for weights prepared for a CPU; None: they are not kept.
        member: this worker in the lease of its device; None: it is alone there. On a GPU, members set up one after
            another.
        meeting_fd: file by which it finds the workers that split its model; None: there are none.
    """
    place = choose_device(config.device)
    if place.type != "cuda":
        return set_up_on(config, progress, weights_fd=weights_fd, meeting_fd=meeting_fd)
    if config.workers > 1:
        place = device_of_worker(config, torch.cuda.device_count())
    if member is None:
        return set_up_on(config, progress, CudaDevice(place), meeting_fd=meeting_fd)
    waited = []

    def wait() -> None:
        waited.append(True)
        progress(_WAITING, 0, 1)

    with member.setting_up(wait):
        if waited:
            progress(_WAITING, 1, 1)
        device = CudaDevice(place, member.memory_of_others)
        setup = set_up_on(config, progress, device, meeting_fd=meeting_fd)
        now = device.memory()
        member.note_memory(now.total - now.free)
    return setup


def choose_device(wanted: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise SetupError("--device cuda: torch sees no CUDA device here; use --device cpu, or check the driver")
    return torch.device("cuda" if has_cuda and wanted != "cpu" else "cpu")


def device_of_worker(config: WorkerConfig, count: int) -> torch.device:
    """The device of this worker; each has its own."""
    if config.workers > count:
        sizes = {
            "tensor": config.tensor_parallel_size,
            "pipeline": config.pipeline_parallel_size,
            "data": config.data_parallel_size,
        }
        asked = " ".join(f"--{kind}-parallel-size {size}" for kind, size in sizes.items() if size > 1)
        raise SetupError(f"{asked}: torch sees {count} CUDA devices here")
    return torch.device("cuda", config.worker_number)


def open_family(config: WorkerConfig, device: str) -> Family:
    """The family of the model, for ``cpu`` or ``cuda``. Raises :class:`...loading.errors.CheckpointError`."""
    path = Path(config.model)
    if config.is_pooling:
        checkpoint = open_pooling(path, config.pooler, config.model_impl)
    else:
        checkpoint = open_checkpoint(path, config.load_format, config.model_impl, config.mmproj)
    if config.enable_expert_parallel and config.tensor_parallel_size == 1:
        raise SetupError(
            "--enable-expert-parallel: experts are given out to the workers of one engine, and --tensor-parallel-size "
            "is 1: raise it, or leave this out"
        )
    if config.group_size > 1:
        checkpoint = split_checkpoint(checkpoint, config)
    if device != "cpu" and isinstance(checkpoint.config, ModelSpec):
        _check_device(checkpoint.config)
    media = sees(checkpoint, config)
    if config.prompt_embeds or (_sees_prompts_whole(checkpoint) and not checkpoint.is_text_part):
        media = with_prompts(media, checkpoint)
    if media is not None:
        return (PoolingFamily if config.is_pooling else TextWithMedia)(checkpoint, device, media)
    if _sees_prompts_whole(checkpoint):
        raise SetupError(f"--language-model-only: {checkpoint.config.architecture} is not served without its pictures")
    return _FAMILIES[type(checkpoint.config)](checkpoint, device)


def _check_device(spec: ModelSpec) -> None:
    """Raise :class:`SetupError` for a model that runs on a CPU alone."""
    if any(group.by_prompt for group in spec.cache_groups):
        raise SetupError(
            f"{spec.architecture} attends to its prompt and the end of its answer, which no step on a GPU knows: use "
            "--device cpu"
        )


def _sees_prompts_whole(checkpoint: Checkpoint) -> bool:
    return isinstance(checkpoint.config, ModelSpec) and checkpoint.config.whole_prompts


def set_up_on(
    config: WorkerConfig,
    progress: ProgressCallback,
    device: Device | None = None,
    weights_fd: int | None = None,
    meeting_fd: int | None = None,
) -> Setup:
    """Set up a worker on ``device``, or on the host's cores if it is None; otherwise as :func:`set_up`."""
    family = open_family(config, "cpu" if device is None else "cuda")
    return set_up_family(family, config, progress, device, weights_fd, meeting_fd)
