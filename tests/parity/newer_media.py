"""Tiny random models with media that transformers 5.24 was the first to have, and what they take."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.pictures import Kind, Picture
from stentor.tests.parity.sounding import grouped
from stentor.tests.support.vision_models import TEXT, VOCAB, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
_IMAGE, _SOUND = token("<image>"), token("<video>")
_CODES, _SOUND_CODES = 16, 8
_FACTOR: Final = 4
"""Pixels to a side of a code."""
_SAMPLES: Final = 4
"""Of a code."""


def _apertus() -> Any:
    """With a token for each code of pictures and sounds, which no answer has."""
    pictures: dict[str, Any] = {"codebook_size": _CODES, "embed_dim": 8, "latent_channels": 8, "base_channels": 32}
    pictures |= {"channel_multiplier": [1, 1, 2], "num_res_blocks": 1, "attn_resolutions": [4], "resolution": 16}
    sounds: dict[str, Any] = {"model_type": "wavtokenizer_encoder", "codebook_size": _SOUND_CODES, "codebook_dim": 16}
    sounds |= {"hidden_size": 16, "num_filters": 4, "upsampling_ratios": [2, 2], "num_lstm_layers": 1}
    first = VOCAB - _SOUND_CODES - _CODES
    return transformers.Apertus1p5Config(
        text_config={**TEXT, "output_vocab_size": first},
        vision_config=pictures,
        audio_config=sounds,
        image_token_id=_IMAGE,
        audio_token_id=_SOUND,
        image_token_offset=first,
        audio_token_offset=first + _CODES,
    )


def _picture_or_sound(random: torch.Generator, size: int) -> Picture:
    if size:
        mask = torch.ones(1, 23, dtype=torch.int64)
        samples = torch.rand(1, 1, 23, generator=random) - 0.5
        tokens = [61, *[_SOUND] * -(-23 // _SAMPLES), 62]
        return Picture({"input_values": samples, "padding_mask": mask}, tokens, modality="audio")
    rows, columns = 3, 4
    pixels = torch.randn(1, 3, rows * _FACTOR, columns * _FACTOR, generator=random)
    lines = [*[*[_IMAGE] * columns, 63] * rows][:-1]
    return Picture(
        {"pixel_values": pixels, "image_sizes": torch.tensor([[rows * _FACTOR, columns * _FACTOR]])}, [64, *lines, 65]
    )


NEWER: Final[Mapping[str, tuple[Callable[[], Any], Kind]]] = {
    "apertus1p5": (_apertus, Kind(_picture_or_sound, _IMAGE, grouped, (_SOUND,))),
}
"""By name: a configuration, and what it takes."""
