"""What Kyutai's speech-to-text models hear: the codes of the frame before, by transformers' Mimi.

A stream is encoded frame by frame, as transformers does with an audio window of one, whatever the number of positions
that a step has: so its codes do not depend on how its audio came. Position 0 hears nothing, and position p the frame
p - 1.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import torch

from stentor.protocols.ipc.audio import SAMPLE_BYTES, SAMPLE_RATE

from ...layers.audio.prompt_resample import PromptResampler
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.weights import WeightError, WeightMap
from ...model_config.speech.kyutai import CODEC_RATE, KyutaiConfig
from ..transformers.names import module_tensors, with_cache
from ..transformers.plain import plain_modules

_CODEC: Final = "codec_model."
_TABLE: Final = "model.embed_tokens.embed_tokens.weight"
_WORDS: Final = "model.embed_tokens.weight"
_CODES: Final = "codes.weight"
_SPEAKING: Final = ("decoder.", "decoder_transformer.", "upsample.")
"""Beginnings of the codec's tensors that make samples."""


def codec_tensors(
    config: KyutaiConfig, tensors: Iterable[tuple[str, torch.Tensor]], audio: list[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The decoder's tensors under a Mistral's names; those of codes and of the codec are added to ``audio``."""
    for name, tensor in tensors:
        if name.startswith(_CODEC):
            audio.append((name, tensor))
        elif name == _TABLE:
            text, rows = config.stored_text, config.codebooks * config.codebook_size
            if len(tensor) != config.stored_rows:
                raise WeightError(f"{name} has {len(tensor)} rows, expected {config.stored_rows}")
            audio.append((_CODES, tensor[text : text + rows]))
            yield _WORDS, torch.cat((tensor[:text], tensor[config.begin_row : config.begin_row + 1]))
        else:
            yield name.replace("_proj.linear.", "_proj."), tensor


class CodecStream(msgspec.Struct):
    """The state of one stream between two frames."""

    resampler: PromptResampler
    keys: Any
    """transformers' cache of the codec's transformer, a window of it."""
    before: Any
    """transformers' cache of the inputs of convolutions."""
    pcm: bytearray = msgspec.field(default_factory=bytearray)
    """The next frames, s16le at the codec's rate."""
    position: int = 0
    """Decoder positions encoded so far."""
    ended: bool = False


class CodecEncoder:
    """Samples of a stream in, the sum of the embeddings of a frame's codes out."""

    def __init__(self, weights: WeightMap, config: KyutaiConfig, context: LayerContext) -> None:
        """Raises :class:`...model_config.config_fields.ConfigError` for a codec that transformers cannot make."""
        self._weights, self._config, self._context = weights, config, context
        described = {**config.codec, "model_type": "mimi", "decoder_config": None}
        # in float32 whatever the model's type, as transformers keeps it: a code is the nearest of many
        self._codec = plain_modules("MimiModel", described, torch.float32, context.place)
        self._tensors: Mapping[str, torch.Tensor] = self._codec.state_dict()
        for name, tensor in self._tensors.items():
            weights.add(name, tensor)
        self._table = context.empty(config.codebooks * config.codebook_size, config.decoder.hidden_size)
        weights.add(_CODES, self._table)
        starts = torch.arange(config.codebooks, device=context.place) * config.codebook_size
        self._starts = starts  # int64 [codebooks]

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raises :class:`...layers.linear.weights.WeightError`."""
        from transformers.conversion_mapping import get_model_conversion_mapping

        conversions: Sequence[Any] = get_model_conversion_mapping(self._codec)
        codes: list[tuple[str, torch.Tensor]] = []
        codec: list[tuple[str, torch.Tensor]] = []
        for name, tensor in tensors:
            (codec if name.startswith(_CODEC) else codes).append((name.removeprefix(_CODEC), tensor))
        found = module_tensors(self._codec, conversions, self._tensors, codec)
        encoding = ((name, tensor) for name, tensor in found if not name.startswith(_SPEAKING))
        self._weights.load([*codes, *encoding])

    @property
    def stream_bytes(self) -> int:
        """Bytes of a long stream's keys and values, nearly all of its state."""
        return self._config.cached * torch.float32.itemsize

    def begin(self) -> CodecStream:
        """The state of a new stream."""
        from transformers import DynamicCache
        from transformers.models.mimi.modeling_mimi import MimiConv1dPaddingCache

        encoder = self._codec.encoder
        names = encoder.encoder_seanet._conv1d_layer_names
        layers = [*map(encoder.encoder_seanet.get_submodule, names), encoder.downsample]
        before = MimiConv1dPaddingCache(
            len(layers),
            [int(layer.padding_total) for layer in layers],
            [layer.pad_mode for layer in layers],
            [layer.in_channels for layer in layers],
        )
        return CodecStream(PromptResampler(SAMPLE_RATE, CODEC_RATE), DynamicCache(config=encoder.config), before)

    def feed(self, stream: CodecStream, pcm: bytes, *, ended: bool) -> None:
        """Add samples (s16le, 16 kHz, mono); silence follows the end."""
        if stream.ended:
            return
        stream.pcm += stream.resampler.finish(pcm) if ended else stream.resampler.push(pcm)
        stream.ended = ended

    def listen(self, stream: CodecStream, count: int) -> torch.Tensor:
        """The embeddings of the next ``count`` positions, [count, hidden]; mutates the stream.

        Raises ValueError if their samples have not come.
        """
        codes = torch.stack([self._next(stream) for _ in range(count)])  # [count, codebooks]
        rows = torch.nn.functional.embedding(codes + self._starts, self._table)
        return rows.float().sum(1).to(self._context.stream)

    def _next(self, stream: CodecStream) -> torch.Tensor:
        """The codes of the next position, int64 [codebooks]."""
        stream.position += 1
        if stream.position == 1:
            return torch.full_like(self._starts, self._config.begin_code)
        size = self._config.frame * SAMPLE_BYTES
        lacking = size - len(stream.pcm)
        if lacking > 0 and not stream.ended:
            stream.position -= 1
            raise ValueError(f"position {stream.position} needs {lacking} bytes of audio that have yet to come")
        frame, stream.pcm[:size] = stream.pcm[:size].ljust(size, bytes(1)), b""
        samples = torch.from_numpy(np.frombuffer(frame, "<i2").astype(np.float32) / 32768.0)
        found: torch.Tensor = self._codec.encode(
            samples.to(self._context.device).view(1, 1, -1),
            padding_cache=stream.before,
            **with_cache(self._codec.encode, stream.keys, "encoder_"),
        ).audio_codes
        return found[0, :, 0]
