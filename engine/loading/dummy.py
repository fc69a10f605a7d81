"""Weights out of nothing, for measuring a model without having it."""

from collections.abc import Callable, Iterator
from zlib import crc32

import torch

from ..model_config.decoder_config import DecoderConfig
from ..model_config.weight_shapes import weight_shapes, whisper_weight_shapes
from ..model_config.whisper_config import WhisperConfig

POOL_ELEMENTS = 1_000_003
"""Prime, so that no matrix repeats the pool row by row."""

STANDARD_DEVIATION = 0.02


def dummy_weights(
    config: DecoderConfig | WhisperConfig,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    progress: Callable[[int, int], None],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) of every weight: small normal values, norms that pass their input on.

    A tensor depends on ``seed`` and its name alone. The values are cut from one pool of random
    numbers, which costs a copy where drawing billions would cost minutes.
    """
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(POOL_ELEMENTS, generator=generator).mul_(STANDARD_DEVIATION).to(device, dtype)
    plus_one = isinstance(config, DecoderConfig) and config.norm_plus_one
    shapes = whisper_weight_shapes(config) if isinstance(config, WhisperConfig) else weight_shapes(config)
    total = sum(_elements(shape) for shape in shapes.values()) * dtype.itemsize
    done = 0
    for name, shape in shapes.items():
        count = _elements(shape)
        if name.endswith("norm.weight"):
            tensor = torch.full(shape, 0.0 if plus_one else 1.0, dtype=dtype, device=device)
        else:
            tensor = _cut(pool, crc32(name.encode()) % POOL_ELEMENTS, count).view(shape)
        yield name, tensor
        done += count * dtype.itemsize
        progress(done, total)


def _cut(pool: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """A copy of ``count`` values from ``start`` on, beginning the pool again where it ends."""
    if start + count <= POOL_ELEMENTS:
        return pool[start : start + count].clone()
    return pool.roll(-start).repeat(-(-count // POOL_ELEMENTS))[:count]


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
