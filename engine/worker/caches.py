"""The KV cache: its dtype, its bytes, its tensors."""

import math

import torch

from stentor.kernels import kv_cache_shape
from stentor.kernels.kv_cache import make_kv_cache
from stentor.kernels.native.memory import empty_huge
from stentor.protocols.ipc.config import CacheDType

from ..layers.attention import LayerCache
from ..model_config.decoder_config import DecoderConfig
from ..model_config.whisper_config import WhisperConfig
from .errors import SetupError

FP8 = torch.float8_e4m3fn
_FP8_CAPABILITY = (8, 9)


def choose_cache_dtype(wanted: CacheDType, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """That of the activations, or float8 where it was asked for and the device converts it."""
    if wanted == "fp8":
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
            raise SetupError(
                "--kv-cache-dtype fp8 needs a GPU of compute capability 8.9 (Ada, Hopper) or later, this one has "
                f"{'.'.join(map(str, torch.cuda.get_device_capability(device)))}: use --kv-cache-dtype auto"
            )
        return FP8
    own = str(dtype).removeprefix("torch.")
    if wanted not in ("auto", own):
        raise SetupError(f"--kv-cache-dtype {wanted}: the model computes in {own}; use auto, {own} or fp8")
    return dtype


def kv_block_bytes(config: DecoderConfig | WhisperConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * block_size * dtype.itemsize


def allocate_caches(
    config: DecoderConfig | WhisperConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> list[LayerCache]:
    """K and V of every layer, zeroed."""
    return [_allocate(config, num_blocks, block_size, device, dtype) for _ in range(config.num_layers)]


def _allocate(
    config: DecoderConfig | WhisperConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> LayerCache:
    shape = (num_blocks, config.num_kv_heads, config.head_dim, block_size)
    if device.type == "cpu":
        k_shape, v_shape = kv_cache_shape(*shape)
        k, v = _untouched_zeros(k_shape, dtype), _untouched_zeros(v_shape, dtype)
    else:
        k, v = make_kv_cache(*shape, dtype, device)
    return LayerCache(k, v)


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    # torch.zeros writes every page; fresh pages of the kernel are zero and cost nothing until they are used
    return empty_huge(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
