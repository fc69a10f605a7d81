"""Describes Speech2Text (fairseq S2T, arXiv:2010.05171): convolutions over filter banks, and BART's layers.
Torch-free."""

from collections.abc import Mapping
from typing import Final

from stentor.protocols.ipc.audio import MAX_WINDOW_SECONDS, SAMPLE_RATE

from ..config_fields import ConfigError, Fields
from ..seq2seq.bart import Family, eos_or, layers_of, stack_of
from ..seq2seq.text import Decoding, Stack
from .encoder_decoder import LONGEST_TRANSCRIPT, MOST_POSITIONS, EncoderDecoderConfig

ARCHITECTURE: Final = "Speech2TextForConditionalGeneration"
MODEL_TYPE: Final = "speech_to_text"
_HOP, _FRAME = 160, 400
FEWEST_SAMPLES: Final = _FRAME + _HOP
"""Of two frames, since one has no deviation; shorter audio is filled with silence."""
_FAMILY: Final = Family(
    MODEL_TYPE,
    before=True,
    embedding_norm=False,
    positions="closed",
    vocab=10000,
    layers=(12, 6),
    heads=4,
    inner=2048,
    hidden=256,
    activation="relu",
    scaled=True,
    start=2,
)
_MOST_CONVOLUTIONS: Final = 16


class Speech2TextConfig(Decoding, EncoderDecoderConfig, frozen=True, kw_only=True):
    encoder_stack: Stack
    decoder_stack: Stack
    mel_bins: int
    kernels: tuple[int, ...]
    """Width of each convolution, which halves frames; odd."""
    conv_channels: int
    """Of all convolutions but the last, before gates halve them."""

    @property
    def samples(self) -> int:
        return MAX_WINDOW_SECONDS * SAMPLE_RATE

    def positions(self, samples: int) -> int:
        return _positions(samples, len(self.kernels))


def _positions(samples: int, convolutions: int) -> int:
    frames = (max(samples, FEWEST_SAMPLES) - _FRAME) // _HOP + 1
    for _ in range(convolutions):
        frames = (frames - 1) // 2 + 1
    return frames


def speech_to_text_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> Speech2TextConfig:
    """Read a config.json and a generation_config.json, which may be empty.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields = Fields(config)
    if (channels := fields.integer("input_channels", 1)) != 1:
        raise ConfigError(f"input_channels is {channels}, expected 1")
    if fields.integer("pad_token_id", 1, least=0) == 0:
        raise ConfigError("pad_token_id is 0, expected another: positions of audio are counted by it")
    count = fields.integer("num_conv_layers", 2, most=_MOST_CONVOLUTIONS)
    kernels = tuple(map(int, fields.numbers("conv_kernel_sizes"))) or (5, 5)
    if len(kernels) != count or any(not 0 < width < 256 or width % 2 == 0 for width in kernels):
        raise ConfigError(f"conv_kernel_sizes is {[*kernels]}, expected {count} odd widths below 256")
    channels = fields.integer("conv_channels", 1024)
    if channels % 2:
        raise ConfigError(f"conv_channels is {channels}, expected an even number: half of them are gates")
    hidden, vocab = fields.integer("d_model", _FAMILY.hidden), fields.integer("vocab_size", _FAMILY.vocab)
    counts = layers_of(fields, _FAMILY)
    longest = min(fields.integer("max_target_positions", 1024, most=MOST_POSITIONS), LONGEST_TRANSCRIPT)
    source = _positions(MAX_WINDOW_SECONDS * SAMPLE_RATE, count)
    lengths = {"encoder": source, "decoder": longest}
    stacks = {
        side: stack_of(ARCHITECTURE, _FAMILY, side, fields, counts[side], hidden, vocab, lengths[side])
        for side in lengths
    }
    return Speech2TextConfig(
        architecture=ARCHITECTURE,
        vocab_size=vocab,
        hidden_size=hidden,
        source_positions=source,
        num_layers=counts["decoder"],
        num_heads=stacks["decoder"].layers.layers[0].attention.heads,
        max_position=longest,
        bos_token_id=fields.token_id("bos_token_id"),
        eos_token_ids=eos_or(_FAMILY, config, generation),
        head="" if fields.flag("tie_word_embeddings", True) else "lm_head",
        encoder_stack=stacks["encoder"],
        decoder_stack=stacks["decoder"],
        mel_bins=fields.integer("input_feat_per_channel", 80, most=1024),
        kernels=kernels,
        conv_channels=channels,
    )
