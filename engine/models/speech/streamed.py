"""Streaming transcription models: a decoder that reads a piece of audio at each position and writes text with a fixed
delay.

The input of a position is its token's embedding plus what the family's encoder makes of its audio.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec
import torch

from ...layers.forward_batch import ForwardBatch
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.weights import WeightMap
from ...model_config.speech.kyutai import KyutaiConfig
from ...model_config.speech.streamed import StreamedConfig
from ...model_config.speech.voxtral_realtime import VoxtralRealtimeConfig
from ..decoder import Decoder
from .codec_encoder import CodecEncoder, codec_tensors
from .stream_encoder import StreamEncoder
from .voxtral_realtime import voxtral_tensors

Tensors = Iterable[tuple[str, torch.Tensor]]


class AudioStreamEncoder(Protocol):
    """Samples of a stream in, one embedding a decoder position out. The state of a stream is the encoder's own; its
    ``position`` is the number of positions encoded so far."""

    @property
    def stream_bytes(self) -> int:
        """Bytes of a long stream's state."""

    def begin(self) -> Any:
        """The state of a new stream."""

    def feed(self, stream: Any, pcm: bytes, *, ended: bool) -> None:
        """Add samples (s16le, 16 kHz, mono); silence follows the end."""

    def listen(self, stream: Any, count: int) -> torch.Tensor:
        """[count, hidden]: the next positions. Raises ValueError if their audio has not come."""

    def load(self, tensors: Tensors) -> None:
        """Load the tensors that are not the decoder's. Raises :class:`...layers.linear.weights.WeightError`."""


class _Parts(msgspec.Struct, frozen=True):
    """What a family has besides the decoder."""

    encoder: Callable[[WeightMap, Any, LayerContext], AudioStreamEncoder]
    decoder_tensors: Callable[[Any, Tensors, list[tuple[str, torch.Tensor]]], Iterator[tuple[str, torch.Tensor]]]
    """The decoder's tensors of a checkpoint under its names; those of the encoder are added to the list."""


_FAMILIES: Final[Mapping[type[StreamedConfig], _Parts]] = {
    VoxtralRealtimeConfig: _Parts(StreamEncoder, voxtral_tensors),
    KyutaiConfig: _Parts(CodecEncoder, codec_tensors),
}


class StreamedTranscriber:
    """Tokens and their audio in, hidden states and logits out, as :class:`..decoder.Decoder`, with the embeddings of
    an :class:`AudioStreamEncoder` added."""

    def __init__(self, config: StreamedConfig, context: LayerContext, max_model_len: int) -> None:
        self.config = config
        self._parts = _FAMILIES[type(config)]
        self.decoder = Decoder(config.decoder, context, max_model_len)
        audio = WeightMap()
        self.encoder = self._parts.encoder(audio, config, context)
        self.weights = _Weights(self.decoder.weights, audio)

    def load(self, tensors: Tensors) -> None:
        """Load the weights from a checkpoint's tensors. Raises :class:`...layers.linear.weights.WeightError`."""
        audio: list[tuple[str, torch.Tensor]] = []
        self.decoder.load(self._parts.decoder_tensors(self.config, tensors, audio))
        self.encoder.load(audio)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden], as :meth:`..decoder.Decoder.forward`."""
        return self.decoder.forward(batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → float32 [rows, vocabulary]."""
        return self.decoder.logits(hidden)


class _Weights(msgspec.Struct, frozen=True):
    """The weight maps of both parts."""

    language: WeightMap
    audio: WeightMap

    @property
    def raw(self) -> frozenset[str]:
        return self.language.raw | self.audio.raw

    @property
    def total_bytes(self) -> int:
        return self.language.total_bytes + self.audio.total_bytes

    def note_lines(self) -> Iterator[str]:
        yield from self.language.note_lines()
        yield from self.audio.note_lines()
