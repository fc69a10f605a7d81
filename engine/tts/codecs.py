"""Reads what a codec's ``config.json`` says: which decoder it has, and what one of its frames is.

A codec turns frames of codes into samples. Those that are known: NeuCodec and XCodec2 as transformers stores them (one
code a frame), and SNAC as its makers do (several codes a frame, since coarse codes last longer than fine ones).
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from stentor.protocols.ipc.speech import CodecBackend

from ..loading.errors import CheckpointError
from ..loading.safetensors_index import read_json
from ..model_config.config_fields import ConfigError, Fields

_KERNEL: Final = 7
_DILATIONS: Final = (1, 3, 9)
"""Of the convolutions of a residual unit of SNAC."""
_MOST_LEVELS: Final = 16


class Codec(NamedTuple):
    backend: CodecBackend
    sample_rate: int
    frame_samples: int
    frame_codes: int
    codebook: int
    """Entries that a code chooses from."""
    context: int | None
    """Frames on either side that a frame's samples depend on; None: on all of its sentence."""

    @property
    def frames_a_second(self) -> float:
        return self.sample_rate / self.frame_samples


def read_codec(folder: Path) -> Codec:
    """The codec in ``folder``. Raises :class:`CheckpointError`."""
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} holds no codec: expected a folder with config.json")
    config = read_json(folder / "config.json")
    kind = "snac" if {"vq_strides", "decoder_rates"} <= config.keys() else config.get("model_type")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise CheckpointError(
            f"{folder} holds no codec that Stentor decodes: expected NeuCodec or XCodec2 of transformers (config.json "
            "with model_type neucodec or xcodec2), or SNAC (with vq_strides)"
        )
    try:
        return read(Fields(config))
    except (ConfigError, CheckpointError) as error:
        raise CheckpointError(f"{folder} holds a codec that cannot be decoded: {error}") from error


def frame_order(strides: list[int]) -> list[tuple[int, int]]:
    """Codes of one frame in the order of Orpheus: the level of each, and its place among the frame's codes of it.

    A coarse code comes before the finer ones of its time.
    """
    order: list[tuple[int, int]] = []

    def add(level: int, place: int) -> None:
        order.append((level, place))
        if level + 1 < len(strides):
            finer = strides[level] // strides[level + 1]
            for each in range(finer):
                add(level + 1, place * finer + each)

    add(0, 0)
    return order


def _vocos(backend: CodecBackend, rate: str, scaled: bool) -> Callable[[Fields], Codec]:
    """Reader of a codec whose decoder attends to all frames."""

    def read(fields: Fields) -> Codec:
        hop = math.prod(_integers(fields, "downsampling_ratios", [2, 2, 4, 4, 5]))
        output = fields.integer(rate, 24_000 if scaled else 16_000)
        if scaled:
            hop = hop * output // fields.integer("input_sampling_rate", 16_000)
        return Codec(backend, output, hop, 1, math.prod(_integers(fields, "quantization_levels", [4] * 8)), None)

    return read


def _snac(fields: Fields) -> Codec:
    strides, rates = _integers(fields, "vq_strides"), _integers(fields, "decoder_rates")
    if fields.get("attn_window_size") is not None:
        raise CheckpointError("its decoder attends within windows (attn_window_size); expected null, as in snac_24khz")
    if not strides or strides[-1] != 1 or any(one % two for one, two in pairwise(strides)):
        raise CheckpointError(
            f"vq_strides is {strides}: expected falling strides, each a multiple of the next, down to 1"
        )
    context = _reach(rates) / strides[0]
    return Codec(
        "snac",
        fields.integer("sampling_rate"),
        math.prod(rates) * strides[0],
        sum(strides[0] // stride for stride in strides),
        fields.integer("codebook_size", 4096),
        math.ceil(context),
    )


def _integers(fields: Fields, name: str, default: list[int] | None = None) -> list[int]:
    """A list of whole numbers above 0. Raises ``ConfigError``."""
    found = fields.numbers(name)
    if not found and default is not None:
        return default
    if not found or len(found) > _MOST_LEVELS or any(number < 1 or number % 1 for number in found):
        raise ConfigError(f"{name} is {str(fields.get(name))[:60]!r}, expected at most {_MOST_LEVELS} whole numbers")
    return [int(number) for number in found]


def _reach(rates: list[int]) -> float:
    """Steps of the decoder's input, on either side, that a sample depends on: each layer adds the reach of its kernel,
    in steps of its rate."""
    half = _KERNEL // 2
    reach, rate = float(half), 1
    for stride in rates:
        reach += 1 / rate  # a transposed convolution of twice the stride
        rate *= stride
        reach += half * sum(_DILATIONS) / rate
    return reach + half / rate


_READERS: Final[Mapping[str, Callable[[Fields], Codec]]] = {
    "neucodec": _vocos("neucodec", "output_sampling_rate", scaled=True),
    "xcodec2": _vocos("xcodec2", "sampling_rate", scaled=False),
    "snac": _snac,
}
